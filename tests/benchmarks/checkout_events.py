"""Checkouts of a shop in nested JSON: about 40 values in 1 KB, in objects and arrays, some of them absent or null.

The records of one day; those of another have its date instead of `DAY`, in their id and their time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import polars as pl
from workloads.generated_events import event_frame, iso

from include.producers.feed import Feed

EVENTS = 20_000
START = datetime(2021, 3, 1, tzinfo=UTC)
DAY = f"{START:%Y-%m-%d}"
BETWEEN = timedelta(days=1) / EVENTS
CUSTOMERS, PRODUCTS = 5_000, 900
CITIES = (("Bern", "CH"), ("Köln", "DE"), ("Lyon", "FR"), ("Turin", "IT"))
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)"
Json = dict[str, Any]


def _items(numbers: random.Random) -> Iterator[Json]:
    for _ in range(numbers.choice((1, 2, 2, 3))):
        product = numbers.randrange(PRODUCTS)
        yield {
            "sku": f"sku-{product:04d}",
            "title": f"Product number {product} of the spring collection",
            "quantity": numbers.randint(1, 4),
            "price": (990 + 13 * product) / 100,
            "gift": numbers.random() < 0.1,
        }


def _customer(numbers: random.Random) -> Json:
    number = numbers.randrange(CUSTOMERS)
    city, country = CITIES[number % len(CITIES)]
    loyalty = {"tier": ("blue", "silver", "gold")[number % 3], "points": number * 7}
    return {
        "id": f"c{number}",
        "email": f"customer.{number}@example.com",
        "loyalty": loyalty if number % 5 else None,
        "address": {"street": f"Long Street {number}", "zip": f"{number:05d}", "city": city, "country": country},
    }


def _checkout(number: int, at: datetime) -> Json:
    numbers = random.Random(number)
    items = list(_items(numbers))
    total = round(sum(item["quantity"] * item["price"] for item in items), 2)
    device = {"kind": numbers.choice(("phone", "tablet", "desktop")), "language": "en-GB", "agent": AGENT}
    return {
        "event_id": f"{DAY}/{number:05d}",
        "type": "shop.checkout.completed",
        "placed_at": iso(at),
        "source": {"service": "web-checkout", "version": "4.17.2", "region": "eu-central-1"},
        "customer": _customer(numbers),
        "session": {
            "id": str(UUID(int=numbers.getrandbits(128))),
            "ip": ".".join(str(numbers.randrange(1, 255)) for _ in range(4)),
            "device": device,
            "consents": numbers.sample(["email", "profile", "statistics"], 2),
        },
        "items": items,
        "payment": {
            "method": "card",
            "currency": "EUR",
            "total": total,
            "tax": round(total * 0.2, 2),
            "card": {"brand": numbers.choice(("visa", "amex")), "last_digits": f"{numbers.randrange(10_000):04d}"},
        },
        "shipping": {"carrier": "post", "express": numbers.random() < 0.2, "fee": 4.9, "days": numbers.randint(1, 5)},
    }


def checkout_frame(shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the events of the day that is `shift`, whole days, after the first; columns as in `Feed.frame`."""
    made = ((START + number * BETWEEN, _checkout(number, START + number * BETWEEN)) for number in range(EVENTS))
    first = event_frame((each["customer"]["id"], each["event_id"], at, each) for at, each in made)
    return on_day(first, START + shift).with_columns(pl.col("occurred_at") + shift)


def on_day(frame: pl.DataFrame, day: datetime) -> pl.DataFrame:
    """Return events of the first day with the date of another, in their values and ids."""
    texts = (pl.col("value").cast(pl.String), pl.col("event_id"))
    value, event_id = (text.str.replace_all(DAY, f"{day:%Y-%m-%d}", literal=True) for text in texts)
    return frame.with_columns(value=value.cast(pl.Binary), event_id=event_id)


CHECKOUTS = Feed(
    name="checkouts",
    topic="checkouts",
    source=f"{EVENTS:,} generated checkouts a day, nested JSON of 1 KB",
    id_field="event_id",
    time_field="placed_at",
    frame=checkout_frame,
    wrong_values=(),
)
