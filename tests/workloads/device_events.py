"""Reports of devices that are switched on and off, of which several have the same time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from include.producers.feed import Feed
from workloads.generated_events import event_frame, iso

REPORTS, DEVICES = 4000, 40
START, BETWEEN = datetime(2026, 3, 2, tzinfo=UTC), timedelta(minutes=2)
SWITCHED = {"on": ("on", "on", "on", "off", "fault"), "off": ("off", "on"), "fault": ("fault", "off")}
"""What may follow a state; a fault is only left by switching off."""


def _reports(shift: timedelta) -> Iterator[tuple[str, str, datetime, dict[str, Any]]]:
    numbers, states = random.Random(20), dict.fromkeys(range(DEVICES), "off")
    for number in range(REPORTS):
        device, at = numbers.randrange(DEVICES), START + shift + number // 2 * BETWEEN
        states[device] = numbers.choice(SWITCHED[states[device]])
        watts = numbers.randint(100, 900) if states[device] == "on" else 0
        event_id = f"{number}/{iso(at)}"
        event = {"event_id": event_id, "device": f"d{device}", "state": states[device], "watts": watts, "at": iso(at)}
        yield f"d{device}", event_id, at, event


def device_frame(shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the reports moved by `shift`; columns as in `Feed.frame`."""
    return event_frame(_reports(shift))


DEVICE_REPORTS = Feed(
    name="devices",
    topic="devices",
    source=f"{REPORTS:,} generated reports of {DEVICES} devices that are switched on and off",
    id_field="event_id",
    time_field="at",
    frame=device_frame,
    wrong_values=(),
)
