"""What gold over flights and weather must hold, from the records alone, in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import partial
from typing import Any

from workloads.oracle_rows import Expected, Row

KINDS = ("scheduled", "departed", "arrived", "cancelled")
MEAN_DIGITS, ENOUGH_DIGITS = 23, 60
"""Of a mean after its point, and of its computation."""
Event = dict[str, Any]
# Decimals as the records have them, and not the nearest doubles.
loads = partial(json.loads, parse_float=Decimal)


def expected_flight_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of the gold table of `flights` that the analyses read: each route and day."""
    days = defaultdict[tuple[str, str, str], list[Event]](list)
    for event in map(loads, records):
        days[event["scheduled_departure"][:10], event["origin"], event["dest"]].append(event)
    return {"route_days": [_route_day(*key, events) for key, events in days.items()]}


def _route_day(day: str, origin: str, dest: str, events: list[Event]) -> Row:
    counts = {kind: sum(e["kind"] == kind for e in events) for kind in KINDS}
    return {
        "day": date.fromisoformat(day),
        "origin": origin,
        "dest": dest,
        **counts,
        "air_minutes": _total(e.get("air_time") for e in events),
        "arrival_delay_minutes": _total(e.get("arrival_delay") for e in events),
        "distance_miles": _total(e["distance"] for e in events if e["kind"] == "departed"),
    }


def expected_weather_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table of `weather`."""
    days = defaultdict[tuple[str, str], list[Event]](list)
    for observation in map(loads, records):
        days[observation["observed_at"][:10], observation["station"]].append(observation)
    return {"weather_days": [_weather_day(day, station, of_day) for (day, station), of_day in days.items()]}


def _weather_day(day: str, station: str, observations: list[Event]) -> Row:
    temps, winds = _values(observations, "temp"), _values(observations, "wind_speed")
    return {
        "day": date.fromisoformat(day),
        "station": station,
        "observations": len(observations),
        "coldest": min(temps, default=None),
        "warmest": max(temps, default=None),
        "mean_temp": _mean(temps) if temps else None,
        "rain": _total(each["precip"] for each in observations),
        "strongest_wind": max(winds, default=None),
        "poor_visibility": sum(value < 3 for value in _values(observations, "visib")),
    }


def expected_weather_delays(records: Mapping[str, Iterable[bytes]]) -> Expected:
    """Return each hour and airport's departures with the observation of that hour."""
    observed = {(hour_of(each["observed_at"]), each["station"]): each for each in map(loads, records["weather"])}
    hours = defaultdict[tuple[datetime, str], list[Event]](list)
    for event in map(loads, records["flights"]):
        hours[hour_of(event["scheduled_departure"]), event["origin"]].append(event)
    return {
        "weather_delays": [
            _delays(hour, origin, events, observed.get((hour, origin), {})) for (hour, origin), events in hours.items()
        ]
    }


def _delays(hour: datetime, origin: str, events: list[Event], observation: Event) -> Row:
    left = [event["departure_delay"] for event in events if event["kind"] == "departed"]
    wind, rain, sight = observation.get("wind_speed"), observation.get("precip"), observation.get("visib")
    return {
        "hour": hour,
        "origin": origin,
        "departures": len(left),
        "delayed": sum(delay > 15 for delay in left),
        "cancelled": sum(event["kind"] == "cancelled" for event in events),
        "delay_minutes": _total(left),
        "temp": observation.get("temp"),
        "wind": None if wind is None else "calm" if wind < 10 else "windy" if wind < 20 else "stormy",
        "rain": None if rain is None else "rain" if rain > 0 else "dry",
        "visibility": None if sight is None else "poor" if sight < 3 else "clear",
    }


def hour_of(moment: str) -> datetime:
    """Return the hour of a time in ISO 8601."""
    return datetime.fromisoformat(moment).astimezone(UTC).replace(minute=0, second=0)


def _mean(values: list[Decimal]) -> Decimal:
    with localcontext(prec=ENOUGH_DIGITS):
        return (sum(values) / Decimal(len(values))).quantize(Decimal(1).scaleb(-MEAN_DIGITS), ROUND_HALF_UP)


def _values(events: Iterable[Event], name: str) -> list[Any]:
    return [event[name] for event in events if event[name] is not None]


def _total(values: Iterable[Any]) -> Any:
    """Return the sum of what is not null; null without any."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
