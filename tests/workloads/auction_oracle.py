"""What the gold tables of `auction` must hold, from the records alone, in plain Python."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from workloads.oracle_rows import Expected, Row

PERSON, AUCTION, BID = 0, 1, 2
TEN, TWO = timedelta(seconds=10), timedelta(seconds=2)
Event = dict[str, Any]


def expected_auction_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table."""
    events = [json.loads(record) for record in records]
    for event in events:
        event["date_time"] = datetime.fromisoformat(event["date_time"])
    persons, auctions, bids = ([e for e in events if e["event_type"] == kind] for kind in (PERSON, AUCTION, BID))
    return {
        "bid_prices": [_price(bid) for bid in bids],
        "local_sellers": _local_sellers(persons, auctions),
        "hot_auctions": _hot(bids),
        "highest_bids": _highest(bids),
        "new_sellers": _new_sellers(persons, auctions),
        "winning_bids": _winning(auctions, bids),
        "bidder_sessions": _sessions(bids),
        "last_bids": _last(bids),
        "top_bids": _top(bids),
        "category_bids": [
            _chosen(bid, "auction", "bidder", "price") | _chosen(auction, "item_name", "seller")
            for auction in auctions
            for bid in bids
            if auction["category"] == 10 and bid["auction"] == auction["auction"]
        ],
    }


def _chosen(event: Event, *names: str) -> Row:
    return {name: event[name] for name in names}


def _window(at: datetime, size: timedelta) -> datetime:
    return at - timedelta(seconds=at.timestamp() % size.total_seconds())


def _price(bid: Event) -> Row:
    cents = Decimal(bid["price"]) * Decimal("0.908")
    return _chosen(bid, "event_id", "auction", "bidder") | {
        "euro_cents": cents,
        "is_sampled": bid["auction"] % 123 == 0,
    }


def _local_sellers(persons: list[Event], auctions: list[Event]) -> list[Row]:
    return [
        {"party": p["person"], "auction": a["auction"]} | _chosen(p, "name", "city", "state")
        for a in auctions
        for p in persons
        if p["person"] == a["seller"] and a["category"] == 10 and p["state"] in ("OR", "ID", "CA")
    ]


def _hot(bids: list[Event]) -> list[Row]:
    windows = defaultdict[datetime, Counter[int]](Counter)
    for bid in bids:
        newest = _window(bid["date_time"], TWO)
        for n in range(5):
            windows[newest - n * TWO][bid["auction"]] += 1
    return [
        {"since": since, "auction": auction, "bids": count}
        for since, counts in windows.items()
        for auction, count in counts.items()
        if count == max(counts.values())
    ]


def _highest(bids: list[Event]) -> list[Row]:
    windows = defaultdict[datetime, list[Event]](list)
    for bid in bids:
        windows[_window(bid["date_time"], TEN)].append(bid)
    return [
        {"since": since} | _chosen(bid, "auction", "bidder", "price", "date_time")
        for since, of_window in windows.items()
        for bid in of_window
        if bid["price"] == max(each["price"] for each in of_window)
    ]


def _new_sellers(persons: list[Event], auctions: list[Event]) -> list[Row]:
    opened = {(_window(a["date_time"], TEN), a["seller"]) for a in auctions}
    found = {(_window(p["date_time"], TEN), p["person"], p["name"]) for p in persons}
    return [{"since": since, "party": who, "name": name} for since, who, name in found if (since, who) in opened]


def _winning(auctions: list[Event], bids: list[Event]) -> list[Row]:
    opened, best = {a["auction"]: a for a in auctions}, dict[int, Event]()
    for bid in sorted(bids, key=lambda each: (-each["price"], each["date_time"], each["event_id"])):
        auction = opened.get(bid["auction"])
        if auction and auction["date_time"] <= bid["date_time"] <= datetime.fromisoformat(auction["expires"]):
            best.setdefault(bid["auction"], bid)
    return [
        _chosen(bid, "auction", "bidder", "price", "date_time") | _chosen(opened[auction], "category", "seller")
        for auction, bid in best.items()
    ]


def expected_auction_prices(records: Mapping[str, Iterable[bytes]]) -> Expected:
    """Return the mean prices of the winning bids: by category, and of the last ten auctions of each seller."""
    winners = expected_auction_tables(records["auction"])["winning_bids"]
    found: dict[str, list[Row]] = {}
    for table, column, most in (("category_prices", "category", len(winners)), ("seller_prices", "seller", 10)):
        groups = defaultdict[int, list[Row]](list)
        for row in sorted(winners, key=lambda each: (each["date_time"], each["auction"]), reverse=True):
            groups[row[column]].append(row)
        found[table] = [{column: key} | _mean_price(rows[:most]) for key, rows in groups.items()]
    return found


def _mean_price(rows: list[Row]) -> Row:
    mean = Decimal(sum(row["price"] for row in rows)) / len(rows)
    return {"auctions": len(rows), "mean_price": mean.quantize(Decimal("0.01"), ROUND_HALF_UP)}


def _sessions(bids: list[Event]) -> list[Row]:
    found = dict[int, list[Row]]()
    for bid in sorted(bids, key=lambda each: each["date_time"]):
        mine, at = found.setdefault(bid["bidder"], []), bid["date_time"]
        if not mine or at - mine[-1]["until"] > TEN:
            mine.append({"bidder": bid["bidder"], "since": at, "until": at, "bids": 0})
        mine[-1] |= {"until": at, "bids": mine[-1]["bids"] + 1}
    return [row for rows in found.values() for row in rows]


def _last(bids: list[Event]) -> list[Row]:
    ordered = sorted(bids, key=lambda each: (each["date_time"], each["event_id"]))
    found = {(bid["bidder"], bid["auction"]): bid for bid in ordered}
    return [_chosen(bid, "bidder", "auction", "price", "date_time") for bid in found.values()]


def _top(bids: list[Event]) -> list[Row]:
    by_auction = defaultdict[int, list[Event]](list)
    for bid in sorted(bids, key=lambda each: (-each["price"], each["date_time"], each["event_id"])):
        by_auction[bid["auction"]].append(bid)
    return [
        {"place": place} | _chosen(bid, "auction", "bidder", "price", "date_time")
        for found in by_auction.values()
        for place, bid in enumerate(found[:10], 1)
    ]
