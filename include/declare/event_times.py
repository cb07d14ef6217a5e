"""Arithmetic on event times that stops at the ends of the calendar: records of the years 1 and 9999 are valid."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def utc_text(at: datetime, timespec: str = "seconds") -> str:
    """Return a time in UTC like `0001-02-03 04:05:06`; `strftime` writes years before 1000 with fewer digits."""
    moment = at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at
    return moment.isoformat(" ", timespec)


def before(moment: datetime, span: timedelta) -> datetime:
    """Return the aware `moment` less `span`, FIRST at the earliest."""
    return moment - span if moment - FIRST > span else FIRST


def after(moment: datetime, span: timedelta) -> datetime:
    """Return the aware `moment` plus `span`, LAST at the latest."""
    return moment + span if LAST - moment > span else LAST
