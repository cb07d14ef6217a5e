"""Orders and their lines with the columns of TPC-H: two topics, whose records belong together by the order's key.

The values follow the rules of the TPC-H specification (4.2.3): 1 to 7 lines, prices by part, dates by the order's date.
Each order has a seed of its own, so that both topics agree. A line is booked up to two days after its order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from typing import Any

import polars as pl

from include.producers.feed import Feed
from workloads.generated_events import event_frame, iso

ORDERS, CUSTOMERS, PARTS, SUPPLIERS, CLERKS = 1500, 150, 2000, 100, 10
START = datetime(2026, 3, 2, tzinfo=UTC)
BETWEEN, LONGEST_DELAY = timedelta(minutes=5), timedelta(days=2)
TODAY_AFTER = timedelta(days=90)
"""Lines that were received within this time after the first order are returned or accepted; the others are open."""
KEYS_A_SHIFT = 1_000_000
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
MODES = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
CENT = Decimal("0.01")
TimedEvent = tuple[datetime, dict[str, Any]]


def generated_order(number: int, shift: timedelta) -> tuple[TimedEvent, list[TimedEvent]]:
    """Return order `number` and its lines, each with its time."""
    numbers, at = random.Random(number), START + shift + number * BETWEEN
    key = number + 1 + shift.days * KEYS_A_SHIFT
    lines = [_line(numbers, key, number + 1, at, shift) for number in range(numbers.randint(1, 7))]
    states = {line["l_linestatus"] for _, line in lines}
    total = sum((_charge(line) for _, line in lines), Decimal(0)).quantize(CENT, ROUND_HALF_UP)
    order = {
        "event_id": f"{key}/{iso(at)}",
        "placed_at": iso(at),
        "o_orderkey": key,
        "o_custkey": numbers.randint(1, CUSTOMERS),
        "o_orderstatus": states.pop() if len(states) == 1 else "P",
        "o_totalprice": float(total),
        "o_orderdate": f"{at:%Y-%m-%d}",
        "o_orderpriority": numbers.choice(PRIORITIES),
        "o_clerk": f"Clerk#{numbers.randint(1, CLERKS):09}",
        "o_shippriority": 0,
    }
    return (at, order), lines


def _line(numbers: random.Random, key: int, line_number: int, at: datetime, shift: timedelta) -> TimedEvent:
    part, quantity = numbers.randint(1, PARTS), numbers.randint(1, 50)
    price = Decimal(90_000 + part // 10 % 20_001 + 100 * (part % 1000)) / 100
    shipped = at.date() + timedelta(days=numbers.randint(1, 121))
    received, today = shipped + timedelta(days=numbers.randint(1, 30)), (START + shift + TODAY_AFTER).date()
    booked = at + timedelta(milliseconds=numbers.randrange(LONGEST_DELAY // timedelta(milliseconds=1)))
    return booked, {
        "event_id": f"{key}.{line_number}/{iso(booked)}",
        "booked_at": iso(booked),
        "l_orderkey": key,
        "l_linenumber": line_number,
        "l_partkey": part,
        "l_suppkey": numbers.randint(1, SUPPLIERS),
        "l_quantity": quantity,
        "l_extendedprice": float(quantity * price),
        "l_discount": numbers.randint(0, 10) / 100,
        "l_tax": numbers.randint(0, 8) / 100,
        "l_returnflag": numbers.choice("RA") if received <= today else "N",
        "l_linestatus": "O" if shipped > today else "F",
        "l_shipdate": shipped.isoformat(),
        "l_commitdate": _later(at.date(), numbers.randint(30, 90)),
        "l_receiptdate": received.isoformat(),
        "l_shipinstruct": numbers.choice(INSTRUCTIONS),
        "l_shipmode": numbers.choice(MODES),
    }


def _later(day: date, days: int) -> str:
    return (day + timedelta(days=days)).isoformat()


def _charge(line: dict[str, Any]) -> Decimal:
    price, discount, tax = (Decimal(str(line[name])) for name in ("l_extendedprice", "l_discount", "l_tax"))
    return price * (1 - discount) * (1 + tax)


def _events(topic: str, shift: timedelta) -> Iterator[TimedEvent]:
    for number in range(ORDERS):
        order, lines = generated_order(number, shift)
        yield from [order] if topic == "orders" else lines


def order_frame(topic: str, shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the events of `orders` or `lineitem` moved by `shift`; columns as in `Feed.frame`."""
    key = "o_orderkey" if topic == "orders" else "l_orderkey"
    return event_frame((str(event[key]), event["event_id"], at, event) for at, event in _events(topic, shift))


def _feed(topic: str, time_field: str, source: str) -> Feed:
    return Feed(
        name=topic,
        topic=topic,
        source=source,
        id_field="event_id",
        time_field=time_field,
        frame=partial(order_frame, topic),
        wrong_values=(),
    )


ORDER_EVENTS = _feed("orders", "placed_at", "1,500 generated orders with TPC-H's columns, one in five minutes")
LINE_EVENTS = _feed("lineitem", "booked_at", "the 1 to 7 lines of each order, booked up to two days later")
