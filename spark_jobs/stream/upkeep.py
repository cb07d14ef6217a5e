"""The owner's automatic steps between two runs: expiry, old commits, ended plans, compaction, batches without records.

A step never ends the runs: after an error it pauses and is tried again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from include.ground.errors import Transient
from include.ground.kafka import KafkaRefused, TopicMissing
from include.ground.paths import reading_lock_path
from include.ground.settings import Settings
from include.observe.ended_plans import delete_moved, move_ended, pass_over
from include.plans.journal import advance_index, plan_ids_of_data
from include.read.publication import NothingPublished
from include.state.lease import is_free
from spark_jobs.backends.backend import FilesDamaged
from spark_jobs.backends.release import Release, tables_of
from spark_jobs.stream.back_off import PAUSE_AFTER_FAILURE, SECONDS_AT_ONCE, AutomaticStep
from spark_jobs.stream.compaction import (
    AUTOMATIC,
    MEGABYTE,
    CompactedTable,
    CompactionPolicy,
    commit_group,
    compact_group,
    discard_files,
    write_group,
)
from spark_jobs.stream.expiry import expire_batches, protected_versions
from spark_jobs.stream.ingest import Ingest
from spark_jobs.stream.preflight import TopicReplaced
from spark_jobs.stream.refine import stored_progress
from spark_jobs.tables.commit_log import OPENING, is_due, move_range
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.log_lines import log_line

EXPIRY_EVERY = 600.0
"""Seconds; ages are hours at least."""


@dataclass
class AutomaticExpiry(AutomaticStep[Settings, Sequence[Release]]):
    """Looks for batches that are older than declared, and expires some of them."""

    failure = "old batches did not expire, the next check tries again"
    rest = EXPIRY_EVERY

    def work(self, settings: Settings, releases: Sequence[Release]) -> bool:
        if self.is_pausing():
            return False
        done = expire_batches(settings, releases, datetime.now(UTC))
        for each in done:
            log_line(each.report)
        if not done:
            self.pause(EXPIRY_EVERY)
        return bool(done)


HISTORY_EVERY = 10.0


@dataclass
class AutomaticHistory(AutomaticStep[Settings, Sequence[Release]]):
    """Looks at the logs every ten seconds, and moves one range of commits at a time that are older than `age`."""

    failure = "old commits were not moved into the history, the next check tries again"
    age: timedelta = OPENING
    next_check: float = field(default_factory=lambda: time.monotonic() + HISTORY_EVERY, kw_only=True)
    _tables: list[Table] = field(default_factory=list)

    def after_failure(self) -> bool:
        """Leave the table out until the next check; return whether another table is due."""
        self._tables = self._tables[1:]
        return bool(self._tables)

    def work(self, settings: Settings, releases: Sequence[Release]) -> bool:
        if not self._tables:
            if self.is_pausing():
                return False
            self.pause(HISTORY_EVERY)
            self._tables = [table for table in tables_of(releases) if is_due(table.spec.path, table.version)]
        if not self._tables or not is_free(reading_lock_path(settings, releases[0].dataset.name)):
            self._tables = []
            return False
        path, version = self._tables[0].spec.path, self._tables[0].version
        needed = protected_versions(settings, releases).get(path, ())
        if not (move_range(path, version, needed, self.age) and is_due(path, version)):
            self._tables.pop(0)
        return bool(self._tables)


REMOVAL_EVERY = 3600.0
"""Seconds; retentions are days."""


@dataclass
class AutomaticRemoval(AutomaticStep[Settings, str]):
    """Looks for ended plans every hour, moves their data away at once, and deletes it for a second between two runs."""

    failure = "data of ended plans was not removed, the next check tries again"
    rest = REMOVAL_EVERY
    _is_deleting: bool = False
    _unread: list[str] = field(default_factory=list)

    def after_failure(self) -> bool:
        self._is_deleting, self._unread = False, []
        return super().after_failure()

    def work(self, settings: Settings, dataset: str) -> bool:
        try:
            return self._remove(settings, dataset)
        except NothingPublished:
            return self.after_failure()

    def _remove(self, settings: Settings, dataset: str) -> bool:
        end = time.monotonic() + SECONDS_AT_ONCE
        if not self._is_deleting:
            if self.is_pausing():
                return False
            if not self._unread and not advance_index(settings, end):
                return True
            now = datetime.now(UTC)
            self._unread = self._unread or plan_ids_of_data(settings, dataset)
            pass_over(settings, dataset, self._unread, now, end)
            if self._unread:
                return True
            self.pause(REMOVAL_EVERY)
            # The plans that this reads were just read, so it takes little time.
            for each in move_ended(settings, dataset, now, within=0):
                why = f"ended {each.ended:%Y-%m-%d %H:%M} UTC, retention.{each.policy}"
                log_line(f"removed {each.path}: {each.bytes:,} bytes, {why}")
        self._is_deleting = not delete_moved(settings, dataset, end)
        return self._is_deleting


LARGE_GROUP = 2 * MEGABYTE
"""Groups of this size or larger are written by a thread: 30 MB of bronze would delay readers by more than a second."""
NICENESS = 5
"""Of that thread: a run that needs the processor comes first."""


@dataclass(frozen=True)
class GroupInProgress:
    """A group whose compacted files a thread is writing."""

    table: Table
    group: Sequence[DataFile]
    written: Future[list[DataFile]]


@dataclass
class AutomaticCompaction(AutomaticStep[Iterable[CompactedTable]]):
    """Compaction by `policy`, whose `min_files` is 0 to do nothing.

    `_settled`: by table, the number of files at which there was no group to compact. `_contended` has the tables
    whose files were replaced while a group was written: their next group is not left to the thread. `_left_out` has
    those that could not be compacted since the last pause, `_unreadable` the damaged files;
    `_tried` is the table that is being compacted.
    """

    failure = f"compaction failed, next try in {PAUSE_AFTER_FAILURE:.0f} s"
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
        self._is_pending = True

    def work(self, tables: Iterable[CompactedTable]) -> bool:
        """Compact the smallest group of one of the tables, or begin to; return whether to call again at once.

        While the thread writes a group, no other is begun. `tables`: those that may be compacted now; they are read
        only when there is something to do. Raises OwnershipLost.
        """
        if not self._is_pending or not self.policy.min_files or self.is_pausing():
            return False
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

    def after_failure(self) -> bool:
        """Leave the table out until the next check; pause if no table caused the failure."""
        if self._tried is None:
            return super().after_failure()
        self._left_out.add(self._tried)
        return True

    def _commit_written(self, tables: Iterable[CompactedTable]) -> bool:
        """Commit the group, or discard it if its files were replaced; return False while it is being written."""
        assert self._in_progress is not None
        table, group, written = self._in_progress.table, self._in_progress.group, self._in_progress.written
        if not written.done():
            return False
        self._in_progress, self._tried = None, table.spec.path
        try:
            added = written.result()
        except FilesDamaged as error:
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
            except FilesDamaged as error:
                self._leave_out(compacted.table, group, error)
            return
        written = self._writer.submit(write_group, compacted, group, aside=True)
        self._in_progress = GroupInProgress(compacted.table, group, written)

    def _leave_out(self, table: Table, group: Sequence[DataFile], error: FilesDamaged) -> None:
        """Leave damaged files of a group out until the next look: they must not block the healthy ones."""
        names = ", ".join(path.name for path in error.paths)
        log_line(f"compaction of {table.spec.name} leaves out {len(error.paths)} of {len(group)} files: {names}", error)
        self._unreadable.update(error.paths)


def declared_compaction(settings: Settings) -> AutomaticCompaction:
    """Return the compaction that the settings declare."""
    return AutomaticCompaction(replace(AUTOMATIC, min_files=settings.compaction_files))


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


RESTING_SECONDS = 2.0
"""How long after a batch the next one is awaited, which would say the same."""


@dataclass(frozen=True)
class QuietState:
    """What the decision depends on: partitions that are idle now, and the releases that have bronze's `last` batch."""

    last: int
    idle: frozenset[int]
    releases: frozenset[str]


@dataclass
class QuietCommits(AutomaticStep[Ingest, Sequence[Release]]):
    """Decides about each state once. TopicReplaced ends the driver as it does when ingest finds it."""

    failure = "no batch says which partitions are idle, the next try is in a minute"
    ending = (TopicReplaced,)
    next_check: float = field(default=0.0, kw_only=True)
    considered: QuietState | None = None

    def after_failure(self) -> bool:
        self.considered = None
        return super().after_failure()

    def work(self, ingest: Ingest, releases: Sequence[Release]) -> bool:
        """Commit the batch if it is due; return whether there is one. `releases`: the published one first."""
        if self.is_pausing():
            return False
        published, last = releases[0], ingest.last_batch
        ingest.quiet.idle_after = published.dataset.pipeline.idle
        idle = (ingest.quiet.quiet() | ingest.idle.partitions) - ingest.quiet.lagging
        if idle == ingest.idle.partitions or time.monotonic() - ingest.committed < RESTING_SECONDS:
            return False
        # A release that is behind is decided about when it has the last batch.
        current = [each for each in releases if each.refined_batch == last]
        state = QuietState(last, idle, frozenset(each.dataset.release for each in current))
        if state == self.considered or published not in current:
            return False
        self.considered = state
        if not any(is_awaited(each, idle, ingest.ingested) for each in current):
            return False
        return self._commit(ingest, state)

    def _commit(self, ingest: Ingest, state: QuietState) -> bool:
        try:
            return ingest.commit_quiet(state.idle, after=state.last)
        except (Transient, TopicMissing, KafkaRefused) as error:
            # Whether the partitions are still quiet is not known.
            ingest.quiet.forget()
            self.considered = None
            log_line(f"{ingest.dataset.name}: which partitions are idle is not known: {error.what}")
            return False


def is_awaited(release: Release, idle: Collection[int], partitions: Collection[int]) -> bool:
    """Whether the watermark would close a window or session if these of the topic's partitions were idle.

    A table without `on_close` has the rows already; their state tells readers whether more may come.
    """
    timed = [each for each in (target.gold.timed_by for target in release.gold) if each is not None]
    if not timed:
        return False
    progress = stored_progress(release.writer)
    reached = progress.reached({str(each) for each in idle}, progress.without_rows(map(str, partitions)))
    return any(each.closing(reached) != each.closing(progress.watermark) for each in timed)
