"""What one commit brings into a gold table: which rows of silver, and which of their windows (adr-0011).

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

from include.catalog.event_times import FIRST, LAST
from include.catalog.gold_refresh import EVERY_RUN, HOLDS, Closing, Held, closing, held_of
from include.catalog.pipeline import Gold, closes, gold_session, gold_window, refresh_interval, timed_by
from include.catalog.watermark import WatermarkProgress
from include.catalog.windows import Session, Start, Window, window_begin
from include.clients.delta_log import newest_metadata
from spark_jobs.layers.gold_files import GoldTable, files_within
from spark_jobs.layers.gold_windows import is_before
from spark_jobs.layers.refine_run import RefineRun
from spark_jobs.layers.silver_tables import SilverTables
from spark_jobs.storage.data_files import DataFile
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.table_commits import commit_of, metadata_of


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
        """Return of rows with their windows those that count."""
        if self.since is not None:
            windowed = windowed.where(~is_before(self.column, self.since))
        if self.until is not None:
            windowed = windowed.where(is_before(self.column, self.until))
        return windowed


@dataclass(frozen=True)
class GoldUpdate:
    """The `late` rows of grains that the table may have already, rows of `closed` windows that it cannot have, and what
    it `holds` afterwards; None for a table without a refresh of its own.

    Of sessions on close `late` are all rows of the run, and `closed` has the rows of earlier runs whose sessions were
    open; `sessions` says which of them are closed now.
    """

    late: SilverPart | None = None
    closed: SilverPart | None = None
    holds: Held | None = None
    sessions: Closing | None = None

    @property
    def parts(self) -> list[SilverPart]:
        """Those of both that have rows."""
        return [part for part in (self.late, self.closed) if part is not None and part.files]

    def with_open_sessions(self, since: datetime | None) -> GoldUpdate:
        """Return it with the earliest start of a session that is open; without one none begins before those to come."""
        assert self.holds is not None
        assert self.sessions is not None
        bound = since.astimezone(UTC) if since else self.sessions.bound
        return replace(self, holds=replace(self.holds, since=bound if isinstance(bound, datetime) else None))

    @property
    def metadata(self) -> dict[str, Any]:
        """What a commit says of it."""
        return {HOLDS: self.holds.as_json()} if self.holds else {}


def held_by(target: GoldTable) -> Held:
    """Return what a table holds; nothing that matters when every run refreshes it."""
    if target.gold.refresh == EVERY_RUN:
        return Held()
    return held_of(newest_metadata(target.table.spec.path, target.table.version, HOLDS))


def update_of_run(target: GoldTable, writer: SilverTables, run: RefineRun, now: float | None) -> GoldUpdate:
    """Return what a run brings; `now`: seconds since 1970, None while no interval is over."""
    if closes(target.gold):
        return _closing_update(target, writer, run)
    interval = refresh_interval(target.gold)
    if interval is None:
        return GoldUpdate(_batches(writer.silver, run.first, run.last))
    held = held_by(target)
    return refresh_update(writer.silver, held, run.last, now) if is_due(held, interval, now) else GoldUpdate(holds=held)


def is_due(held: Held, interval: timedelta, now: float | None) -> bool:
    """Whether the interval since the last refresh is over; a refresh in the future is one of a clock that was wrong."""
    return now is not None and not held.at <= now < held.at + interval.total_seconds()


def refresh_update(silver: Table, held: Held, last: int, now: float | None) -> GoldUpdate:
    """Return the rows of all batches up to `last` that a table does not hold."""
    return GoldUpdate(_batches(silver, held.batch + 1, last), holds=Held(last, now or held.at))


def _batches(silver: Table, first: int, last: int) -> SilverPart:
    return SilverPart(silver.batch_files(first, last), first, last)


def _closing_update(target: GoldTable, writer: SilverTables, run: RefineRun) -> GoldUpdate:
    held = held_by(target)
    holds, session, window = _advanced(held, writer, run), gold_session(target.gold), gold_window(target.gold)
    if session is not None:
        return _closing_sessions(session, writer.silver, run, held, holds)
    assert window is not None, f"gold.{target.gold.name} has no window"
    return _closing_windows(window, writer.silver, run, held, holds)


def _closing_sessions(session: Session, silver: Table, run: RefineRun, held: Held, holds: Held) -> GoldUpdate:
    late, after = _batches(silver, *run.batches), closing(session, holds.watermark)
    if not late.files and after == closing(session, held.watermark):
        return GoldUpdate(holds=replace(holds, since=held.since))
    earlier = files_within(silver, session.column, [(held.since or FIRST, LAST)])
    return GoldUpdate(late, SilverPart(earlier, 0, run.first - 1), replace(holds, since=held.since), after)


def _closing_windows(window: Window, silver: Table, run: RefineRun, held: Held, holds: Held) -> GoldUpdate:
    before, after = closing(window, held.watermark).bound, closing(window, holds.watermark).bound
    late = closed = None
    if held.watermark is not None and before is not None:
        files = [f for f in silver.batch_files(*run.batches) if f.overlaps(window.column, FIRST, held.watermark)]
        late = SilverPart(files, *run.batches, window.name, until=before)
    if holds.watermark is not None and before != after:
        spans = [(_begin(window, before), holds.watermark)]
        closed = SilverPart(files_within(silver, window.column, spans), 0, run.last, window.name, before, after)
    return GoldUpdate(late, closed, holds)


def _begin(window: Window, start: Start | None) -> datetime:
    return FIRST if start is None else window_begin(window, start)


def _advanced(held: Held, writer: SilverTables, run: RefineRun) -> Held:
    """Return what a table holds with the watermark after a run, whose event times stand in silver's commit."""
    commit = commit_of(writer.silver, writer.app_id("silver"), run.last)
    progress = WatermarkProgress(writer.dataset.pipeline.lateness, held.batch, held.watermark, dict(held.event_times))
    reached = progress.advance(run.last, json.dumps(metadata_of(commit)["event_time_max"]))
    return Held(run.last, watermark=reached.after, event_times=progress.max_event_times)


def held_silver(gold: Gold, held: Held, silver: DataFrame) -> DataFrame:
    """Return of silver's rows those that a table holds; of windows on close see `held_rows`."""
    return silver if refresh_interval(gold) is None else silver.where(F.col("_batch_id") <= held.batch)


def held_rows(gold: Gold, held: Held, rows: DataFrame) -> DataFrame:
    """Return of a table's rows those that the watermark has passed, if the table waits for it."""
    timed = timed_by(gold)
    if timed is None or not closes(gold):
        return rows
    closed = closing(timed, held.watermark)
    return rows.where(is_before(closed.column, closed.bound))
