"""The time of the grains of a derived table: its first time or else day, and how long it lasts.

A table without a time in its grain has no range of event time: the whole table is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from include.declare.derived_dataset import DerivedGold, as_query
from include.declare.gold import QueryGold
from include.declare.windows import DAY, MICROSECOND, Domain, Window, WindowSize

UNIT: dict[Domain, timedelta] = {"time": MICROSECOND, "day": DAY}
"""What a length of windows counts."""
MIDNIGHT = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0}


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
    return GrainRange(column, since.astimezone(UTC).date(), _first_day(until))


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
    # sqlglot takes half a second to import.
    from include.declare.touched_ranges import shift_of

    shifts = [shift_of(expressions[column]) for expressions in gold.touched_by.values() if column in expressions]
    longest = max((-shift.least for shift in shifts if shift is not None), default=timedelta())
    length = max(1, -(-longest // UNIT[domain]))
    window = Window(column, WindowSize(f"{length} {domain}", domain, length), column)
    return replace(query, window=window, keys=tuple(name for name in gold.grain if name != column))


def _first_day(moment: datetime) -> date:
    """Return the first day that begins at a moment or later."""
    moment = moment.astimezone(UTC)
    midnight = moment.replace(**MIDNIGHT)  # type: ignore[arg-type]
    return (midnight if midnight == moment else midnight + timedelta(days=1)).date()
