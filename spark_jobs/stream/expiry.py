"""Deletes what is older than declared: files that no table version needs, and the oldest batches of the tables.

The newest versions, the published ones, those that a rollback would publish, and versions replaced within the
retention stay readable; so do all while a job reads tables. Batches expire as a prefix (adr-0007), one commit per
table, which names them. After a crash the next check finds what is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from include.declare.dataset import load_release_start
from include.ground import delta_log
from include.ground.delta_log import Commit, batch_commit, commits_descending, commits_following
from include.ground.paths import reading_lock_path, rejected_path, silver_path, snapshots_path, warehouse
from include.ground.record_coordinates import arrivals
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier
from include.plans.journal import open_plans
from include.read.publication import read_publication
from include.read.publish_to_store import remove_stored_files
from include.state.lease import is_free
from spark_jobs.backends.backend import Sql, Transaction
from spark_jobs.backends.release import Release, tables_of
from spark_jobs.layers.silver_tables import expiry_ids, first_unexpired_batch
from spark_jobs.stream.back_off import SECONDS_AT_ONCE, AutomaticStep
from spark_jobs.stream.refine import publication_of
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.log_lines import error_reason, log_line

CHECKS_PER_RETENTION = 12
LONGEST_BUILD = timedelta(days=7)
"""From the plan of a release until it has inherited the rows of another."""


def protected_versions(settings: Settings, releases: Sequence[Release]) -> Mapping[Path, set[int]]:
    """Return by table the versions that are published, that a rollback would show, or that a build inherits."""
    root, kept = warehouse(settings), dict[Path, set[int]]()
    for path, version in _inherited_versions(settings, releases[0].dataset.name):
        kept.setdefault(path, set()).add(version)
    named = [read_publication(settings, releases[0].dataset.name)]
    named += [publication_of(settings, each, last) for each in releases if (last := each.refined_batch) >= 0]
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
    """Return the files of a table to delete; none while a job reads tables. `sweep`: also those of crashed writers."""
    if not is_free(retained.reading_lock) or (protected := retained.protected()) is None:
        return []
    path = table.spec.path
    kept = protected.get(path, ())
    return [path / each for each in delta_log.obsolete_files(path, kept, retained.retention, sweep=sweep)]


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
    """Deletes obsolete objects of the object store in a thread: runs do not wait for a store that is away."""

    _thread: threading.Thread | None = None

    def begin(self, retained: RetainedTables) -> None:
        """Begin to delete objects of the tables, unless the thread still does."""
        settings = retained.settings
        if settings.stores_tables or not settings.warehouse or (self._thread is not None and self._thread.is_alive()):
            return
        if (protected := retained.protected()) is None:
            return
        kept = {table.spec.path: set(protected.get(table.spec.path, ())) for table in retained.tables}
        work = partial(_delete_stored, settings, kept, retained.retention)
        self._thread = threading.Thread(target=work, name="objects", daemon=True)
        self._thread.start()


def _delete_stored(settings: Settings, kept: Mapping[Path, set[int]], retention: timedelta) -> None:
    try:
        for table, versions in kept.items():
            remove_stored_files(settings, table, versions, retention)
    except Exception as error:  # noqa: BLE001  (whatever it is, the next check tries again)
        log_line(f"obsolete objects stay in the store until the next check: {error_reason(error)}; runs continue")


@dataclass
class AutomaticDeletion(AutomaticStep[Callable[[], RetainedTables]]):
    """Checks each table twelve times per retention, deletes for a second between two runs, here and in `stored`."""

    failure = "obsolete files were not deleted, the next check tries again"
    stored: StoredDeletion = field(default_factory=StoredDeletion)
    _tables: list[Table] = field(default_factory=list)
    _files: list[Path] = field(default_factory=list)

    def after_failure(self) -> bool:
        """Leave the table out until the next check, pause if there is none; return whether another table is due."""
        return self._next_table() if self._tables else super().after_failure()

    def work(self, find_retained: Callable[[], RetainedTables]) -> bool:
        """Check one table, or delete some of its files."""
        if not self._tables and self.is_pausing():
            return False
        retained = find_retained()
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


MOST_BATCHES = 10_000
"""Batches that expire at once: their commits are read."""


@dataclass(frozen=True)
class Expired:
    """What one commit removed from a table: `rows` of batches [first, before)."""

    table: str
    first: int
    before: int
    rows: int

    @property
    def report(self) -> str:
        return f"{self.table}: batches {self.first} to {self.before - 1} expired (retention), {self.rows:,} rows"


@dataclass(frozen=True)
class _ExpiringTable:
    """A table whose batches before `before` expire; columns of the Kafka partition and of the order of its rows."""

    table: Table
    app_id: str
    first: int
    before: int
    partition: str
    offset: str


def expire_batches(
    settings: Settings, releases: Sequence[Release], now: datetime, is_owner: Callable[[], bool] = lambda: True
) -> list[Expired]:
    """Expire what the published release's `retention` names; return the commits made.

    `releases`: the published one, then its shadows; all keep the same ages. Nothing expires while a plan is open or a
    run is unfinished.
    """
    name = releases[0].dataset.name
    has_plan = any(name in each.plan.datasets for each in open_plans(settings))
    if has_plan or any(each.unfinished_run for each in releases):
        return []
    done = []
    for each in _expiring(releases, now):
        if is_owner() and each.before > each.first:
            done.append(_expire(each, releases[0]))
            pass_step(Step.BATCHES_EXPIRED, each.before)
    if any(each.table.startswith("silver.") for each in done):
        for release in releases:
            writer = release.writer
            release.backend.drop_expired(writer, _ends(writer.bronze, first_unexpired_batch(writer, "silver")))
    return done


def _expiring(releases: Sequence[Release], now: datetime) -> Iterator[_ExpiringTable]:
    last, retention = min(each.refined_batch for each in releases), releases[0].dataset.pipeline.retention
    if last < 0:
        return
    if retention.silver is not None:
        yield from _expiring_silver(releases, last, now, retention.silver)
    if retention.bronze is not None:
        bronze = releases[0].writer.bronze
        first = first_unexpired_batch(releases[0].writer, "bronze")
        before = _first_younger(bronze, first, last, now, now - retention.bronze)
        yield _ExpiringTable(bronze, expiry_ids(releases[0].writer)["bronze"], first, before, "partition", "offset")


def _expiring_silver(releases: Sequence[Release], last: int, now: datetime, age: timedelta) -> Iterator[_ExpiringTable]:
    """Yield silver and rejected of each release; their age is counted from the last arrival, also if behind."""
    bronze = releases[0].writer.bronze
    arrived = _arrival(bronze, last, now)
    if arrived is None:
        return
    for release in releases:
        writer, bound = release.writer, min(now, arrived) - age
        first = max(first_unexpired_batch(writer, "silver"), 0)
        younger = _first_younger(bronze, first, last, now, bound)
        # A run expires whole.
        before = max(first, int(batch_commit(writer.silver.spec.path, younger).facts["batches"][0]))
        for table in (writer.silver, writer.rejected):
            layer = table.spec.name.partition(".")[0]
            begun = first_unexpired_batch(writer, layer)
            yield _ExpiringTable(table, expiry_ids(writer)[layer], begun, before, "_partition", "_offset")


def _arrival(bronze: Table, batch: int, now: datetime) -> datetime | None:
    """Return when the earliest record of the last batch up to `batch` that has records arrived in Kafka, if one has."""
    upto = commits_descending(bronze.spec.path, batch_commit(bronze.spec.path, batch).version)
    found = next(filter(None, (_arrivals(commit, now) for commit in upto)), None)
    return datetime.fromtimestamp(found[0] / 1000, UTC) if found else None


def _arrivals(commit: Commit, now: datetime) -> tuple[int, int] | None:
    """Return when the first and the last record of a commit's batch arrived, None if there is none."""
    times = commit.facts.get("timestamps")
    return arrivals(times, commit.timestamp_ms, now.timestamp() * 1000) if times else None


def _first_younger(bronze: Table, first: int, last: int, now: datetime, bound: datetime) -> int:
    """Return the first batch from `first` on with a record that arrived at `bound` or later, `last` at most."""
    before = first
    for commit in _batches(bronze, first):
        batch, found = commit.facts["batches"][0], _arrivals(commit, now)
        young = found is not None and found[1] >= bound.timestamp() * 1000
        if young or batch >= last or batch - first >= MOST_BATCHES:
            return min(max(before, first), last)
        before = batch + 1
    return min(before, max(first, last))


def _batches(bronze: Table, first: int) -> Iterator[Commit]:
    version = batch_commit(bronze.spec.path, first).version - 1 if first > 0 else -1
    for commit in commits_following(bronze.spec.path, version):
        metadata = commit.facts
        if "offsets" in metadata and metadata["batches"][0] >= first:
            yield commit


def _ends(bronze: Table, before: int) -> dict[int, int]:
    """Return by partition the offset before which all records are of batches before `before`."""
    if before <= 0:
        return {}
    return {int(p): int(span[0]) for p, span in batch_commit(bronze.spec.path, before).facts["offsets"].items()}


def _expire(each: _ExpiringTable, release: Release) -> Expired:
    table = each.table
    with release.backend.sql() as sql:
        sql.view_table("old", table, table.batch_files(0, each.before - 1))
        counts = _counts(sql, each)
    rows = sum(counts["rows_by_partition"].values())
    metadata = {
        "dataset": release.dataset.name,
        "table": table.spec.name,
        "app_id": each.app_id,
        "expired": [each.first, each.before],
        "offsets_expired": _offsets(release.writer.bronze, each.first, each.before),
        "rows_removed": rows,
        "total": table.rows - rows,
        **counts,
    }
    order = ("_batch_id", each.partition, each.offset)
    release.backend.expire(table, each.before, order, Transaction(each.app_id, each.before), metadata)
    return Expired(table.spec.name, each.first, each.before, rows)


def _counts(sql: Sql, each: _ExpiringTable) -> dict[str, dict[str, int]]:
    """Return the rows that expire by partition, and of rejected also by disposition and reason."""
    sql.view_query("expiring", f"select * from old where _batch_id < {each.before}")
    partition = sql_identifier(each.partition)
    queries = {"rows_by_partition": f"select cast({partition} as string), count(*) from expiring group by {partition}"}
    if each.table.spec.name.startswith("rejected."):
        queries["dispositions"] = "select disposition, count(*) from expiring group by disposition"
        # Each reason once a record, as a run counts them.
        queries["reasons"] = f"select rule, count(*) from (select {sql.rules} as rule from expiring) group by rule"
    return {name: dict(sql.rows(f"{query} order by all")) for name, query in queries.items()}


def _offsets(bronze: Table, first: int, before: int) -> dict[str, list[int]]:
    """Return by partition the offsets [start, end) of batches [first, before)."""
    found: dict[str, list[int]] = {}
    for metadata in (commit.facts for commit in _batches(bronze, first)):
        if metadata["batches"][0] >= before:
            break
        for partition, (start, end) in metadata["offsets"].items():
            if start == end:
                continue
            span = found.setdefault(partition, [start, end])
            found[partition] = [min(span[0], start), max(span[1], end)]
    return found
