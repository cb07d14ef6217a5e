"""Builders of events: fields that a test does not set have valid default values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from small_release import Record

EVENING = "2013-03-31T23:30:00Z"


def flight_event(
    kind: str,
    flight: int,
    at: str = EVENING,
    *,
    scheduled: str = EVENING,
    carrier: str = "UA",
    origin: str = "EWR",
    partition: int = 0,
    **fields: Any,
) -> Record:
    """Return an event of `flights`; `fields` add to the defaults or replace them."""
    flight_id = f"{scheduled[:16]}Z/{carrier}{flight}/{origin}"
    event = {
        "event_id": f"{flight_id}/{kind}",
        "kind": kind,
        "flight_id": flight_id,
        "occurred_at": at,
        "scheduled_departure": scheduled,
        "carrier": carrier,
        "flight": flight,
        "origin": origin,
        "dest": "IAH",
        "tailnum": f"N{flight}",
        "distance": 1400,
    } | fields
    return Record(json.dumps(event, separators=(",", ":")).encode(), flight_id.encode(), partition)


def departed(flight: int, delay: int, at: str = EVENING, **fields: Any) -> Record:
    """Return the departure of a flight, `delay` minutes late."""
    return flight_event("departed", flight, at, departure_delay=delay, **fields)


def observation(hour: str, *, partition: int = 0, **measured: str) -> Record:
    """Return an observation at JFK in `hour` (`2013-02-01T05`); values are JSON literals, written unchanged."""
    head = f'"event_id":"JFK/{hour}:00:00Z","station":"JFK","observed_at":"{hour}:00:00Z"'
    members = "".join(f',"{name}":{literal}' for name, literal in measured.items())
    return Record(f"{{{head}{members}}}".encode(), b"JFK", partition)


def escaped(record: Record) -> Record:
    """Return the same event with an escaped character, which is not in plain form."""
    assert record.value is not None
    assert b'"EWR"' in record.value
    return replace(record, value=record.value.replace(b'"EWR"', b'"\\u0045WR"'))
