"""The grains of a gold table that rows of silver touch, as a table `touched`, and where their rows are.

For sessions `touched` has intervals of time by keys instead: the sessions of the new rows alone, and the verified
sessions near them. Each session that a new row joins or makes consists of the rows of silver within these intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from heapq import nlargest
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from include.audit.gold_findings import columns_of
from include.audit.gold_recomputation import grained_sql
from include.declare.event_times import FIRST, LAST
from include.declare.gold_refresh import closing
from include.declare.pipeline import Gold, gold_session, gold_window, grain_columns, timed_by
from include.declare.window_sql import SESSION_NUMBER, numbered_sessions_sql, session_bounds_sql
from include.declare.windows import MICROSECOND, Session, Window, window_begin, window_end
from include.ground.sql_quoting import same_sql, sql_identifier

Span = tuple[Any, Any]
"""The least and the greatest value."""
MOST_VALUES = 10_000
"""Starts of windows or keys by which files are chosen; of more, the least and the greatest."""
MOST_SPANS = 16
"""Ranges of time by which silver is read: a filter of many is slow, and one range would read all between two."""
MICROS = pa.timestamp("us", tz="UTC")


def create_touched(database: Any, gold: Gold) -> None:
    """Create the table `touched` of the grains of the rows of the view `silver`; of sessions those of these rows."""
    session, rows = gold_session(gold), grained_sql(gold, columns_of(database, "silver"))
    found = f"select distinct {listed(grain_columns(gold))} from grained"
    if session is not None:
        bounds, numbered = session_bounds_sql(session), numbered_sessions_sql(session, gold.keys, "grained")
        keys = listed(gold.keys)
        found = f"select {keys}, {', '.join(bounds)} from ({numbered}) group by {keys}, {SESSION_NUMBER}"
    database.execute(f"create or replace temp table touched as {rows} {found}")


def add_closed(database: Any, gold: Gold, window: Window, old: datetime | None, new: datetime | None) -> None:
    """Add the windows of the view `silver` that a watermark closed which moved from `old` to `new`."""
    now = f"{closing(window, new).sql} and not {closing(window, old).sql}"
    rows, grain = grained_sql(gold, columns_of(database, "silver")), listed(grain_columns(gold))
    database.execute(f"insert into touched {rows} select distinct {grain} from grained where {now}")


def closed_span(window: Window, old: datetime | None, new: datetime) -> Span:
    """Return the times of the rows of the windows that a watermark closed which moved from `old` to `new`."""
    first, last = closing(window, old).bound, closing(window, new).bound
    low = FIRST if first is None else window_begin(window, first)
    return low, LAST if last is None else window_end(window, last)


def add_near_sessions(database: Any, session: Session, keys: Sequence[str]) -> None:
    """Add the sessions of the view `rows_before` that a row of `touched` may join."""
    gap, start, end = f"interval '{session.gap // MICROSECOND} microseconds'", *bound_columns(session)
    near = f"o.{start} <= t.{end} + {gap} and o.{end} >= t.{start} - {gap} and {same_sql(keys, 'o', 't')}"
    columns = listed([*keys, session.start, session.end])
    database.execute(f"insert into touched select {columns} from rows_before as o semi join touched as t on {near}")


def touches_sql(gold: Gold, row: str, touched: str) -> str:
    """Return the condition that a row of gold is of a touched grain, or overlaps a touched interval."""
    condition, session = same_sql(grain_columns(gold), row, touched), gold_session(gold)
    if session is None:
        return condition
    start, end = bound_columns(session)
    return f"{condition} and {row}.{start} <= {touched}.{end} and {row}.{end} >= {touched}.{start}"


def touching_sql(gold: Gold, rows: str) -> str:
    """Return the query of the rows of silver in `rows` that may belong to touched grains: by key, and by session."""
    session = gold_session(gold)
    same = [same_sql(gold.keys, "s", "t")] if gold.keys else []
    columns = list(gold.keys)
    if session is not None:
        same.append(
            f"s.{sql_identifier(session.column)} between {' and '.join(f't.{c}' for c in bound_columns(session))}"
        )
        columns += [session.start, session.end]
    if not same:
        return f"select * from {rows}"
    touched = f"(select distinct {listed(columns)} from touched)"
    return f"select s.* from {rows} as s semi join {touched} as t on {' and '.join(same)}"


def event_spans(database: Any, gold: Gold) -> tuple[str, list[Span]] | None:
    """Return the column of silver that gives touched grains their time, and its ranges; None if only keys name them."""
    window, timed = gold_window(gold), timed_by(gold)
    if timed is None:
        return None
    _, found = row_spans(database, gold)
    if (None, None) in found:
        return None
    if window is not None:
        found = [(window_begin(window, first), window_end(window, last)) for first, last in found]
    return timed.column, merged_spans(found)


def row_spans(database: Any, gold: Gold) -> tuple[tuple[str, str], list[Span]]:
    """Return the columns of gold with the least and greatest value of a row, and the ranges that touched rows have.

    A grain without a value gives a range of nulls.
    """
    session, column = gold_session(gold), grain_columns(gold)[0]
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
    """Yield ascending ranges, those that meet as one."""
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


def bound_columns(session: Session) -> tuple[str, str]:
    """Return the quoted columns of a session's first and last time."""
    return sql_identifier(session.start), sql_identifier(session.end)


def listed(columns: Iterable[str]) -> str:
    """Return columns as a list of quoted names."""
    return ", ".join(map(sql_identifier, columns))
