"""What the tables over orders and their items must hold, from the records alone, in plain Python."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from workloads.oracle_rows import Expected, Row

Event = dict[str, Any]
loads = partial(json.loads, parse_float=Decimal)


def expected_shop_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of each table of children and of gold; of `product_prices` no two orders are of one time."""
    orders = [loads(record) for record in records]
    children = [child for order in orders for child in _children(order)]
    bad = [row for order in orders for row in _bad(order)]
    return {
        "silver.shop_orders__items": [row for _, row in children],
        "rejected.shop_orders__items": bad,
        "country_days": _country_days(orders),
        "product_days": _product_days(children),
        "product_prices": _product_prices(children),
        "best_sellers": _best_sellers(children),
    }


def _faults(order: Event) -> Iterator[tuple[Event, Row | None]]:
    """Yield each item, and why it is bad; no item is in two ways."""
    seen = set[int]()
    for index, item in enumerate(order["data"]["items"]):
        path, fault = f"items[{index}]", None
        if not isinstance(item["price"], Decimal | int):
            fault = _reason("type", f"{path}.price", item["price"])
        elif "sku" not in item:
            fault = _reason("required", f"{path}.sku", None)
        elif item["quantity"] < 1:
            fault = _reason("range", f"{path}.quantity", item["quantity"])
        elif item["line_no"] in seen:
            fault = _reason("duplicate_child", path, item["line_no"])
        seen.add(item["line_no"])
        yield item, fault


def _reason(rule: str, path: str, value: Any) -> Row:
    return {"rule": rule, "column": path, "detail": None if value is None else str(value)}


def _parent(order: Event) -> Row:
    return {"event_id": order["id"], "placed_at": datetime.fromisoformat(order["time"])}


def _children(order: Event) -> Iterator[tuple[Event, Row]]:
    for item, fault in _faults(order):
        if fault is None:
            yield order, _parent(order) | item


def _bad(order: Event) -> Iterator[Row]:
    for _, fault in _faults(order):
        if fault is not None:
            yield _parent(order) | {"reasons": [fault]}


def _day(order: Event) -> date:
    return datetime.fromisoformat(order["time"]).date()


def _country(order: Event) -> str:
    return str(order["data"]["customer"]["address"]["country"])


def _country_days(orders: Iterable[Event]) -> list[Row]:
    counts = Counter((_day(order), _country(order)) for order in orders)
    return [{"day": day, "country": country, "orders": count} for (day, country), count in counts.items()]


def _product_days(children: Iterable[tuple[Event, Row]]) -> list[Row]:
    sold = defaultdict[tuple[date, str], list[Row]](list)
    for order, item in children:
        sold[_day(order), item["sku"]].append(item)
    return [
        {
            "day": day,
            "sku": sku,
            "lines": len(items),
            "units": sum(item["quantity"] for item in items),
            "revenue": sum(map(_paid, items)),
        }
        for (day, sku), items in sold.items()
    ]


def _paid(item: Row) -> Decimal:
    return Decimal(item["quantity"]) * Decimal(item["price"])


def _product_prices(children: Iterable[tuple[Event, Row]]) -> list[Row]:
    newest = dict[str, tuple[datetime, Row]]()
    for order, item in children:
        at, known = item["placed_at"], newest.get(item["sku"])
        if known is None or at >= known[0]:
            row = {"sku": item["sku"], "price": Decimal(item["price"]), "order_id": order["data"]["order_id"]}
            newest[item["sku"]] = at, row
    return [row for _, row in newest.values()]


def _best_sellers(children: Iterable[tuple[Event, Row]]) -> list[Row]:
    paid = defaultdict[tuple[date, str], Counter[str]](Counter)
    for order, item in children:
        paid[_day(order), _country(order)][item["sku"]] += _paid(item)  # type: ignore[assignment]
    return [
        {"day": day, "country": country, "place": place, "sku": sku, "revenue": revenue}
        for (day, country), of_products in paid.items()
        for place, (sku, revenue) in enumerate(sorted(of_products.items(), key=lambda each: (-each[1], each[0]))[:3], 1)
    ]
