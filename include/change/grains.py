"""State of each grain and row of gold, from watermark and backfills: open, closed, corrected or verified.

A row of an open grain is early, a row of a closed grain on time, a row of a corrected grain was on time once. A session
is a grain of its own here. Tables of keys alone have no such states: those of kind latest, derived ones without a time
in their grain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from include.change.kind import refuse_unknown_dataset
from include.declare.dataset import released_dataset
from include.declare.derived_dataset import derived_names, released_derived
from include.declare.event_times import Watermark, watermarks
from include.declare.gold import Gold
from include.declare.grain_range import timed_query
from include.declare.windows import MICROSECOND
from include.ground.delta_log import commits, commits_descending
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier
from include.observe.ledger_reader import Verification, open_reader
from include.read.memory_database import memory_database
from include.read.publication import Publication, PublishedTable, published_tables, read_publication, tables_of
from include.read.published_tables import REFRESH_KEY, TableUnknown, open_dataset, read_refresh_state


def published_watermarks(settings: Settings, dataset: str) -> list[Watermark]:
    """Return the watermark before and after each run of the published release. Raises NothingPublished."""
    publication = read_publication(settings, dataset)
    if not publication.is_derived:
        declared = released_dataset(settings, dataset, publication.release)
        runs, _ = open_reader(settings).event_times(dataset, publication.release)
        return list(watermarks(runs, declared.pipeline.lateness))
    owners = {table: found.dataset for table, found in published_tables(settings).items()}
    below = {table: published_watermarks(settings, owners[table]) for table in publication.sources}
    table = next(iter(tables_of(settings, publication).values()))
    return derived_watermarks(source_batches(table.path), below)


def source_batches(table: Path) -> dict[int, dict[str, int]]:
    """Return by the number of each run of a derived table the last batch of each source, by full name."""
    found = dict[int, dict[str, int]]()
    for commit in commits(table):
        if commit.metadata is not None and {"batches", "sources"} <= set(commit.metadata):
            sources = commit.metadata["sources"].items()
            found[commit.metadata["batches"][1]] = {name: batch for name, (_, batch, _) in sources}
    return found


def derived_watermarks(
    runs: Mapping[int, Mapping[str, int]], below: Mapping[str, Sequence[Watermark]]
) -> list[Watermark]:
    """Return the watermark of each run over these batches of its sources, whose watermarks are `below`."""
    found, reached = list[Watermark](), None
    for number in sorted(runs):
        known = [after_batch(below[table], batch) for table, batch in runs[number].items() if table in below]
        least = None if None in known else min(filter(None, known), default=None)
        before, reached = reached, max(filter(None, (reached, least)), default=None)
        found.append(Watermark(number, before, reached))
    return found


def after_batch(known: Sequence[Watermark], batch: int) -> datetime | None:
    """Return the watermark after a batch; None before the first run."""
    place = bisect_right(known, batch, key=lambda each: each.batch)
    return known[place - 1].after if place else None


LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)


class GrainState(StrEnum):
    """The state of a grain.

    OPEN: its window ends after the watermark, or a later row may join its session. CLOSED: the watermark has passed it.
    CORRECTED: it changed after it closed. VERIFIED: a backfill recomputed it after its last change and found it equal.
    """

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
    gold: tuple[Gold, ...] = ()
    """All tables with windows or sessions, also those without a row."""


@dataclass(frozen=True)
class _PublishedGold:
    """The inputs of the states of a dataset's published gold."""

    tables: Mapping[str, PublishedTable]
    gold: Sequence[Gold]
    known: list[Watermark]
    verified: list[Verification]

    def runs(self, gold: Gold) -> list[Watermark]:
        """Return the watermarks before and after each change of a table: those of its refreshes, not of all runs."""
        table = self.tables[f"gold.{gold.name}"]
        return self.known if gold.refresh_interval is None else as_refreshed(self.known, refreshes(table))


def _published_gold(settings: Settings, dataset: str) -> _PublishedGold:
    if dataset not in derived_names(settings):
        refuse_unknown_dataset(settings, dataset)
    publication = read_publication(settings, dataset)
    tables = tables_of(settings, publication)
    if publication.is_derived:
        declared = _derived_gold(settings, publication, tables)
    else:
        declared = released_dataset(settings, dataset, publication.release).pipeline.gold
    gold = [each for each in declared if each.timed_by is not None]
    _, verified = open_reader(settings).event_times(dataset, publication.release)
    return _PublishedGold(tables, gold, published_watermarks(settings, dataset), list(verified))


def _derived_gold(
    settings: Settings, publication: Publication, tables: Mapping[str, PublishedTable]
) -> tuple[Gold, ...]:
    """Return the tables of a derived dataset with the times of their grains as windows."""
    declared = released_derived(settings, publication.dataset, publication.release).pipeline.gold
    return tuple(timed_query(gold, open_dataset(tables[f"gold.{gold.name}"]).schema) for gold in declared)


def grain_states(settings: Settings, dataset: str) -> GrainStates:
    """Return the states of a dataset's published gold. Raises NothingPublished and the ledger's errors."""
    published = _published_gold(settings, dataset)
    windows: list[GrainWindow] = []
    for gold in published.gold:
        rows = open_dataset(published.tables[f"gold.{gold.name}"])
        windows += windows_of(gold, rows, published.runs(gold), published.verified)
    return GrainStates(
        dataset, published.known[-1].after if published.known else None, tuple(windows), tuple(published.gold)
    )


def row_states(settings: Settings, dataset: str, table: str) -> Any:
    """Return the rows of one gold table with `_state` as an Arrow table: early rows are open, those on time closed.

    Raises NothingPublished, TableUnknown, and the ledger's errors.
    """
    published = _published_gold(settings, dataset)
    gold = next((gold for gold in published.gold if gold.name == table), None)
    if gold is None:
        raise TableUnknown(f"gold.{table}", [f"gold.{each.name}" for each in published.gold])
    rows = open_dataset(published.tables[f"gold.{table}"])
    return rows_with_states(gold, rows, published.runs(gold), published.verified)


def refreshes(table: PublishedTable) -> list[int]:
    """Return the last batch of each refresh of a table with an interval, ascending."""
    commits = (commit.metadata or {} for commit in commits_descending(table.path, table.version))
    return sorted({read_refresh_state(metadata).batch for metadata in commits if REFRESH_KEY in metadata} - {-1})


def as_refreshed(known: Sequence[Watermark], batches: Sequence[int]) -> list[Watermark]:
    """Return the watermarks before and after refreshes up to these batches, from those of all runs."""
    return [
        Watermark(batch, after_batch(known, before), after_batch(known, batch))
        for before, batch in pairwise([-1, *batches])
    ]


def windows_of(gold: Gold, rows: Any, known: list[Watermark], verified: list[Verification]) -> list[GrainWindow]:
    """Return the windows of a table, whose `rows` (Arrow) have its grain and `_last_batch`, by start and state."""
    found = _classified(gold, rows, known, verified, WINDOWS).fetchall()
    return [GrainWindow(gold.name, start, GrainState(state), grains, batch) for start, state, grains, batch in found]


def rows_with_states(gold: Gold, rows: Any, known: list[Watermark], verified: list[Verification]) -> Any:
    """Return the rows of a table (Arrow) with the state of their grain as `_state`, by the grain's columns."""
    return _classified(gold, rows, known, verified, ROWS).to_arrow_table()


def _classified(gold: Gold, rows: Any, known: list[Watermark], verified: list[Verification], sql: str) -> Any:
    """Return the result of a query over `classified`, which has each grain with its state, and `gold`."""
    database = memory_database()
    database.register("gold", rows)
    before = [(b.batch, b.before or LONG_AGO) for b in known]
    _table(database, "runs", "batch bigint, watermark timestamptz", before)
    _table(
        database, "verified", "since timestamptz, until timestamptz, batch bigint",
        [(v.since, v.until, v.batch) for v in verified],
    )  # fmt: skip
    now = (known[-1].after if known else None) or LONG_AGO
    names = [sql_identifier(name) for name in gold.row_columns]
    begin, end = _bounds_sql(gold)
    same = " and ".join(f"gold.{name} is not distinct from classified.{name}" for name in names)
    grain = ", ".join(names)
    return database.sql((CLASSIFIED + sql).format(begin=begin, end=end, grain=grain, same=same), params=[now])


def _bounds_sql(gold: Gold) -> tuple[str, str]:
    """Return the first moment of a row's window or session, and the first at which the watermark has closed it."""
    window, session = gold.window, gold.session
    if window is not None:
        start = sql_identifier(window.name)
        return window.begin_sql(start), window.end_sql(start)
    assert session is not None, f"{gold.table} has no time"
    # A row exactly the gap after the last one still joins the session.
    gap = f"interval '{session.gap // MICROSECOND + 1} microseconds'"
    return f"{sql_identifier(session.start)}::timestamptz", f"{sql_identifier(session.end)}::timestamptz + {gap}"


def _table(database: Any, name: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
    database.execute(f"create table {name} ({columns})")
    if rows:
        database.executemany(f"insert into {name} values ({', '.join('?' * len(rows[0]))})", rows)


# A backfill of a day verifies a part of a local day or of a week: adjacent and overlapping ranges count together, each
# for as long as no row of the grain changed after it. Time is cut where a range begins or ends.
CLASSIFIED = """
with grains as (
    select
        {grain},
        {begin} as _start,
        {end} as _stop,
        max(_last_batch) as _batch
    from gold group by {grain}
),
cuts as (
    select '-infinity'::timestamptz as cut union select since from verified union select until from verified
),
spans as (select cut as low, lead(cut, 1, 'infinity'::timestamptz) over (order by cut) as high from cuts),
parts as (
    select low, high, coalesce(max(v.batch), -1) as batch
    from spans left join verified v on v.since <= low and v.until >= high
    group by all
),
reached as (
    select _start, _stop, min(parts.batch) as _verified
    from (select distinct _start, _stop from grains) join parts on low < _stop and high > _start
    group by all
),
classified as (
    select
        {grain},
        _start,
        _batch,
        case
            when _verified >= g._batch then 'verified'
            when _stop > ? then 'open'
            when r.watermark >= _stop then 'corrected'
            else 'closed'
        end as _state
    from (select * from grains left join reached using (_start, _stop)) g asof left join runs r on g._batch >= r.batch
)
"""
WINDOWS = "select _start, _state, count(*), max(_batch) from classified group by all order by _start, _state"
ROWS = "select gold.*, classified._state from gold join classified on {same} order by {grain}"
