"""The chart of a gold table: rows or a measure over time, or by the first key of a table without a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from include.declare.dataset import IsDerived, ReleaseUnknown
from include.declare.derived_dataset import released_derived
from include.declare.gold import Gold
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.read.publication import PublishedTable
from include.read.published_tables import PinnedTables
from include.serve.chart_shapes import BarChart, bar_chart
from include.serve.dataset_view import release_of
from include.serve.display_values import short
from include.serve.query_view import limited_rows

MOST_COLUMNS = 120
ADDED = ("count", "count_if", "sum")
UNITS = ("minute", "hour", "day", "month", "year")
LABEL_LENGTHS = {"year": 4, "month": 7, "day": 10, "hour": 13, "minute": 16}
"""Characters of an ISO time that tell one unit from the next."""
ROWS = "rows"


@dataclass(frozen=True)
class GoldAxes:
    """What a gold table can be charted by: its column of time, "" without one; its first key; measures that add up."""

    time: str
    key: str
    measures: Sequence[str] = ()
    is_closed_by_watermark: bool = False


def gold_axes(settings: Settings, reading: PinnedTables, table: PublishedTable) -> GoldAxes | None:
    """Return the axes of a gold table as its release declares it; None for other tables, or without a snapshot."""
    layer, _, own = table.name.partition(".")
    if layer != "gold":
        return None
    with suppress(ReleaseUnknown):
        try:
            declared = release_of(settings, table.dataset, table.release)
            return next((_axes(gold) for gold in declared.pipeline.gold if gold.name == own), None)
        except IsDerived:
            derived = released_derived(settings, table.dataset, table.release)
            grains = (gold.grain for gold in derived.pipeline.gold if gold.name == own)
            return next((_derived_axes(grain, reading, table.name) for grain in grains), None)
    return None


def _axes(gold: Gold) -> GoldAxes:
    window, session = gold.window, gold.session
    time = window.name if window else session.start if session else ""
    added = [each.name for each in gold.measures if each.function in ADDED]
    return GoldAxes(time, gold.grain_columns[0], added, bool(time))


def _derived_axes(grain: Sequence[str], reading: PinnedTables, name: str) -> GoldAxes:
    import pyarrow.types as types

    schema = reading.arrow(name).schema
    times = (column for column in grain if types.is_date(kind := schema.field(column).type) or types.is_timestamp(kind))
    return GoldAxes(next(times, ""), grain[0])


def table_chart(reading: PinnedTables, name: str, axes: GoldAxes, measure: str) -> BarChart | None:
    """Return the chart of ROWS or a measure; None for an empty table. Raises as `limited_rows`."""
    value = "count(*)" if measure == ROWS else f"sum({sql_identifier(measure)})"
    if axes.time:
        unit = _unit(reading, name, axes.time)
        when = f"date_trunc({sql_literal(unit)}, {sql_identifier(axes.time)})"
        ordered = f"select {when} as at, {value} as total from {quoted(name)} group by 1 order by 1 desc nulls last"
        rows = [(at[: LABEL_LENGTHS[unit]], n) for at, n in _pairs(reading, f"{ordered} limit {MOST_COLUMNS}")[::-1]]
        title = f"{measure} by {unit} ({axes.time})"
    else:
        key = sql_identifier(axes.key)
        most = f"select {key} as at, {value} as total from {quoted(name)} group by 1 order by 2 desc, 1 limit 40"
        rows, title = _pairs(reading, most), f"{measure} by {axes.key}, the most"
    labels, counts = [label for label, _ in rows], [{measure: total} for _, total in rows]
    return bar_chart(title, labels, counts, short) if rows else None


def quoted(name: str) -> str:
    """Return a table's full name, quoted for SQL."""
    layer, _, own = name.partition(".")
    return f"{layer}.{sql_identifier(own)}"


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
