"""Auctions as in Nexmark: new persons, new auctions and bids in one topic, 1 : 3 : 46.

The distributions are those of Nexmark's generator (nexmark/nexmark, `generator/model`), with two changes: each event
has a seed of its own, so that two runs agree, and a bidder's id is shifted once. Records are flat; a field that an
event's type does not have is null.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from include.producers.feed import Feed
from workloads.generated_events import event_frame, iso

EVENTS = 20_000
START = datetime(2026, 3, 3, 12, tzinfo=UTC)
BETWEEN = timedelta(milliseconds=10)
CYCLE, PERSONS, AUCTIONS = 50, 1, 3
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
HOT_AUCTIONS, HOT_BIDDERS, HOT_SELLERS, HOT_EVERY = 2, 4, 4, 100
ACTIVE_PEOPLE, LEAD = 1000, 10
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
FIELDS = (
    *("event_id", "event_type", "date_time", "person", "name", "city", "state", "auction", "item_name", "initial_bid"),
    *("reserve", "expires", "seller", "category", "bidder", "price", "channel"),
)
PERSON, AUCTION, BID = 0, 1, 2


def auction_event(number: int, shift: timedelta = timedelta(0)) -> dict[str, Any]:
    """Return event `number`, with all FIELDS; prices are whole cents."""
    numbers, at = random.Random(number), START + shift + number * BETWEEN
    epoch, rest = divmod(number, CYCLE)
    event: dict[str, Any] = dict.fromkeys(FIELDS) | {"event_id": f"{number}/{iso(at)}", "date_time": iso(at)}
    if rest < PERSONS:
        state = numbers.choice(STATES)
        names = {"name": f"person {numbers.randrange(100)}", "city": numbers.choice(CITIES), "state": state}
        return event | {"event_type": PERSON, "person": FIRST_ID + epoch} | names
    last_person = epoch
    if rest < PERSONS + AUCTIONS:
        initial = _price(numbers)
        wait = timedelta(milliseconds=1 + numbers.randrange(2 * HOT_EVERY * CYCLE // AUCTIONS * 10))
        return event | {
            "event_type": AUCTION,
            "auction": FIRST_ID + epoch * AUCTIONS + rest - PERSONS,
            "item_name": f"item {numbers.randrange(1000)}",
            "initial_bid": initial,
            "reserve": initial + _price(numbers),
            "expires": iso(at + wait),
            "seller": FIRST_ID + _drawn(numbers, last_person, HOT_SELLERS, ACTIVE_PEOPLE, 0),
            "category": FIRST_CATEGORY + numbers.randrange(CATEGORIES),
        }
    last_auction = epoch * AUCTIONS + AUCTIONS - 1
    return event | {
        "event_type": BID,
        "auction": FIRST_ID + _drawn(numbers, last_auction, HOT_AUCTIONS, HOT_EVERY, 0),
        "bidder": FIRST_ID + _drawn(numbers, last_person, HOT_BIDDERS, ACTIVE_PEOPLE, 1),
        "price": _price(numbers),
        "channel": numbers.choice(CHANNELS) if numbers.random() < 0.5 else f"channel-{numbers.randrange(10_000)}",
    }


def _drawn(numbers: random.Random, last: int, hot_ratio: int, active: int, hot_place: int) -> int:
    """Return one of the `active` newest numbers up to `last` and a few to come; often the hot one of a hundred."""
    if numbers.randrange(hot_ratio) > 0:
        return last // HOT_EVERY * HOT_EVERY + hot_place
    first = max(0, last - active)
    return first + numbers.randrange(last - first + 1 + LEAD)


def _price(numbers: random.Random) -> int:
    return round(10 ** (6 * numbers.random()) * 100)


def auction_frame(shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the events moved by `shift`; columns as in `Feed.frame`."""
    made = ((number, auction_event(number, shift)) for number in range(EVENTS))
    return event_frame(
        (str(event["auction"] or event["person"]), event["event_id"], START + shift + number * BETWEEN, event)
        for number, event in made
    )


AUCTION_EVENTS = Feed(
    name="auction",
    topic="auction",
    source="20,000 generated events of Nexmark, 100 a second",
    id_field="event_id",
    time_field="date_time",
    frame=auction_frame,
    wrong_values=(),
)
