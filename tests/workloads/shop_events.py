"""Orders of a shop as CloudEvents, with a customer and items; some items are bad, each in one of a few ways."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from include.producers.feed import Feed
from workloads.generated_events import event_frame, iso

ORDERS, CUSTOMERS, PRODUCTS = 2000, 200, 60
START, BETWEEN = datetime(2026, 3, 2, tzinfo=UTC), timedelta(minutes=4)
COUNTRIES = ("CH", "DE", "FR")
BAD_ONE_IN = 10
"""Of the items after the first of an order."""
Item = dict[str, Any]
SPOILED: tuple[Callable[[Item], Item], ...] = (
    lambda item: item | {"quantity": 0},
    lambda item: item | {"price": "free"},
    lambda item: {name: value for name, value in item.items() if name != "sku"},
    lambda item: item | {"line_no": 1},
)
"""The last one repeats the first item's number."""


def _items(numbers: random.Random) -> Iterator[Item]:
    for number in range(1, 1 + numbers.choice((0, 1, 1, 2, 2, 3, 6))):
        product = numbers.randrange(PRODUCTS)
        item: Item = {
            "line_no": number,
            "sku": f"sku-{product}",
            "quantity": numbers.randint(1, 5),
            "price": (500 + 37 * product + numbers.randrange(50)) / 100,
            "options": numbers.sample(["gift", "red", "XL"], numbers.randrange(3)),
        }
        yield numbers.choice(SPOILED)(item) if number > 1 and numbers.randrange(BAD_ONE_IN) == 0 else item


def _order(number: int, at: datetime) -> dict[str, Any]:
    numbers = random.Random(number)
    country = numbers.choice(COUNTRIES)
    address = {"city": f"{country}-{numbers.randrange(9)}", "country": country}
    customer = {"id": f"c{numbers.randrange(CUSTOMERS)}", "address": address}
    data = {"order_id": f"o{number}", "customer": customer, "items": list(_items(numbers))}
    kind = {
        "specversion": "1.0",
        "type": "shop.order.placed",
        "source": "/shop/eu",
        "datacontenttype": "application/json",
    }
    return {**kind, "id": f"{number}/{iso(at)}", "time": iso(at), "data": data}


def shop_frame(shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the events moved by `shift`; columns as in `Feed.frame`."""
    made = ((START + shift + number * BETWEEN, number) for number in range(ORDERS))
    orders = ((at, _order(number, at)) for at, number in made)
    return event_frame((order["data"]["customer"]["id"], order["id"], at, order) for at, order in orders)


SHOP_ORDERS = Feed(
    name="shop_orders",
    topic="shop_orders",
    source=f"{ORDERS:,} generated orders with 0 to 6 items, one in four minutes",
    id_field="id",
    time_field="time",
    frame=shop_frame,
    wrong_values=(),
)
