"""I5 since the last balanced audit: grains that newer rows of silver touch, and a proof that all others are the same.

There is no result, and so a check of the whole table, unless the other rows are those that were verified (adr-0003).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import nlargest
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from include.audit.files import READ_ERRORS, beginning, latest_of
from include.audit.gold import (
    GoldCheck,
    GoldResult,
    Recomputation,
    columns_of,
    everywhere_sql,
    gold_check,
    grained_sql,
    latest_candidates_sql,
    newest_sql,
    recompute_sql,
)
from include.audit.measures import merged_sql
from include.audit.verified_history import AuditScope, VerifiedGold, is_there, row_digest
from include.declare.event_times import FIRST, LAST, after, before
from include.declare.gold import Gold
from include.declare.windows import MICROSECOND, SESSION_NUMBER, Session, Window
from include.ground.delta_log import add_actions
from include.ground.sql_quoting import same_sql, sql_identifier
from include.ground.stored_path import arrow_files
from include.read.memory_database import view_rows
from include.read.published_tables import PinnedTables, RefreshState, open_table


@dataclass(frozen=True)
class GoldFiles:
    """Paths below the table's folder: `kept` in both versions, `added` since, `removed` since.

    `actions`: the files of the published version, by path. `schema`: the columns of these files.
    """

    folder: Path
    schema: pa.Schema
    actions: Mapping[str, Mapping[str, Any]]
    kept: frozenset[str]
    added: frozenset[str]
    removed: frozenset[str]

    @property
    def rows_published(self) -> int:
        return sum(action["num_records"] or 0 for action in self.actions.values())

    def rows(self, paths: frozenset[str]) -> Any:
        if not paths:
            return self.schema.empty_table()
        return ds.dataset(sorted(paths), self.schema, format="parquet", filesystem=arrow_files(self.folder))

    def near(self, columns: tuple[str, str], spans: Sequence[tuple[Any, Any]]) -> frozenset[str]:
        """Return the kept files that may have rows of which the two columns lie in one of ascending `spans`."""
        low, high = columns
        if any(None in span for span in spans):
            return self.kept
        return frozenset(
            path
            for path in self.kept
            if _may_overlap(self.actions[path].get(f"min.{low}"), self.actions[path].get(f"max.{high}"), spans)
        )


def gold_files(tables: PinnedTables, scope: AuditScope, name: str) -> GoldFiles | None:
    """Return the files of a gold table as published and as verified; None when a replaced file is gone."""
    if scope.verified is None or scope.reached is None:
        return None
    table, before, now = tables.table(name), scope.verified.files.get(name, {}), scope.reached.files.get(name, {})
    kept = scope.unchanged(name)
    added, removed = frozenset(now) - kept, frozenset(before) - kept
    if removed & added or not all(is_there(table.path / path, before[path]) for path in removed):
        return None
    delta = open_table(table)
    partitions, declared = delta.metadata().partition_columns, pa.schema(delta.schema().to_arrow())
    schema = pa.schema([field for field in declared if field.name not in partitions])
    actions = {unquote(action["path"]): action for action in add_actions(delta).to_pylist()}
    return GoldFiles(table.path, schema, actions, kept, added, removed)


def _may_overlap(low: Any, high: Any, spans: Sequence[tuple[Any, Any]]) -> bool:
    if low is None or high is None:
        return True
    try:
        at = bisect_left(spans, beginning(low), key=lambda span: beginning(span[1]))
        return at < len(spans) and bool(beginning(spans[at][0]) <= latest_of(high))
    except TypeError:
        return True


Span = tuple[Any, Any]
"""The least and the greatest value."""
MOST_VALUES = 10_000
"""Starts of windows or keys by which files are chosen; of more, the least and the greatest."""
MOST_SPANS = 16
"""Ranges of time by which silver is read: a filter of many is slow, and one range would read all between two."""
MICROS = pa.timestamp("us", tz="UTC")


def _create_touched(database: Any, gold: Gold) -> None:
    session, rows = gold.session, grained_sql(gold, columns_of(database, "silver"))
    found = f"select distinct {listed(gold.grain_columns)} from grained"
    if session is not None:
        bounds, numbered = session.bounds_sql(), session.numbered_sql(gold.keys, "grained")
        keys = listed(gold.keys)
        found = f"select {keys}, {', '.join(bounds)} from ({numbered}) group by {keys}, {SESSION_NUMBER}"
    database.execute(f"create or replace temp table touched as {rows} {found}")


def add_closed(database: Any, gold: Gold, window: Window, old: datetime | None, new: datetime | None) -> None:
    """Add the windows of the view `silver` that a watermark closed which moved from `old` to `new`."""
    now = f"{window.closing(new).sql} and not {window.closing(old).sql}"
    rows, grain = grained_sql(gold, columns_of(database, "silver")), listed(gold.grain_columns)
    database.execute(f"insert into touched {rows} select distinct {grain} from grained where {now}")


def closed_span(window: Window, old: datetime | None, new: datetime) -> Span:
    """Return the times of the rows of the windows that a watermark closed which moved from `old` to `new`."""
    first, last = window.closing(old).bound, window.closing(new).bound
    low = FIRST if first is None else window.begin(first)
    return low, LAST if last is None else window.end(last)


def add_near_sessions(database: Any, session: Session, keys: Sequence[str]) -> None:
    """Add the sessions of the view `rows_before` that a row of `touched` may join."""
    gap, start, end = f"interval '{session.gap // MICROSECOND} microseconds'", *_bound_columns(session)
    near = f"o.{start} <= t.{end} + {gap} and o.{end} >= t.{start} - {gap} and {same_sql(keys, 'o', 't')}"
    columns = listed([*keys, session.start, session.end])
    database.execute(f"insert into touched select {columns} from rows_before as o semi join touched as t on {near}")


def touches_sql(gold: Gold, row: str, touched: str) -> str:
    """Return the condition that a row of gold is of a touched grain, or overlaps a touched interval."""
    condition, session = same_sql(gold.grain_columns, row, touched), gold.session
    if session is None:
        return condition
    start, end = _bound_columns(session)
    return f"{condition} and {row}.{start} <= {touched}.{end} and {row}.{end} >= {touched}.{start}"


def touching_sql(gold: Gold, rows: str, silver: Sequence[str]) -> str:
    """Return the query of the rows of silver in `rows` that may belong to touched grains: by key, and by session."""
    session = gold.session
    same = [same_sql(gold.keys, "s", "t")] if gold.keys else []
    columns = list(gold.keys)
    if session is not None:
        same.append(
            f"s.{sql_identifier(session.column)} between {' and '.join(f't.{c}' for c in _bound_columns(session))}"
        )
        columns += [session.start, session.end]
    if not same:
        return f"select * from {rows}"
    touched = f"(select distinct {listed(columns)} from touched)"
    found = f"select s.* from {rows} as s semi join {touched} as t on {' and '.join(same)}"
    return f"{found} union all select * from {rows} where {everywhere_sql(gold, silver)}"


def event_spans(database: Any, gold: Gold) -> tuple[str, list[Span]] | None:
    """Return the column of silver that gives touched grains their time, and its ranges; None if only keys name them."""
    window, timed = gold.window, gold.timed_by
    if timed is None:
        return None
    _, found = row_spans(database, gold)
    if (None, None) in found:
        return None
    if window is not None:
        found = [(window.begin(first), window.end(last)) for first, last in found]
    return timed.column, merged_spans(found)


def row_spans(database: Any, gold: Gold) -> tuple[tuple[str, str], list[Span]]:
    """Return the columns of gold with the least and greatest value of a row, and the ranges that touched rows have.

    A grain without a value gives a range of nulls.
    """
    session, column = gold.session, gold.grain_columns[0]
    low, high = (session.start, session.end) if session else (column, column)
    first, last = sql_identifier(low), sql_identifier(high)
    found = f"select distinct {first}, {last} from touched"
    if database.execute(f"select count(*) from ({found})").fetchall()[0][0] > MOST_VALUES:
        found = (
            f"select min({first}), max({last}) from touched union select null, null from touched where {first} is null"
        )
    spans = [(one, other) for one, other in database.execute(f"{found} order by all").fetchall()]
    return (low, high), merged_spans(spans) if session else spans


def merged_spans(spans: Iterable[Span]) -> list[Span]:
    """Return ranges of time that cover these, ascending and apart: at most MOST_SPANS, over the widest gaps."""
    found = list(_joined(sorted(spans)))
    gaps = nlargest(MOST_SPANS - 1, ((high[0] - low[1], n) for n, (low, high) in enumerate(pairwise(found), 1)))
    cuts = [0, *sorted(n for _, n in gaps), len(found)]
    return [(found[first][0], found[last - 1][1]) for first, last in pairwise(cuts) if last > first]


def _joined(spans: Sequence[Span]) -> Iterator[Span]:
    last: Span | None = None
    for low, high in spans:
        if last is not None and low <= last[1]:
            last = (last[0], max(last[1], high))
            continue
        if last is not None:
            yield last
        last = (low, high)
    if last is not None:
        yield last


def within(column: str, spans: Sequence[Span]) -> Any:
    """Return the Arrow condition that a column is in one of these ranges of time, by which files are left out."""
    condition = pc.scalar(False)
    for low, high in spans:
        condition |= (pc.field(column) >= pa.scalar(low, MICROS)) & (pc.field(column) <= pa.scalar(high, MICROS))
    return condition


def _bound_columns(session: Session) -> tuple[str, str]:
    return sql_identifier(session.start), sql_identifier(session.end)


def listed(columns: Iterable[str]) -> str:
    """Return columns as a list of quoted names."""
    return ", ".join(map(sql_identifier, columns))


@dataclass(frozen=True)
class ChangedGold:
    """A gold table as published, and how far it was verified `before`; `silver`: the rows that it is computed from."""

    gold: Gold
    files: GoldFiles
    silver: Any
    before: VerifiedGold
    refreshed: RefreshState

    @property
    def newer(self) -> Any:
        """The rows of silver that came since. A row without a batch is never verified."""
        return self.silver.filter((pc.field("_batch_id") > self.before.batch) | pc.field("_batch_id").is_null())


def changed_gold(
    tables: PinnedTables, scope: AuditScope, gold: Gold, silver: Any, refreshed: RefreshState
) -> ChangedGold | None:
    """Return what an audit needs to check only what changed in a table; None when it has to check all of it."""
    name = gold.table
    before = None if scope.verified is None else scope.verified.gold.get(name)
    if before is None or gold.over is not None or (gold.closes and gold.session is not None):
        # The verified table lacks the sessions that were open then; newer rows join them as well.
        return None
    if _has_reopened(gold, before, refreshed):
        return None
    files = gold_files(tables, scope, name)
    return None if files is None else ChangedGold(gold, files, silver, before, refreshed)


def _has_reopened(gold: Gold, before: VerifiedGold, refreshed: RefreshState) -> bool:
    """Whether a table with `on_close` is published with an earlier watermark than it was verified with."""
    if not gold.closes or before.watermark is None:
        return False
    return refreshed.watermark is None or refreshed.watermark < before.watermark


def changed_gold_check(database: Any, changed: ChangedGold, first: int) -> GoldResult | None:
    """Check the touched grains as `gold_check` does, and that no other row changed; None when one did.

    None also after any error: a replaced file may be deleted meanwhile. The check of the whole table then decides.
    """
    with suppress(*READ_ERRORS):
        return _check_touched(database, changed, first)
    return None


def _check_touched(database: Any, changed: ChangedGold, first: int) -> GoldResult | None:
    gold, files = changed.gold, changed.files
    _find_touched(database, changed)
    if _has_row_of_each_grain(database, gold):
        return None
    if _digest(database, changed, files.removed) != _digest(database, changed, files.added):
        return None
    published = _touched_part(database, changed, files.added | files.near(*row_spans(database, gold)))
    database.execute(f"create or replace temp table published_part as {published}")
    database.execute("drop view if exists published; create temp view published as from published_part")
    touched = database.execute("select count(*) from published_part").fetchall()[0][0]
    earlier = files.rows_published - touched
    rows = _merged(database, changed) if is_merged(gold, changed.before) else _recomputed(database, changed)
    found = gold_check(database, gold, changed.refreshed, first, Recomputation(rows, earlier))
    return replace(found, check=found.check and _with_earlier(found.check, changed.before))


def _has_row_of_each_grain(database: Any, gold: Gold) -> bool:
    """Whether a row of the view `silver` belongs to each grain."""
    condition = everywhere_sql(gold, columns_of(database, "silver"))
    return bool(database.execute(f"select count(*) from silver where {condition}").fetchall()[0][0])


def _with_earlier(check: GoldCheck, before: VerifiedGold) -> GoldCheck:
    """Return the check of touched grains with what was found earlier about the others.

    After an expiry everything is compared, so the rows that could not be compared are those of the verified table.
    """
    others = before.expired - check.expired
    return replace(
        check,
        rows=check.rows - others,
        earlier=check.earlier - others,
        expired=before.expired,
        decided=check.decided and before.decided,
    )


def is_merged(gold: Gold, before: VerifiedGold) -> bool:
    """Whether verified rows and newer rows of silver give a table's rows, without older rows of silver."""
    if gold.deciding_columns:
        return before.decided
    return bool(gold.measures) and gold.timed_by is None and merged_sql(gold.measures) is not None


def _find_touched(database: Any, changed: ChangedGold) -> None:
    gold, window, session = changed.gold, changed.gold.window, changed.gold.session
    view_rows(database, "silver", changed.newer)
    _create_touched(database, gold)
    old, new = changed.before.watermark, changed.refreshed.watermark
    if gold.closes and window is not None and new is not None:
        view_rows(database, "silver", changed.silver.filter(within(window.column, [closed_span(window, old, new)])))
        add_closed(database, gold, window, old, new)
    if session is not None:
        columns, spans = row_spans(database, gold)
        near = [(before(low, session.gap), after(high, session.gap)) for low, high in spans]
        files = changed.files
        view_rows(database, "rows_before", files.rows(files.removed | files.near(columns, merged_spans(near))))
        add_near_sessions(database, session, gold.keys)


def _digest(database: Any, changed: ChangedGold, paths: frozenset[str]) -> tuple[int, int]:
    """Return the number of rows in files of gold that are of no touched grain, and the sum of their hashes."""
    if not paths:
        return 0, 0
    view_rows(database, "other_rows", changed.files.rows(paths))
    untouched = f"anti join touched as t on {touches_sql(changed.gold, 'o', 't')}"
    return row_digest(database, f"other_rows as o {untouched}", changed.files.schema.names)


def _touched_part(database: Any, changed: ChangedGold, paths: frozenset[str]) -> str:
    view_rows(database, "near_rows", changed.files.rows(paths))
    return f"select p.* from near_rows as p semi join touched as t on {touches_sql(changed.gold, 'p', 't')}"


def _recomputed(database: Any, changed: ChangedGold) -> str:
    gold, spans = changed.gold, event_spans(database, changed.gold)
    view_rows(database, "near_silver", changed.silver if spans is None else changed.silver.filter(within(*spans)))
    database.execute("drop view if exists silver")
    touching = touching_sql(gold, "near_silver", columns_of(database, "near_silver"))
    database.execute(f"create temp view silver as {touching}")
    computed = recompute_sql(gold, columns_of(database, "silver"))
    return f"select r.* from ({computed}) as r semi join touched as t on {touches_sql(gold, 'r', 't')}"


def _merged(database: Any, changed: ChangedGold) -> str:
    gold, files = changed.gold, changed.files
    view_rows(database, "silver", changed.newer)
    before = _touched_part(database, changed, files.removed | files.near(*row_spans(database, gold)))
    database.execute(f"create or replace temp table touched_before as {before}")
    silver = columns_of(database, "silver")
    if gold.deciding_columns:
        candidates = latest_candidates_sql(gold, silver)
        names = listed(columns_of(database, candidates))
        return newest_sql(gold, f"select {names} from touched_before union all {candidates}")
    names, newer, keys = listed(each.name for each in gold.measures), recompute_sql(gold, silver), listed(gold.keys)
    both = f"select {keys}, {names} from touched_before union all by name select {keys}, {names} from ({newer})"
    return f"select {keys}, {', '.join(merged_sql(gold.measures) or ())} from ({both}) group by {keys}"
