"""Searches of three weeks: each term has its own rate by hour of the week; the third week has spikes and dips.

`injected()` names them, so that what the platform flags can be scored.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl

from include.producers.feed import Feed
from workloads.generated_events import event_frame, iso

# A Monday.
START = datetime(2026, 3, 2, tzinfo=UTC)
WEEKS, HOURS = 3, 168
FREQUENT = ("weather", "football", "train times", "recipes")
RARE = (
    *(
        "wedding dress",
        "wedding cake",
        "west coast",
        "web design",
        "food near me",
        "foot pain",
        "forecast",
        "train set",
    ),
    *("training plan", "travel", "rent a car", "red shoes", "recycling", "record shop", "wine", "winter tyres"),
)
SPIKES, DIPS, TIMES_MORE, SHARE_LEFT = 8, 6, 3.0, 0.2
SEED = 3


@dataclass(frozen=True)
class Anomaly:
    """An hour in which a term was searched TIMES_MORE as often (`spike`), or SHARE_LEFT as often (`dip`)."""

    term: str
    hour: datetime
    kind: str


def injected() -> list[Anomaly]:
    """Return the anomalies of the third week, by time."""
    numbers = random.Random(SEED)
    hours = [START + timedelta(weeks=WEEKS - 1, hours=hour) for hour in range(HOURS)]
    places = numbers.sample([(term, hour) for term in FREQUENT for hour in hours], SPIKES + DIPS)
    kinds = ["spike"] * SPIKES + ["dip"] * DIPS
    return sorted(
        (Anomaly(*place, kind) for place, kind in zip(places, kinds, strict=True)), key=lambda each: each.hour
    )


def usual_rate(term: str, hour: int) -> float:
    """Return the searches of a term that are usual in an hour of the week, from 0 to 167."""
    daily = 1 + 0.4 * math.sin(2 * math.pi * (hour % 24 - 8) / 24)
    return (50.0 if term in FREQUENT else 0.3) * daily


def search_frame(shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the searches moved by `shift`; columns as in `Feed.frame`."""
    numbers = random.Random(SEED + 1)
    factors = {(each.term, each.hour): TIMES_MORE if each.kind == "spike" else SHARE_LEFT for each in injected()}
    rows = []
    for hours in range(WEEKS * HOURS):
        begin = START + timedelta(hours=hours)
        for term in (*FREQUENT, *RARE):
            expected = usual_rate(term, hours % HOURS) * factors.get((term, begin), 1.0)
            for number in range(_arrivals(numbers, expected)):
                at = begin + shift + timedelta(milliseconds=numbers.randrange(3_600_000))
                search_id = f"{term}/{iso(begin + shift)}/{number}"
                user = f"user-{numbers.randrange(1000)}"
                event = {"search_id": search_id, "user": user, "searched_at": iso(at), "term": term}
                rows.append((term, search_id, at, event))
    return event_frame(rows)


def _arrivals(numbers: random.Random, expected: float) -> int:
    """Return a number of independent arrivals, `expected` on average: Poisson's distribution, Knuth's method."""
    count, product, limit = 0, numbers.random(), math.exp(-expected)
    while product > limit:
        count += 1
        product *= numbers.random()
    return count


SEARCHES = Feed(
    name="searches",
    topic="searches",
    source="about 100,000 generated searches of three weeks",
    id_field="search_id",
    time_field="searched_at",
    frame=search_frame,
    wrong_values=(),
)
