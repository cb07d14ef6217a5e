"""Tumbling windows of event time, in UTC: an hour is a timestamp, a day and a month are dates."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.catalog.event_times import LAST, after
from include.catalog.pipeline import Window


def window_start(window: Window) -> Column:
    """Return the start of the window in which a row lies."""
    if window.unit == "hour":
        return F.date_trunc("hour", window.column)
    day = F.to_date(window.column)
    return day if window.unit == "day" else F.trunc(day, "month")


def window_of(window: Window, moment: datetime) -> datetime | date:
    """Return the start of the window in which an aware `moment` lies: what `window_start` gives for it."""
    utc = moment.astimezone(UTC)
    if window.unit == "hour":
        return utc.replace(minute=0, second=0, microsecond=0)
    return utc.date() if window.unit == "day" else utc.date().replace(day=1)


def window_end(window: Window, start: datetime | date) -> datetime:
    """Return the first moment after the window that starts at `start`."""
    if isinstance(start, datetime):
        return after(start.astimezone(UTC), timedelta(hours=1))
    if window.unit == "day":
        return after(datetime(start.year, start.month, start.day, tzinfo=UTC), timedelta(days=1))
    if (start.year, start.month) == (LAST.year, LAST.month):
        return LAST
    return datetime(start.year + start.month // 12, start.month % 12 + 1, 1, tzinfo=UTC)
