"""Selects the rows of silver, and of their windows, that one commit merges into a gold table (adr-0011).

A table that every run refreshes gets the rows of the run. One with an interval gets those of all runs since its last
refresh. One that is refreshed on close gets the windows that the watermark has passed since the last run, whole, and
late rows of the windows that it has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.declare.event_times import FIRST, LAST, WatermarkProgress, watermark_facts
from include.declare.gold import EVERY_RUN, Gold
from include.declare.windows import Session, Start, Window
from include.read.published_tables import REFRESH_KEY, RefreshState, stored_refresh_state
from spark_jobs.layers.gold_files import GoldTable, files_within
from spark_jobs.layers.gold_windows import is_before
from spark_jobs.layers.session_gold import SessionClosing
from spark_jobs.layers.silver_tables import RefineRun, SilverTables
from spark_jobs.tables.batches import commit_of, metadata_of
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table


@dataclass(frozen=True)
class SilverPart:
    """Rows of silver: those of batches [first, last] in `files`, and of their windows those in [since, until).

    None bounds nothing.
    """

    files: Sequence[DataFile]
    first: int
    last: int
    column: str = ""
    since: Start | None = None
    until: Start | None = None

    def rows(self, target: GoldTable, silver: Table) -> DataFrame:
        """Return the rows of silver."""
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
        """The metadata of a commit with this update."""
        return {REFRESH_KEY: self.refreshed.as_json()} if self.refreshed else {}


def refresh_state(target: GoldTable) -> RefreshState:
    """Return how far a table is refreshed; irrelevant for a table that every run refreshes."""
    if target.gold.refresh == EVERY_RUN:
        return RefreshState()
    return stored_refresh_state(target.table.spec.path, target.table.version)


def update_of_run(target: GoldTable, writer: SilverTables, run: RefineRun, now: float | None) -> GoldUpdate:
    """Return what a run merges; `now`: seconds since 1970, None while no interval is over."""
    if target.gold.closes:
        return _closing_update(target, writer, run)
    interval = target.gold.refresh_interval
    if interval is None:
        return GoldUpdate(_batches(writer.silver, run.first, run.last))
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
    assert window is not None, f"gold.{target.gold.name} has no window"
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
        spans = [(_begin(window, before), new.watermark)]
        closed = SilverPart(files_within(silver, window.column, spans), 0, run.last, window.name, before, after)
    return GoldUpdate(late, closed, new)


def _begin(window: Window, start: Start | None) -> datetime:
    return FIRST if start is None else window.begin(start)


def _advanced(old: RefreshState, writer: SilverTables, run: RefineRun) -> RefreshState:
    """Return the state after a run, with the watermark from the event times in silver's commit."""
    commit = commit_of(writer.silver, writer.app_id("silver"), run.last)
    progress = WatermarkProgress(writer.dataset.pipeline.lateness, old.batch, old.watermark, dict(old.event_times))
    reached = progress.advance(run.last, json.dumps(watermark_facts(metadata_of(commit))))
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
