"""The range of a source column in which the rows that touch a grain lie, as far as `touched_by` shows it.

An expression shifts its column: `date_trunc('hour', at)` by up to an hour back, `at + interval 1 hour` by an hour. The
bounds of the files of a source exclude those whose rows cannot touch the grains of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from include.declare.sql_checks import parsed_statements

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
NOTHING = timedelta()
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
        trees = parsed_statements(expression)
    except SqlglotError:
        return None
    return _shift(trees[0]) if len(trees) == 1 else None


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
