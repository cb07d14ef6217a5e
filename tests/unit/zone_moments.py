"""Moments at which a mistake about a time zone would show: around each transition, and at the ends of the calendar."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

from include.declare.time_zones import EPOCH, TimeZone, installed_zone, zone_names
from include.declare.windows import Window, parsed_size

SINCE, UNTIL = (int((datetime(year, 1, 1, tzinfo=UTC) - EPOCH).total_seconds()) for year in (1970, 2038))
MICROSECOND = timedelta(microseconds=1)
# Of these Java, DuckDB and the operating system had other rules, or the table of offsets is of another shape.
SOME = """
Africa/Casablanca Africa/El_Aaiun America/Vancouver America/Edmonton America/Winnipeg America/Coyhaique Asia/Gaza
Asia/Kolkata Pacific/Apia Australia/Lord_Howe Europe/Dublin Europe/Paris Africa/Abidjan UTC EST5EDT
"""
EVERY_ZONE = bool(os.environ.get("HEADRACE_TEST_EVERY_ZONE"))
YEARS = [1, 1582, 1883, 1900, 2100, 2400, 9998]


@cache
def distinct_zones() -> list[TimeZone]:
    """Return the zones of the database, of those with the same rules one."""
    found = {(zone.offset, zone.transitions, zone.rule): zone for zone in map(installed_zone, sorted(zone_names()))}
    return list(found.values())


def chosen_zones(step: int) -> list[TimeZone]:
    """Return the zones of SOME and each `step`th other one, with HEADRACE_TEST_EVERY_ZONE all (two minutes)."""
    zones = distinct_zones()
    if EVERY_ZONE:
        return zones
    return [*map(installed_zone, SOME.split()), *zones[::step]]


def moments(zone: TimeZone, since: int = SINCE, until: int = UNTIL) -> list[datetime]:
    """Return moments around the transitions of a zone in a span of seconds, and others of some years."""
    at = [EPOCH + timedelta(seconds=second) for second in zone.by_moment.at if since <= second < until]
    around = [each + shift for each in at for shift in (-MICROSECOND, timedelta(), MICROSECOND)]
    numbers = random.Random(zone.name)
    others = [
        datetime(year, 1, 2, tzinfo=UTC) + numbers.randrange(362 * 86_400_000_000) * MICROSECOND for year in YEARS
    ]
    edges = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    return sorted({*around, *others, *edges})


def local_days(zones: Iterable[TimeZone]) -> list[Window]:
    """Return the window of a local day of each zone."""
    return [Window("at", parsed_size("1 day"), "day", time_zone=zone) for zone in zones]


def standard_zone(name: str) -> ZoneInfo:
    """Return a zone of the same database as the standard library reads it."""
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, name)
