"""The SQL box: one reading statement over the published tables, with limits of time, memory and rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from include.errors import HeadraceError, Transient
from include.reading.plain_values import is_numeric, text_value
from include.reading.published_sql import QueryLimits, limited_query
from include.reading.published_tables import PinnedTables, layer_order, pinned
from include.settings import Settings

LIMITS = QueryLimits(seconds=10.0)
MOST_ROWS, MOST_TEXT, MOST_SQL = 500, 1_000, 20_000
AT_A_TIME, WAIT_SECONDS = 2, 5.0
_running = threading.BoundedSemaphore(AT_A_TIME)


class QueriesBusy(Transient):
    """Other queries of the console have not ended."""

    def __init__(self) -> None:
        super().__init__(f"{AT_A_TIME} other queries are running; this one was not started", "try again in a moment")


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
    """The SQL box: the text, its rows or the problem with its remedy, and the tables that exist."""

    sql: str
    found: QueryRows | None
    problem: str
    remedy: str
    tables: Sequence[str]


def query_view(settings: Settings, sql: str) -> QueryView:
    """Return the box, with the result of the text unless it is empty."""
    reading = pinned(settings)
    tables = sorted(reading.tables, key=layer_order)
    if not sql.strip():
        return QueryView(sql, None, "", "", tables)
    if len(sql) > MOST_SQL:
        return QueryView("", None, f"the query has more than {MOST_SQL:,} characters; it was not run", "", tables)
    try:
        return QueryView(sql, limited_rows(reading, sql), "", "", tables)
    except HeadraceError as error:
        return QueryView(sql, None, error.what, error.remedy, tables)


def limited_rows(reading: PinnedTables, sql: str, most: int = MOST_ROWS) -> QueryRows:
    """Run one statement within the limits and return its first rows. Raises as `limited_query`, and QueriesBusy."""
    if not _running.acquire(timeout=WAIT_SECONDS):
        raise QueriesBusy
    try:
        began = time.monotonic()
        with limited_query(reading, sql, LIMITS) as found:
            rows = [[_cell(value) for value in row] for row in islice(found.rows, most + 1)]
            numbers = [n for n, kind in enumerate(found.types) if is_numeric(kind)]
            types = [str(kind) for kind in found.types]
            return QueryRows(found.columns, types, rows[:most], numbers, len(rows) > most, time.monotonic() - began)
    finally:
        _running.release()


def _cell(value: Any) -> str:
    text = text_value(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
