"""The SQL box: one reading statement over the published tables, with limits of time, memory and rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.read.limited_query import QueriesBusy, QueryLimits, limited_query
from include.read.plain_values import is_numeric, text_value
from include.read.published_tables import PinnedTables, layer_order, pinned

LIMITS = QueryLimits(seconds=10.0)
MOST_ROWS, MOST_TEXT, MOST_SQL = 500, 1_000, 20_000


@dataclass(frozen=True)
class QueryRows:
    """The first rows of a result as text: `types` are Arrow's, `numbers` the places of columns that are numeric."""

    columns: Sequence[str]
    types: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int]
    is_cut: bool
    seconds: float


@dataclass(frozen=True)
class QueryView:
    """The SQL box: the text, its rows or the problem with its remedy, the tables that exist, the status of HTTP."""

    sql: str
    found: QueryRows | None
    problem: str
    remedy: str
    tables: Sequence[str]
    status: int = 200


def query_view(settings: Settings, sql: str, who: str = "") -> QueryView:
    """Return the box, with the result of the text unless it is empty; `who` asks."""
    reading = pinned(settings)
    tables = sorted(reading.tables, key=layer_order)
    if not sql.strip():
        return QueryView(sql, None, "", "", tables)
    if len(sql) > MOST_SQL:
        problem = f"the query has more than {MOST_SQL:,} characters; it was not run"
        return QueryView("", None, problem, "", tables, status=400)
    try:
        return QueryView(sql, limited_rows(reading, sql, who=who), "", "", tables)
    except QueriesBusy as error:
        return QueryView(sql, None, error.what, error.remedy, tables, status=429 if error.is_own else 503)
    except HeadraceError as error:
        return QueryView(sql, None, error.what, error.remedy, tables, status=400)


def limited_rows(reading: PinnedTables, sql: str, most: int = MOST_ROWS, who: str = "") -> QueryRows:
    """Run one statement within the limits and return its first rows. Raises as `limited_query`.

    `who` is whose statement it is, "" for those of the console's own pages.
    """
    began = time.monotonic()
    found = limited_query(reading, sql, replace(LIMITS, rows=most), who)
    rows = [[_cell(value) for value in row] for row in found.rows]
    numbers = [n for n, kind in enumerate(found.types) if is_numeric(kind)]
    types = [str(kind) for kind in found.types]
    return QueryRows(found.columns, types, rows, numbers, found.is_cut, time.monotonic() - began)


def _cell(value: Any) -> str:
    text = text_value(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
