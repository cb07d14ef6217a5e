"""Published tables: the list with rows and bytes, and one table with chart, first rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier
from include.read.publication import PublishedTable
from include.read.published_tables import PinnedTables, PublishedVersionGone, layer_order, pinned
from include.serve.chart_shapes import BarChart
from include.serve.column_view import ColumnLine, column_lines
from include.serve.display_values import UNKNOWN, size, whole
from include.serve.query_view import QueryRows, limited_rows
from include.serve.table_chart import ROWS, gold_axes, quoted, table_chart

PREVIEW_ROWS = 50
KEPT = 64


@dataclass(frozen=True)
class TableLine:
    """A table in the list."""

    name: str
    dataset: str
    rows: str
    size: str
    files: str
    version: str
    batch: str
    problem: str = ""


@dataclass(frozen=True)
class PublishedTableView:
    """One table: `measures` are what its chart can show, `measure` what it shows.

    `has_watermark`: its rows are of windows or sessions, which the watermark closes.
    """

    line: TableLine
    release: str
    preview: QueryRows
    chart: BarChart | None
    measures: Sequence[str]
    measure: str
    columns: Sequence[ColumnLine]
    has_watermark: bool


class VersionMemory:
    """Caches results computed from table versions, which never change."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Any] = {}
        self._lock = Lock()

    def get(self, table: PublishedTable, what: str, compute: Callable[[], Any]) -> Any:
        """Return the cached result of this version; the first call computes it."""
        key = (str(table.path), table.version, what)
        if key not in self._known:
            found = compute()
            with self._lock:
                while len(self._known) >= KEPT:
                    del self._known[next(iter(self._known))]
                self._known[key] = found
        return self._known[key]


def tables_view(settings: Settings, memory: VersionMemory) -> list[TableLine]:
    """Return all published tables, in the order in which a record meets them."""
    reading = pinned(settings)
    return [table_line(reading, name, memory) for name in sorted(reading.tables, key=layer_order)]


def table_line(reading: PinnedTables, name: str, memory: VersionMemory) -> TableLine:
    """Return a table as a line; one that cannot be opened has dashes. Raises TableUnknown."""
    table = reading.table(name)
    try:
        facts = memory.get(table, "facts", lambda: reading.facts(name))
        numbers, problem = (whole(facts.rows), size(facts.size), whole(facts.files)), ""
    except PublishedVersionGone as error:
        numbers, problem = (UNKNOWN, UNKNOWN, UNKNOWN), error.what
    return TableLine(name, table.dataset, *numbers, whole(table.version), whole(table.batch), problem)


def table_view(settings: Settings, name: str, measure: str, memory: VersionMemory) -> PublishedTableView:
    """Return the page of a table. Raises TableUnknown, PublishedVersionGone, QueryTimedOut."""
    reading = pinned(settings)
    table, line = reading.table(name), table_line(reading, name, memory)
    axes = memory.get(table, "axes", lambda: gold_axes(settings, reading, table))
    measures = [ROWS, *axes.measures] if axes else []
    chosen = measure if measure in measures else next(iter(measures[1:]), ROWS)
    sql = _preview_sql(name, axes.time if axes else "")
    preview = memory.get(table, "preview", lambda: limited_rows(reading, sql, PREVIEW_ROWS))
    chart = memory.get(table, f"chart {chosen}", lambda: table_chart(reading, name, axes, chosen)) if axes else None
    columns = memory.get(table, "columns", lambda: column_lines(settings, reading, table, preview))
    has_watermark = axes is not None and axes.is_closed_by_watermark
    return PublishedTableView(line, table.release, preview, chart, measures, chosen, columns, has_watermark)


def _preview_sql(name: str, time: str) -> str:
    order = f" order by {sql_identifier(time)} desc nulls last" if time else ""
    return f"select * from {quoted(name)}{order} limit {PREVIEW_ROWS + 1}"
