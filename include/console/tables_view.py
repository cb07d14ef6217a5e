"""Published tables: the list with rows and bytes, and one table with its first rows and a chart over its windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from include.catalog.dataset import IsDerived, ReleaseUnknown
from include.catalog.pipeline import AdditiveGold, Gold, gold_session, gold_window, grain_columns
from include.console.chart_shapes import BarChart, bar_chart
from include.console.dataset_view import release_of
from include.console.display_values import UNKNOWN, short, size, whole
from include.console.query_view import QueryRows, limited_rows
from include.reading.publication import PublishedTable
from include.reading.published_tables import PinnedTables, PublishedVersionGone, layer_order, pinned
from include.settings import Settings
from include.sql_quoting import sql_identifier, sql_literal

PREVIEW_ROWS, MOST_COLUMNS = 50, 120
ADDED = ("count", "count_if", "sum")
UNITS = ("minute", "hour", "day", "month", "year")
LABEL_LENGTHS = {"year": 4, "month": 7, "day": 10, "hour": 13, "minute": 16}
"""Characters of an ISO time that tell one unit from the next."""
ROWS = "rows"
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

    `has_windows`: its rows are of windows, which the watermark closes.
    """

    line: TableLine
    release: str
    preview: QueryRows
    chart: BarChart | None
    measures: Sequence[str]
    measure: str
    has_windows: bool


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
    gold = _declared_gold(settings, table)
    measures = [ROWS, *_added_measures(gold)] if gold else []
    chosen = measure if measure in measures else next(iter(measures[1:]), ROWS)
    preview = memory.get(table, "preview", lambda: limited_rows(reading, _preview_sql(name, gold), PREVIEW_ROWS))
    chart = memory.get(table, f"chart {chosen}", lambda: _chart(reading, name, gold, chosen)) if gold else None
    return PublishedTableView(line, table.release, preview, chart, measures, chosen, _time_column(gold) != "")


def _declared_gold(settings: Settings, table: PublishedTable) -> Gold | None:
    layer, _, own = table.name.partition(".")
    if layer != "gold":
        return None
    try:
        declared = release_of(settings, table.dataset, table.release)
    except (IsDerived, ReleaseUnknown):
        return None
    return next((gold for gold in declared.pipeline.gold if gold.name == own), None)


def _added_measures(gold: Gold) -> list[str]:
    return [each.name for each in gold.measures if each.function in ADDED] if isinstance(gold, AdditiveGold) else []


def quoted(name: str) -> str:
    """Return a table's full name, quoted for SQL."""
    layer, _, own = name.partition(".")
    return f"{layer}.{sql_identifier(own)}"


def _preview_sql(name: str, gold: Gold | None) -> str:
    column = _time_column(gold)
    order = f" order by {sql_identifier(column)} desc nulls last" if column else ""
    return f"select * from {quoted(name)}{order} limit {PREVIEW_ROWS + 1}"


def _time_column(gold: Gold | None) -> str:
    if gold is None:
        return ""
    window, session = gold_window(gold), gold_session(gold)
    return window.name if window else session.start if session else ""


def _chart(reading: PinnedTables, name: str, gold: Gold, measure: str) -> BarChart | None:
    value = "count(*)" if measure == ROWS else f"sum({sql_identifier(measure)})"
    if column := _time_column(gold):
        unit = _unit(reading, name, column)
        when = f"date_trunc({sql_literal(unit)}, {sql_identifier(column)})"
        ordered = f"select {when} as at, {value} as total from {quoted(name)} group by 1 order by 1 desc nulls last"
        rows = [(at[: LABEL_LENGTHS[unit]], n) for at, n in _pairs(reading, f"{ordered} limit {MOST_COLUMNS}")[::-1]]
        title = f"{measure} by {unit} ({column})"
    else:
        key = sql_identifier(grain_columns(gold)[0])
        most = f"select {key} as at, {value} as total from {quoted(name)} group by 1 order by 2 desc, 1 limit 40"
        rows, title = _pairs(reading, most), f"{measure} by {grain_columns(gold)[0]}, the most"
    labels, counts = [label for label, _ in rows], [{measure: total} for _, total in rows]
    return bar_chart(title, labels, counts, short) if rows else None


def _unit(reading: PinnedTables, name: str, column: str) -> str:
    """Return the smallest unit of time that gives no more columns than a chart has."""
    quoted_column = sql_identifier(column)
    counts = ", ".join(
        f"date_diff({sql_literal(unit)}, min({quoted_column}), max({quoted_column}))" for unit in UNITS[:-1]
    )
    (found,) = limited_rows(reading, f"select {counts} from {quoted(name)}").rows
    fitting = (unit for unit, count in zip(UNITS, found, strict=False) if not count or int(count) < MOST_COLUMNS)
    return next(fitting, UNITS[-1])


def _pairs(reading: PinnedTables, sql: str) -> list[tuple[str, float]]:
    return [(label, float(total or 0)) for label, total in limited_rows(reading, sql).rows]
