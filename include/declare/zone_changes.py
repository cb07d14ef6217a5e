"""Rules of time zones that an installed `tzdata` has otherwise than a release that is computed by them."""

from __future__ import annotations

from datetime import date, timedelta
from functools import cache
from pathlib import Path

from include.declare.time_zones import (
    EPOCH,
    FIRST_MICROS,
    LAST_MICROS,
    SECOND,
    TimeZone,
    installed_zone,
    recorded_zones,
    zone_names,
)


@cache
def difference_since(one: TimeZone, other: TimeZone) -> date | None:
    """Return the first day (UTC) on which the zones have different local times; None: there is none."""
    steps = one.by_moment, other.by_moment
    moments = sorted({FIRST_MICROS, *(second * SECOND for each in steps for second in each.at)})
    differing = (at for at in moments if FIRST_MICROS <= at <= LAST_MICROS and len({each.of(at) for each in steps}) > 1)
    first = next(differing, None)
    return None if first is None else (EPOCH + timedelta(microseconds=first)).date()


def changed_zones(folder: Path) -> list[str]:
    """Return in words the zones of a release's snapshot that the installed database has other rules for."""
    return [change for zone in recorded_zones(folder) if (change := _change(zone))]


def _change(zone: TimeZone) -> str:
    if zone.name not in zone_names():
        return f"{zone}, which it does not have"
    installed = installed_zone(zone.name)
    since = None if installed == zone else difference_since(zone, installed)
    return f"{zone} (from {since} on)" if since else ""
