"""Which grains of a derived table lie in a range of event time: those whose time or day does.

A table without a time in its grain has no such range: the whole table is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

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
    import pyarrow.types as types

    kinds = {name: schema.field(name).type for name in grain}
    times = [name for name, kind in kinds.items() if types.is_timestamp(kind) and kind.tz]
    days = [name for name, kind in kinds.items() if types.is_date(kind)]
    if times:
        return GrainRange(times[0], since, until)
    return GrainRange(days[0], since.astimezone(UTC).date(), _first_day(until)) if days else None


def _first_day(moment: datetime) -> date:
    """Return the first day that begins at a moment or later."""
    moment = moment.astimezone(UTC)
    midnight = moment.replace(**MIDNIGHT)  # type: ignore[arg-type]
    return (midnight if midnight == moment else midnight + timedelta(days=1)).date()
