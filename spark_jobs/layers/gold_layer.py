"""Gold: the rows of silver that one commit merges into a table, and their merge (docs/architecture.md §4, step 5).

After batch b a table holds what its declaration gives over silver up to b, independently of the batches. A merge is one
commit, idempotent by (app id, b); it reads no silver of grains that it does not touch.

A table that every run refreshes gets the rows of the run. One with an interval gets those of all runs since its last
refresh. One that is refreshed on close gets the windows that the watermark has passed since the last run, whole, and
late rows of the windows that it has (adr-0011).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.dataset import Dataset
from include.declare.derived_dataset import DerivedDataset
from include.declare.event_times import FIRST, LAST, WatermarkProgress, watermark_facts
from include.declare.gold import EVERY_RUN, Gold
from include.declare.windows import Session, Start, Window
from include.ground.errors import Terminal
from include.ground.paths import gold_path
from include.ground.settings import Settings
from include.ground.stored_path import arrow_source
from include.read.published_tables import REFRESH_KEY, RefreshState, stored_refresh_state
from spark_jobs.layers.gold_files import GoldTable, files_within, history_of, rows_of, silver_within, touched_spans
from spark_jobs.layers.gold_rows import Sources, gold_rows
from spark_jobs.layers.gold_windows import OPEN_SINCE, SessionClosing, closed_sessions, is_before, rows_outside
from spark_jobs.layers.silver_code import record_error
from spark_jobs.layers.silver_tables import MONTH, RefineRun, SilverTables
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table, partitioned_schema
from spark_jobs.tables.failpoints import Step, pass_step


@dataclass(frozen=True)
class SilverPart:
    """Rows of silver: batches [first, last] in `files`, windows in [since, until) of them. None bounds nothing."""

    files: Sequence[DataFile]
    first: int
    last: int
    column: str = ""
    since: Start | None = None
    until: Start | None = None

    def rows(self, target: GoldTable, silver: Table) -> DataFrame:
        return silver.read_batches(target.spark, self.files, self.first, self.last)

    def within(self, windowed: DataFrame) -> DataFrame:
        """Return the rows that count, of rows with their windows."""
        if self.since is not None:
            windowed = windowed.where(~is_before(self.column, self.since))
        if self.until is not None:
            windowed = windowed.where(is_before(self.column, self.until))
        return windowed


@dataclass(frozen=True)
class GoldUpdate:
    """`late`: rows of grains that the table may have already. `closed`: rows of windows that have just closed, which it
    cannot have. `refreshed`: how far the table is refreshed afterwards, None for one without a refresh of its own.

    Of sessions on close `late` are all rows of the run, and `closed` has the rows of earlier runs whose sessions were
    open; `sessions` says which of them are closed now.
    """

    late: SilverPart | None = None
    closed: SilverPart | None = None
    refreshed: RefreshState | None = None
    sessions: SessionClosing | None = None

    @property
    def parts(self) -> list[SilverPart]:
        """The parts that have rows: late ones, then those of windows that closed."""
        return [part for part in (self.late, self.closed) if part is not None and part.files]

    def with_open_sessions(self, since: datetime | None) -> GoldUpdate:
        """Return the update with the earliest start of an open session; without one, no later session starts before the
        bound up to which sessions are closed.
        """
        assert self.refreshed is not None
        assert self.sessions is not None
        bound = since.astimezone(UTC) if since else self.sessions.closed.bound
        return replace(self, refreshed=replace(self.refreshed, since=bound if isinstance(bound, datetime) else None))

    @property
    def metadata(self) -> dict[str, Any]:
        return {REFRESH_KEY: self.refreshed.as_json()} if self.refreshed else {}


def refresh_state(target: GoldTable) -> RefreshState:
    """Return how far a table is refreshed; irrelevant for a table that every run refreshes."""
    if target.gold.refresh == EVERY_RUN:
        return RefreshState()
    return stored_refresh_state(target.table.spec.path, target.table.version)


def update_of_run(target: GoldTable, writer: SilverTables, run: RefineRun, now: float | None) -> GoldUpdate:
    """Return what a run merges; `now`: seconds since 1970, None while no interval is over."""
    if target.gold.refresh == EVERY_RUN:
        return GoldUpdate(_batches(writer.silver, run.first, run.last))
    interval = target.gold.refresh_interval
    if interval is None:
        return _closing_update(target, writer, run)
    refreshed = refresh_state(target)
    if not is_due(refreshed, interval, now):
        return GoldUpdate(refreshed=refreshed)
    return refresh_update(writer.silver, refreshed, run.last, now)


def is_due(refreshed: RefreshState, interval: timedelta, now: float | None) -> bool:
    """Whether the interval since the last refresh is over; a refresh in the future is one of a clock that was wrong."""
    return now is not None and not refreshed.at <= now < refreshed.at + interval.total_seconds()


def refresh_update(silver: Table, refreshed: RefreshState, last: int, now: float | None) -> GoldUpdate:
    """Return the rows of all batches up to `last` that a table does not hold."""
    return GoldUpdate(_batches(silver, refreshed.batch + 1, last), refreshed=RefreshState(last, now or refreshed.at))


def _batches(silver: Table, first: int, last: int) -> SilverPart:
    return SilverPart(silver.batch_files(first, last), first, last)


def _closing_update(target: GoldTable, writer: SilverTables, run: RefineRun) -> GoldUpdate:
    old = refresh_state(target)
    new, session, window = _advanced(old, writer, run), target.gold.session, target.gold.window
    if session is not None:
        return _closing_sessions(session, writer.silver, run, old, new)
    assert window is not None, f"{target.gold.table} has no window"
    return _closing_windows(window, writer.silver, run, old, new)


def _closing_sessions(
    session: Session, silver: Table, run: RefineRun, old: RefreshState, new: RefreshState
) -> GoldUpdate:
    late, after = _batches(silver, *run.batches), session.closing(new.watermark)
    # Spark would leave out the whole plan of what is empty, and with it the observation of open sessions.
    if after.bound is None or (not late.files and after == session.closing(old.watermark)):
        return GoldUpdate(refreshed=replace(new, since=old.since))
    earlier = files_within(silver, session.column, [(old.since or FIRST, LAST)])
    # Rows before it in the same files are of sessions in files of the table that are not read.
    opened = SilverPart(earlier, 0, run.first - 1, session.column, since=old.since)
    return GoldUpdate(late, opened, replace(new, since=old.since), SessionClosing(session, after))


def _closing_windows(window: Window, silver: Table, run: RefineRun, old: RefreshState, new: RefreshState) -> GoldUpdate:
    before, after = window.closing(old.watermark).bound, window.closing(new.watermark).bound
    late = closed = None
    if old.watermark is not None and before is not None:
        files = [f for f in silver.batch_files(*run.batches) if f.overlaps(window.column, FIRST, old.watermark)]
        late = SilverPart(files, *run.batches, window.name, until=before)
    if new.watermark is not None and before != after:
        spans = [(FIRST if before is None else window.begin(before), new.watermark)]
        closed = SilverPart(files_within(silver, window.column, spans), 0, run.last, window.name, before, after)
    return GoldUpdate(late, closed, new)


def _advanced(old: RefreshState, writer: SilverTables, run: RefineRun) -> RefreshState:
    """Return the state after a run, with the watermark from the event times in silver's commit."""
    commit = writer.silver.commit_of(writer.app_ids["silver"], run.last)
    progress = WatermarkProgress(writer.dataset.pipeline.lateness, old.batch, old.watermark, dict(old.event_times))
    reached = progress.advance(run.last, json.dumps(watermark_facts(commit.facts)))
    return RefreshState(run.last, watermark=reached.after, event_times=progress.max_event_times)


def refreshed_silver(gold: Gold, refreshed: RefreshState, silver: DataFrame) -> DataFrame:
    """Return the rows of silver that a table has merged; for windows on close see `refreshed_rows`."""
    return silver if gold.refresh_interval is None else silver.where(F.col("_batch_id") <= refreshed.batch)


def refreshed_rows(gold: Gold, refreshed: RefreshState, rows: DataFrame) -> DataFrame:
    """Return the rows of a table that the watermark has passed, or all when the table does not wait for it."""
    timed = gold.timed_by
    if timed is None or not gold.closes:
        return rows
    closed = timed.closing(refreshed.watermark)
    return rows.where(is_before(closed.column, closed.bound))


# Planning is one thread's work, so two tables at a time keep the second core busy.
GOLD_AT_A_TIME = 2


class GoldFailed(Terminal):
    """An expression or the query of a gold table fails on a row of silver, and no grain may omit a row."""

    def __init__(self, dataset: str, table: str, error: str) -> None:
        super().__init__(
            f"{table} fails on rows of silver, {error}; nothing was published",
            f"correct its declaration, then: headrace release run --dataset {dataset}",
        )
        self.table = table


def gold_spec(settings: Settings, dataset: Dataset | DerivedDataset, gold: Gold, columns: StructType) -> TableSpec:
    """Return what `gold.<table>` is, from the columns that Spark computes."""
    schema = partitioned_schema(columns, MONTH)
    bounded = tuple(name for name in gold.row_columns if schema[name].dataType.simpleString() != "binary")
    path = gold_path(settings, dataset.name, dataset.release, gold.name)
    return TableSpec(gold.table, path, schema, MONTH, (*bounded, "_last_batch"), settings.is_power_safe)


@contextmanager
def failure_named(dataset: str, table: Table) -> Iterator[None]:
    """Raise GoldFailed for an error that a row of silver causes."""
    try:
        yield
    except Exception as error:
        text = record_error(error)
        if text is None:
            raise
        raise GoldFailed(dataset, table.spec.name, text) from error


def write_gold(
    target: GoldTable, rows: DataFrame, folder: str, old: Sequence[DataFile], batch: int
) -> tuple[list[DataFile], int]:
    """Write the files that take the place of `old`; return them and how many of their rows `batch` changed."""
    added = target.table.write(rows.withColumn(MONTH, F.expr(target.gold.partition_expression)), folder)
    changed = sum(_changed_rows(target.table, file, batch) for file in added)
    return target.cut_files(added, old, changed, batch), changed


@dataclass(frozen=True)
class GoldCommit:
    """The commit of an update to a table, in the transaction of an app id whose version is the last batch."""

    target: GoldTable
    writer: SilverTables
    update: GoldUpdate
    app_id: str
    batch: int
    facts: Mapping[str, Any]

    @property
    def late(self) -> Sequence[DataFile]:
        return self.update.late.files if self.update.late else ()

    @property
    def folder(self) -> str:
        """The folder of the merge; never one of a run, whose files are committed, for a refresh."""
        return f"{'b' if self.app_id == self.target.app_id else 'refresh-'}{self.batch:08d}-{self.facts['epoch']}"

    def metadata(self, rows: int, grains: int, replaced: int) -> dict[str, Any]:
        """Return what the commit says: so many `rows`, of so many changed `grains`, take the place of the replaced."""
        table = self.target.table
        counts = {"rows": rows, "grains": grains, "total": table.rows - replaced + rows}
        return {**self.facts, "table": table.spec.name, "app_id": self.app_id, **self.update.metadata, **counts}

    def old_files(self, touched: list[DataFile]) -> list[DataFile]:
        """Return the files that may have grains of late rows, among `touched`, or open sessions."""
        target, update = self.target, self.update
        found = target.near_sessions(self.late, touched) if self.late else []
        if update.sessions is None:
            return found
        open_since = update.refreshed.since if update.refreshed else None
        recent = files_within(target.table, update.sessions.session.end, [(open_since or FIRST, LAST)])
        return list({file.path: file for file in (*found, *recent)}.values())

    def sources(self, old: DataFrame) -> Sources:
        """Return the rows of silver that the update merges into the `old` rows of the table."""
        gold, update = self.target.gold, self.update
        sources = [(part.rows(self.target, self.writer.silver), part.within) for part in update.parts]
        if update.sessions is not None and update.closed in update.parts:
            earlier, within = sources[-1]
            sources[-1] = rows_outside(update.sessions.session, gold.keys, earlier, old), within
        return sources

    def merged(self, old: DataFrame, sources: Sources) -> DataFrame:
        """Return the `old` rows of the table with the update's sources merged into them."""
        gold, silver = self.target.gold, self.writer.silver

        def whole() -> DataFrame:
            fresh = [file for part in self.update.parts for file in part.files]
            files = silver_within(gold, silver, touched_spans(gold, fresh), history_of(gold, fresh))
            return silver.read_batches(self.target.spark, files, 0, self.batch)

        return gold_rows(gold).merged(old, sources, whole, self.batch)

    def with_open_sessions(self, since: Callable[[], datetime | None]) -> GoldCommit:
        """Return the commit with the earliest start of an open session, `since`, if the table closes sessions."""
        return self if self.update.sessions is None else replace(self, update=self.update.with_open_sessions(since()))

    def of_files(self, added: Sequence[DataFile] = (), old: Sequence[DataFile] = (), grains: int = 0) -> None:
        """Commit the files of the merge, which has changed so many `grains`."""
        metadata = self.metadata(rows_of(added), grains, rows_of(old))
        pass_step(Step.GOLD_WRITTEN, self.batch)
        self.target.table.commit(self.app_id, self.batch, metadata, added, old)
        pass_step(Step.GOLD_COMMITTED, self.batch)


def _changed_rows(table: Table, file: DataFile, batch: int) -> int:
    source = arrow_source(table.spec.path / file.path)
    column = pq.read_table(source, columns=["_last_batch"], partitioning=None)["_last_batch"]
    return int(pc.sum(pc.equal(column, batch)).as_py() or 0)


def merge_by_spark(commit: GoldCommit) -> None:
    """Merge the rows of an update that has some by Spark's expressions; this process cuts and commits the files."""
    target, sessions, opened = commit.target, commit.update.sessions, Observation()
    grains = target.grains_of_silver(commit.writer.silver, commit.late)
    old = commit.old_files(target.touched_files(grains) if commit.late else [])
    before = target.table.read(target.spark, old)
    rows = commit.merged(before, commit.sources(before))
    if sessions is not None:
        rows = closed_sessions(sessions, rows, opened)
    added, changed = write_gold(target, rows, commit.folder, old, commit.batch)
    commit.with_open_sessions(lambda: opened.get[OPEN_SINCE]).of_files(added, old, changed)
