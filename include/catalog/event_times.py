"""Arithmetic on event times that stops at the ends of the calendar: records of the years 1 and 9999 are valid."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def before(moment: datetime, span: timedelta) -> datetime:
    """Return the aware `moment` less `span`, FIRST at the earliest."""
    return moment - span if moment - FIRST > span else FIRST


def after(moment: datetime, span: timedelta) -> datetime:
    """Return the aware `moment` plus `span`, LAST at the latest."""
    return moment + span if LAST - moment > span else LAST
