"""State of each grain of gold, from watermark and backfills: open, closed, corrected or verified.

Reads: published gold, the ledger's runs and verifications. Tables without a window (latest) have no such states.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from include.catalog.dataset import released_dataset
from include.catalog.pipeline import Gold, gold_window, grain_columns
from include.catalog.window_sql import begin_sql, end_sql
from include.ledger.ledger_reader import Verification, open_reader
from include.ledger.watermark import Watermark, watermarks
from include.planning.plan_preconditions import refuse_unknown_dataset
from include.reading.memory_database import memory_database
from include.reading.publication import read_publication, tables_of
from include.reading.published_tables import open_dataset
from include.settings import Settings
from include.sql_quoting import sql_identifier

LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)


class GrainState(StrEnum):
    """OPEN: its window is not behind the watermark; CLOSED: it is; CORRECTED: it changed after that; VERIFIED: a
    backfill recomputed it since its last change and found it equal."""

    OPEN = "open"
    CLOSED = "closed"
    CORRECTED = "corrected"
    VERIFIED = "verified"


@dataclass(frozen=True)
class GrainWindow:
    """The grains of one window of a table that are in one state: `batch` is the last one that changed any of them."""

    table: str
    start: datetime
    state: GrainState
    grains: int
    batch: int


@dataclass(frozen=True)
class GrainStates:
    """A dataset's current watermark, and every window of its gold tables."""

    dataset: str
    watermark: datetime | None
    windows: tuple[GrainWindow, ...]


def grain_states(settings: Settings, dataset: str) -> GrainStates:
    """Return the states of a dataset's published gold. Raises NothingPublished and the ledger's errors."""
    refuse_unknown_dataset(settings, dataset)
    publication = read_publication(settings, dataset)
    declared = released_dataset(settings, dataset, publication.release)
    runs, verified = open_reader(settings).event_times(dataset, publication.release)
    known = list(watermarks(runs, declared.pipeline.lateness))
    tables = tables_of(settings, publication)
    windows: list[GrainWindow] = []
    for gold in declared.pipeline.gold:
        if gold_window(gold) is not None:
            rows = open_dataset(tables[f"gold.{gold.name}"])
            windows += windows_of(gold, rows, known, verified)
    return GrainStates(dataset, known[-1].after if known else None, tuple(windows))


def windows_of(gold: Gold, rows: Any, known: list[Watermark], verified: list[Verification]) -> list[GrainWindow]:
    """Return the windows of a table, whose `rows` (Arrow) have its grain and `_last_batch`, by start and state."""
    window = gold_window(gold)
    assert window is not None, f"gold.{gold.name} has no window"
    database = memory_database()
    database.register("gold", rows)
    before = [(b.batch, b.before or LONG_AGO) for b in known]
    _table(database, "runs", "batch bigint, watermark timestamptz", before)
    _table(
        database, "verified", "since timestamptz, until timestamptz, batch bigint",
        [(v.since, v.until, v.batch) for v in verified],
    )  # fmt: skip
    now = (known[-1].after if known else None) or LONG_AGO
    start = sql_identifier(window.name)
    grain = ", ".join(map(sql_identifier, grain_columns(gold)))
    sql = STATES.format(begin=begin_sql(window, start), end=end_sql(window, start), grain=grain)
    found = database.execute(sql, [now]).fetchall()
    database.close()
    return [GrainWindow(gold.name, start, GrainState(state), grains, batch) for start, state, grains, batch in found]


def _table(database: Any, name: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
    database.execute(f"create table {name} ({columns})")
    if rows:
        database.executemany(f"insert into {name} values ({', '.join('?' * len(rows[0]))})", rows)


STATES = """
with grains as (
    select
        {begin} as start,
        {end} as stop,
        max(_last_batch) as batch
    from gold group by {grain}
),
classified as (
    select
        g.start,
        g.batch,
        case
            when exists (
                from verified v where v.since <= g.start and g.stop <= v.until and v.batch >= g.batch
            ) then 'verified'
            when g.stop > ? then 'open'
            when r.watermark >= g.stop then 'corrected'
            else 'closed'
        end as state
    from grains g asof left join runs r on g.batch >= r.batch
)
select start, state, count(*), max(batch) from classified group by all order by start, state
"""
