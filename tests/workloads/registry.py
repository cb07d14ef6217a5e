"""The workloads: each a dataset of `tests/workloads/datasets` with its feed, or a derived one, and its oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from include.producers.command import FEEDS as REAL_FEEDS
from include.producers.feed import Feed
from workloads.ad_events_oracle import expected_ad_tables
from workloads.auction_oracle import expected_auction_prices, expected_auction_tables
from workloads.bank_oracle import expected_bank, expected_bank_accounts, expected_bank_history, expected_bank_tellers
from workloads.device_oracle import expected_device_tables
from workloads.feeds import GENERATED as GENERATED_FEEDS
from workloads.oracle_rows import Expected
from workloads.orders_oracle import (
    expected_customer_revenue,
    expected_line_tables,
    expected_order_revenue,
    expected_order_tables,
)
from workloads.posts_oracle import expected_post_tables
from workloads.searches_oracle import expected_search_tables
from workloads.shop_oracle import expected_shop_tables
from workloads.travel_oracle import expected_flight_tables, expected_weather_delays, expected_weather_tables

DATASETS = Path(__file__).parent / "datasets"
"""The folder for HEADRACE_DATASETS."""
FEEDS = {**GENERATED_FEEDS, **REAL_FEEDS}
Oracle = Callable[[Iterable[bytes]], Expected]
ORACLES: dict[str, Oracle] = {
    "ad_events": expected_ad_tables,
    "searches": expected_search_tables,
    "posts": expected_post_tables,
    "auction": expected_auction_tables,
    "orders": expected_order_tables,
    "lineitem": expected_line_tables,
    "shop_orders": expected_shop_tables,
    "bank_accounts": expected_bank_accounts,
    "bank_tellers": expected_bank_tellers,
    "bank_history": expected_bank_history,
    "devices": expected_device_tables,
}
TRAVEL_ORACLES: dict[str, Oracle] = {"flights": expected_flight_tables, "weather": expected_weather_tables}
"""Of some of their tables: the parity tests compare all of them."""


@dataclass(frozen=True)
class Workload:
    """A feed, and what its gold tables must hold for some of its records."""

    feed: Feed
    expected: Callable[[Iterable[bytes]], Expected]


@dataclass(frozen=True)
class DerivedWorkload:
    """A derived dataset: its sources, the feeds of their records, and what its gold tables must hold for these."""

    sources: tuple[str, ...]
    feeds: tuple[Feed, ...]
    expected: Callable[[Mapping[str, Iterable[bytes]]], Expected]


def declared_lines(name: str) -> int:
    """Return the lines of pipeline, SQL and silver code: what a user writes, comments and the contract apart."""
    files = [f for f in (DATASETS / name).rglob("*") if f.suffix in (".yaml", ".sql", ".py")]
    texts = [f.read_text("utf-8") for f in files if f.name != "contract.yaml"]
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for t in texts for line in t.splitlines())


TPC_H = (FEEDS["orders"], FEEDS["lineitem"])
DERIVED = {
    "auction_prices": DerivedWorkload(("auction",), (FEEDS["auction"],), expected_auction_prices),
    "order_revenue": DerivedWorkload(("orders", "lineitem"), TPC_H, expected_order_revenue),
    "customer_revenue": DerivedWorkload(("order_revenue",), TPC_H, expected_customer_revenue),
    "weather_delays": DerivedWorkload(
        ("flights", "weather"), (FEEDS["flights"], FEEDS["weather"]), expected_weather_delays
    ),
    "bank": DerivedWorkload(
        ("bank_accounts", "bank_tellers"), (FEEDS["bank_accounts"], FEEDS["bank_tellers"]), expected_bank
    ),
}
"""In an order in which the sources of each come before it."""
GENERATED = {name: Workload(FEEDS[name], expected) for name, expected in ORACLES.items()}
WORKLOADS = GENERATED | {name: Workload(FEEDS[name], expected) for name, expected in TRAVEL_ORACLES.items()}


def with_sources(name: str) -> set[str]:
    """Return a workload and all that it is computed from."""
    sources = DERIVED[name].sources if name in DERIVED else ()
    return {name}.union(*map(with_sources, sources))


def connected(names: Iterable[str]) -> list[list[str]]:
    """Return the workloads and their sources in groups that share no source, sources first."""
    wanted, groups = set[str]().union(*map(with_sources, names)), list[list[str]]()
    for name in (*WORKLOADS, *DERIVED):
        if name in wanted:
            joined = [group for group in groups if with_sources(name) & set(group)]
            groups = [group for group in groups if group not in joined] + [[*chain(*joined), name]]
    return groups
