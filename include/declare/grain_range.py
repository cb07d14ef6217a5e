"""The time of the grains of a derived table: its first time or else day, and how long it lasts.

A table without a time in its grain has no range of event time: the whole table is meant.

The range of a source column in which the rows that touch a grain lie, as far as `touched_by` shows it.

An expression shifts its column: `date_trunc('hour', at)` by up to an hour back, `at + interval 1 hour` by an hour. The
bounds of the files of a source exclude those whose rows cannot touch the grains of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlglot import exp

from include.declare.derived_dataset import DerivedGold, as_query
from include.declare.gold import QueryGold
from include.declare.sql_checks import NotSql, parsed_expression
from include.declare.windows import DAY, MICROSECOND, NOTHING, Domain, Window, WindowSize

UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
    "month": timedelta(days=31),
    "quarter": timedelta(days=92),
    "year": timedelta(days=366),
}
"""The longest span of each unit."""
FAR = (datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 1, 1, tzinfo=UTC))
"""Beyond these, a shifted moment may have no value in Python."""


@dataclass(frozen=True)
class Shift:
    """An expression's values lie between its column's value plus `least` and plus `most`."""

    column: str
    least: timedelta = NOTHING
    most: timedelta = NOTHING

    def source_range(self, low: Any, high: Any) -> tuple[Any, Any] | None:
        """Return the least and the greatest value of the column whose rows can have a value in [low, high].

        None when these values have no such range.
        """
        if self.least == self.most == NOTHING:
            return low, high
        found = [_moment(value) for value in (low, high)]
        first, last = found
        if first is None or last is None or not (FAR[0] < first and last < FAR[1]):
            return None
        return first - self.most, last - self.least


def shift_of(expression: str) -> Shift | None:
    """Return how an expression of `touched_by` shifts one column; None when that is not known."""
    try:
        return _shift(parsed_expression(expression))
    except NotSql:
        return None


def _shift(node: Any) -> Shift | None:
    match node:
        case exp.Paren():
            return _shift(node.this)
        case exp.Column():
            return None if node.table else Shift(node.name)
        case exp.TimestampTrunc() | exp.DateTrunc():
            return _truncated(_shift(node.this), UNITS.get(_unit(node)))
        case exp.TsOrDsToDate():
            return None if node.args.get("format") else _truncated(_shift(node.this), UNITS["day"])
        case exp.Cast() | exp.TryCast():
            return _cast(node)
        case exp.Add() | exp.Sub():
            return _interval_shift(node)
        case exp.Array():
            return _union([_shift(each) for each in node.expressions])
        case exp.GenerateSeries():
            return _union([_shift(node.args["start"]), _shift(node.args["end"])])
    return None


def _truncated(shift: Shift | None, unit: timedelta | None) -> Shift | None:
    return Shift(shift.column, shift.least - unit, shift.most) if shift and unit else None


def _cast(node: Any) -> Shift | None:
    shift = _shift(node.this)
    if node.to.this == exp.DataType.Type.DATE:
        return _truncated(shift, UNITS["day"])
    return shift if node.to.this in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ) else None


def _interval_shift(node: Any) -> Shift | None:
    """Return the shift of a moment plus or minus a constant interval."""
    shift, interval = _shift(node.this), node.expression
    if shift is None or not isinstance(interval, exp.Interval) or not isinstance(interval.this, exp.Literal):
        return None
    unit = UNITS.get(_unit(interval))
    if unit is None or not interval.this.name.isdigit() or len(interval.this.name) > 6:
        return None
    # A month is 28 to 31 days, a year 365 or 366.
    longest = int(interval.this.name) * unit
    shortest = longest if unit <= UNITS["week"] else longest * 28 / 31 - UNITS["day"]
    least, most = (shortest, longest) if isinstance(node, exp.Add) else (-longest, -shortest)
    return Shift(shift.column, shift.least + least, shift.most + most)


def _unit(node: Any) -> str:
    unit = node.args.get("unit")
    return "" if unit is None else str(unit.name).lower().removesuffix("s")


def _union(shifts: Sequence[Shift | None]) -> Shift | None:
    known = [shift for shift in shifts if shift is not None]
    if not known or len(known) < len(shifts) or len({shift.column for shift in known}) > 1:
        return None
    return Shift(known[0].column, min(each.least for each in known), max(each.most for each in known))


def _moment(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime(value.year, value.month, value.day, tzinfo=UTC) if isinstance(value, date) else None


UNIT: dict[Domain, timedelta] = {"time": MICROSECOND, "day": DAY}
"""What a length of windows counts."""


@dataclass(frozen=True)
class GrainRange:
    """The grains whose `column` is in [low, high)."""

    column: str
    low: datetime | date
    high: datetime | date


def grain_range(grain: Sequence[str], schema: Any, since: datetime, until: datetime) -> GrainRange | None:
    """Return the grains of a table with this Arrow schema in [since, until): by the grain's first time, or else day.

    A day (UTC) lies in it when a part of it does. None when the grain has neither.
    """
    found = grain_time(grain, schema)
    if found is None:
        return None
    column, domain = found
    if domain == "time":
        return GrainRange(column, since, until)
    return GrainRange(column, since.astimezone(UTC).date(), (until.astimezone(UTC) + (DAY - MICROSECOND)).date())


def grain_time(grain: Sequence[str], schema: Any) -> tuple[str, Domain] | None:
    """Return the grain's first time in a table with this Arrow schema, or else day, and which it is; None without."""
    import pyarrow.types as types

    kinds = {name: schema.field(name).type for name in grain}
    times: list[tuple[str, Domain]] = [(n, "time") for n, kind in kinds.items() if types.is_timestamp(kind) and kind.tz]
    days: list[tuple[str, Domain]] = [(name, "day") for name, kind in kinds.items() if types.is_date(kind)]
    return next(iter(times + days), None)


def timed_query(gold: DerivedGold, schema: Any) -> QueryGold:
    """Return a derived table with this Arrow schema as one of kind `query` whose windows are its grain's times.

    A time lasts as long as `touched_by` truncates to, at least a moment, a day at least a day.
    """
    query, found = as_query(gold), grain_time(gold.grain, schema)
    if found is None:
        return query
    column, domain = found
    shifts = [shift_of(expressions[column]) for expressions in gold.touched_by.values() if column in expressions]
    longest = max((-shift.least for shift in shifts if shift is not None), default=NOTHING)
    length = max(1, -(-longest // UNIT[domain]))
    window = Window(column, WindowSize(f"{length} {domain}", domain, length), column)
    return replace(query, window=window, keys=tuple(name for name in gold.grain if name != column))
