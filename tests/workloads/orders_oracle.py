"""What the gold tables over orders and their lines must hold, from the records alone, in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any

from workloads.oracle_rows import Expected, Row

LAST_SHIPPED = "2026-09-02"
Event = dict[str, Any]
# Decimals as the records have them, and not the nearest doubles.
loads = partial(json.loads, parse_float=Decimal)


def expected_order_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table of `orders`."""
    days = defaultdict[tuple[str, str], list[Decimal]](list)
    for order in map(loads, records):
        days[order["placed_at"][:10], order["o_orderpriority"]].append(Decimal(order["o_totalprice"]))
    rows = [
        {"day": date.fromisoformat(day), "o_orderpriority": priority, "orders": len(found), "total_price": sum(found)}
        for (day, priority), found in days.items()
    ]
    return {"order_priorities": rows}


def expected_line_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table of `lineitem`: TPC-H's query 1 without its averages."""
    groups = defaultdict[tuple[str, str], list[Event]](list)
    for line in map(loads, records):
        if line["l_shipdate"] <= LAST_SHIPPED:
            groups[line["l_returnflag"], line["l_linestatus"]].append(line)
    return {
        "pricing_summary": [
            {
                "l_returnflag": flag,
                "l_linestatus": status,
                "quantity": sum(Decimal(line["l_quantity"]) for line in lines),
                "base_price": sum(line["l_extendedprice"] for line in lines),
                "discounted_price": sum(map(revenue_of, lines)),
                "charge": sum(revenue_of(line) * (1 + line["l_tax"]) for line in lines),
                "lines": len(lines),
            }
            for (flag, status), lines in groups.items()
        ]
    }


def revenue_of(line: Event) -> Decimal:
    """Return the revenue of a line."""
    return Decimal(line["l_extendedprice"]) * (1 - Decimal(line["l_discount"]))


def expected_order_revenue(records: Mapping[str, Iterable[bytes]]) -> Expected:
    """Return the revenue of each order, from the records of both topics."""
    lines = defaultdict[int, list[Event]](list)
    for line in map(loads, records["lineitem"]):
        lines[line["l_orderkey"]].append(line)
    return {
        "order_revenue": [
            {
                "order_key": order["o_orderkey"],
                "customer": order["o_custkey"],
                "day": date.fromisoformat(order["o_orderdate"]),
                "lines": len(lines[order["o_orderkey"]]),
                "revenue": sum(map(revenue_of, lines[order["o_orderkey"]]), Decimal(0)),
            }
            for order in map(loads, records["orders"])
        ]
    }


def expected_customer_revenue(records: Mapping[str, Iterable[bytes]]) -> Expected:
    """Return the revenue of each customer and day."""
    days = defaultdict[tuple[int, date], list[Row]](list)
    for row in expected_order_revenue(records)["order_revenue"]:
        days[row["customer"], row["day"]].append(row)
    return {
        "customer_revenue": [
            {
                "customer": customer,
                "day": day,
                "orders": len(rows),
                "lines": sum(row["lines"] for row in rows),
                "revenue": sum(row["revenue"] for row in rows),
            }
            for (customer, day), rows in days.items()
        ]
    }
