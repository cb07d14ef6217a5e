"""Deletes files that no table version needs any more, as `retention.versions` of the pipeline declares.

Reads / Writes: the tables that the owner of a stream or of a derived dataset gives it, here and in the object store.
Guarantee: the newest versions, the published ones, those that a rollback would publish, and versions replaced within
the retention stay readable; so do all while a job reads tables.
After a crash: the next check finds what is left. No commit is made: readers and the ledger see nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from include.declare.dataset import load_release_start
from include.ground import table_files
from include.ground.paths import reading_lock_path, rejected_path, silver_path, snapshots_path, warehouse
from include.ground.settings import Settings
from include.read.publication import read_publication
from include.read.publish_to_store import remove_stored_files
from include.state.file_locks import is_free
from spark_jobs.layers.release import Release, refined_batch, tables_of
from spark_jobs.stream.automatic_step import SECONDS_AT_ONCE, AutomaticStep
from spark_jobs.stream.release_publication import publication_of
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.log_lines import error_reason, log_line

CHECKS_PER_RETENTION = 12
LONGEST_BUILD = timedelta(days=7)
"""From the plan of a release until it has inherited the rows of another."""


def protected_versions(settings: Settings, releases: Sequence[Release]) -> Mapping[Path, set[int]]:
    """Return by table the versions that are published, those that publishing another release would show, and those
    that a release which is being built inherits.
    """
    root, kept = warehouse(settings), dict[Path, set[int]]()
    for path, version in _inherited_versions(settings, releases[0].dataset.name):
        kept.setdefault(path, set()).add(version)
    named = [read_publication(settings, releases[0].dataset.name)]
    named += [publication_of(settings, each, last) for each in releases if (last := refined_batch(each)) >= 0]
    for table in [table for publication in named for table in publication.tables.values()]:
        kept.setdefault(root / table.path, set()).add(table.version)
    return kept


def _inherited_versions(settings: Settings, dataset: str) -> Iterator[tuple[Path, int]]:
    """Yield tables and versions from which releases that were planned in the last days take their first batches."""
    snapshots = snapshots_path(settings, dataset)
    for folder in snapshots.iterdir() if snapshots.is_dir() else ():
        start = load_release_start(folder)
        if start is not None and time.time() - folder.stat().st_mtime < LONGEST_BUILD.total_seconds():
            yield silver_path(settings, dataset, start.base), start.silver
            yield rejected_path(settings, dataset, start.base), start.rejected


@dataclass(frozen=True)
class RetainedTables:
    """A dataset's tables, and which versions of them stay readable. `retention`: how long a replaced version is kept.

    `protected`: returns by table the versions that are kept at any age; None if that is unknown: no file is deleted.
    `reading_lock`: held while a job reads tables.
    """

    tables: Sequence[Table]
    retention: timedelta
    protected: Callable[[], Mapping[Path, set[int]] | None]
    reading_lock: Path
    settings: Settings


def retained_tables(settings: Settings, releases: Sequence[Release]) -> RetainedTables:
    """Return the tables of a stream. `releases`: the published one first."""
    dataset = releases[0].dataset
    protected, lock = partial(protected_versions, settings, releases), reading_lock_path(settings, dataset.name)
    return RetainedTables(tuple(tables_of(releases)), dataset.pipeline.retention.versions, protected, lock, settings)


def files_to_delete(retained: RetainedTables, table: Table, *, sweep: bool = False) -> list[Path]:
    """Return the files of a table to delete; none while a job reads tables. `sweep` also lists the table's folder, to
    find files of crashed writers.
    """
    if not is_free(retained.reading_lock) or (protected := retained.protected()) is None:
        return []
    path = table.spec.path
    kept = protected.get(path, ())
    return [path / each for each in table_files.obsolete_files(path, kept, retained.retention, sweep=sweep)]


def delete_obsolete_files(table: Table, files: list[Path], end: float) -> int:
    """Delete files, and folders that are empty then, until `end` (monotonic); remove them from the list; count them."""
    before = len(files)
    while files and time.monotonic() < end:
        path = files.pop()
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == table.spec.path or not folder.is_dir() or any(folder.iterdir()):
                break
            folder.rmdir()
    return before - len(files)


@dataclass
class StoredDeletion:
    """Deletes obsolete objects of the object store in a thread: runs do not wait for lists of logs, or for a store
    that is away.
    """

    _thread: threading.Thread | None = None

    def begin(self, retained: RetainedTables) -> None:
        """Begin to delete objects of the tables, unless the thread still does."""
        if not retained.settings.warehouse or (self._thread is not None and self._thread.is_alive()):
            return
        if (protected := retained.protected()) is None:
            return
        kept = {table.spec.path: set(protected.get(table.spec.path, ())) for table in retained.tables}
        work = partial(_delete_stored, retained.settings, kept, retained.retention)
        self._thread = threading.Thread(target=work, name="objects", daemon=True)
        self._thread.start()


def _delete_stored(settings: Settings, kept: Mapping[Path, set[int]], retention: timedelta) -> None:
    try:
        for table, versions in kept.items():
            remove_stored_files(settings, table, versions, retention)
    except Exception as error:  # noqa: BLE001  (whatever it is, the next check tries again)
        log_line(f"obsolete objects stay in the store until the next check: {error_reason(error)}; runs continue")


@dataclass
class AutomaticDeletion(AutomaticStep):
    """Checks each table twelve times per retention, and deletes for a second between two runs.

    `stored` deletes in the object store meanwhile.
    """

    stored: StoredDeletion = field(default_factory=StoredDeletion)
    _tables: list[Table] = field(default_factory=list)
    _files: list[Path] = field(default_factory=list)

    def step(self, find_retained: Callable[[], RetainedTables]) -> bool:
        """Check one table, or delete some of its files; return whether there is more to do. Raises OwnershipLost."""
        if not self._tables and self.is_pausing():
            return False
        failure = "obsolete files were not deleted, the next check tries again"
        return self.guarded(lambda: self._step(find_retained()), failure)

    def after_failure(self) -> bool:
        """Leave the table out until the next check, pause if there is none; return whether another table is due."""
        return self._next_table() if self._tables else super().after_failure()

    def _step(self, retained: RetainedTables) -> bool:
        if not self._tables:
            if not retained.tables:
                return False
            self.pause(retained.retention.total_seconds() / CHECKS_PER_RETENTION)
            self._tables = list(retained.tables)
            self.stored.begin(retained)
        table = self._tables[0]
        # After a promotion it is unknown which versions of the other release's tables are still needed.
        if table.spec.path in {each.spec.path for each in retained.tables}:
            self._files = self._files or files_to_delete(retained, table)
            delete_obsolete_files(table, self._files, time.monotonic() + SECONDS_AT_ONCE)
            if self._files:
                return True
        return self._next_table()

    def _next_table(self) -> bool:
        self._tables, self._files = self._tables[1:], []
        return bool(self._tables)
