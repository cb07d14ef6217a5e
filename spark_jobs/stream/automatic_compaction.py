"""Automatic compaction: after runs, the owner compacts one group of small files at a time (adr-0003).

Reads / Writes: the tables that the owner of a stream or of a derived dataset gives it.
Guarantee: that of `compact_tables`. A run waits for one small group; a thread writes larger groups while runs continue,
and the owner commits them between two runs.
After a crash: an uncommitted file is deleted by a later `headrace maintain`; the group is compacted again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import duckdb

from include.ground.file_checksum import is_whole
from include.ground.settings import Settings
from spark_jobs.stream.automatic_step import PAUSE_AFTER_FAILURE, AutomaticStep
from spark_jobs.stream.compact_tables import (
    CompactedTable,
    FilesDamaged,
    commit_group,
    compact_group,
    discard_files,
    write_group,
)
from spark_jobs.stream.compaction_groups import AUTOMATIC, MEGABYTE, CompactionPolicy
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.duckdb_session import background_session
from spark_jobs.tables.log_lines import log_line

LARGE_GROUP = 2 * MEGABYTE
"""Groups of this size or larger are written by a thread: 30 MB of bronze would delay readers by more than a second."""
UNREADABLE = (duckdb.Error, FilesDamaged)
"""What a damaged file causes."""
NICENESS = 5
"""Of that thread: a run that needs the processor comes first."""


@dataclass(frozen=True)
class GroupInProgress:
    """A group whose compacted files a thread is writing."""

    table: Table
    group: Sequence[DataFile]
    written: Future[list[DataFile]]


@dataclass
class AutomaticCompaction(AutomaticStep):
    """Compaction by `policy`, whose `min_files` is 0 to do nothing.

    `_settled`: by table, the number of files at which there was no group to compact. `_contended` has the tables
    whose files were replaced while a group was written: their next group is not left to the thread. `_left_out` has
    those that could not be compacted since the last pause, `_unreadable` the damaged files;
    `_tried` is the table that is being compacted.
    """

    policy: CompactionPolicy = AUTOMATIC
    next_check: float = field(default=0.0, kw_only=True)
    _settled: dict[Path, int] = field(default_factory=dict)
    _contended: set[Path] = field(default_factory=set)
    _left_out: set[Path] = field(default_factory=set)
    _unreadable: set[Path] = field(default_factory=set)
    _tried: Path | None = None
    _in_progress: GroupInProgress | None = None
    _is_pending: bool = True

    @cached_property
    def _writer(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "compaction", initializer=lower_priority)

    def note_run(self) -> None:
        """Take note that a run has written files."""
        self._is_pending = True

    def step(self, tables: Iterable[CompactedTable]) -> bool:
        """Compact the smallest group of one of the tables, or begin to; return whether to call again at once.

        While the thread writes a group, no other is begun. `tables`: those that may be compacted now; they are read
        only when there is something to do. Raises OwnershipLost.
        """
        if not self._is_pending or not self.policy.min_files or self.is_pausing():
            return False
        return self.guarded(lambda: self._step(tables), f"compaction failed, next try in {PAUSE_AFTER_FAILURE:.0f} s")

    def after_failure(self) -> bool:
        """Leave the table out until the next check; pause if no table caused the failure."""
        if self._tried is None:
            return super().after_failure()
        self._left_out.add(self._tried)
        return True

    def _step(self, tables: Iterable[CompactedTable]) -> bool:
        self._tried = None
        if self._in_progress is not None:
            return self._commit_written(tables)
        if self._compact_one(tables):
            return self._in_progress is None
        self._is_pending = bool(self._left_out or self._unreadable)
        if self._is_pending:
            self._left_out.clear()
            self._unreadable.clear()
            self.pause(PAUSE_AFTER_FAILURE)
        return False

    def _commit_written(self, tables: Iterable[CompactedTable]) -> bool:
        """Commit the group, or discard it if its files were replaced; return False while it is being written."""
        assert self._in_progress is not None
        table, group, written = self._in_progress.table, self._in_progress.group, self._in_progress.written
        if not written.done():
            return False
        self._in_progress, self._tried = None, table.spec.path
        try:
            added = written.result()
        except UNREADABLE as error:
            self._leave_out(table, group, error)
            return True
        if _is_current(table, group, tables):
            commit_group(table, added, group)
        else:
            self._contended.add(table.spec.path)
            discard_files(table, added)
        return True

    def _compact_one(self, tables: Iterable[CompactedTable]) -> bool:
        for each in tables:
            table, path = each.table, each.table.spec.path
            if path in self._left_out:
                continue
            if path in self._settled and table.file_count < self._settled[path] + self.policy.min_files:
                continue
            self._tried = path
            groups = each.groups(self.policy)
            readable = next(filter(None, (self._readable(table, group) for group in groups)), None)
            if readable:
                self._settled.pop(path, None)
                self._compact_group(each, readable)
                return True
            if not groups:
                self._settled[path] = table.file_count
            self._tried = None
        return False

    def _readable(self, table: Table, group: Sequence[DataFile]) -> Sequence[DataFile]:
        """Return the group without unreadable files; nothing if too few are left."""
        found = [file for file in group if table.spec.path / file.path not in self._unreadable]
        return found if len(found) >= min(self.policy.min_files, len(group)) else []

    def _compact_group(self, compacted: CompactedTable, group: Sequence[DataFile]) -> None:
        path = compacted.table.spec.path
        if sum(file.size for file in group) < LARGE_GROUP or path in self._contended:
            self._contended.discard(path)
            try:
                compact_group(compacted, group)
            except UNREADABLE as error:
                self._leave_out(compacted.table, group, error)
            return
        written = self._writer.submit(write_group, compacted, group, background_session)
        self._in_progress = GroupInProgress(compacted.table, group, written)

    def _leave_out(self, table: Table, group: Sequence[DataFile], error: Exception) -> None:
        """Leave damaged files of a group out until the next look: they must not block the healthy ones.

        Raises the error if no file is damaged: the disk may be full, for example.
        """
        damaged = [path for path in _paths(table, group) if not is_whole(path)]
        if not damaged:
            raise error
        names = ", ".join(path.name for path in damaged)
        log_line(f"compaction of {table.spec.name} leaves out {len(damaged)} of {len(group)} files: {names}", error)
        self._unreadable.update(damaged)


def declared_compaction(settings: Settings) -> AutomaticCompaction:
    """Return the compaction that the settings declare."""
    return AutomaticCompaction(replace(AUTOMATIC, min_files=settings.compaction_files))


def _paths(table: Table, group: Sequence[DataFile]) -> list[Path]:
    return [table.spec.path / file.path for file in group]


def _is_current(table: Table, group: Sequence[DataFile], tables: Iterable[CompactedTable]) -> bool:
    """Whether the table is among `tables` and still has the files; a run or a plan may have replaced them."""
    if not any(each.table is table for each in tables):
        return False
    current = {file.path for file in table.files()}
    return all(file.path in current for file in group)


def lower_priority() -> None:
    """Give this thread a lower priority than runs have, unless its process has one already: only root may raise it."""
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
        os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
