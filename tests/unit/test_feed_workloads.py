"""Generated events: the same seed gives the same bytes; distributions and formats are those of the benchmarks."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256

import polars as pl
import pytest
from workloads.ad_events import BETWEEN, ads
from workloads.auction_events import AUCTION, BID, FIRST_ID, PERSON, auction_event
from workloads.feeds import GENERATED
from workloads.search_events import FREQUENT, injected, usual_rate

from include.producers.command import FEEDS
from include.producers.faults import Shares
from include.producers.feed import REPETITION, InvalidEventRange
from include.producers.sending import Run, deliveries

YSB = re.compile(
    r'\{"user_id": "[0-9a-f-]{36}", "page_id": "[0-9a-f-]{36}", "ad_id": "[0-9a-f-]{36}", "ad_type": "[a-z-]+", '
    r'"event_type": "(view|click|purchase)", "event_time": "[0-9]{13}", "ip_address": "[0-9.]+"\}'
)


@cache
def events_of(name: str) -> pl.DataFrame:
    """Return the events of a feed, generated once: those of a feed take up to two seconds."""
    return GENERATED[name].frame(timedelta(0))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.extended] * (name in ("searches", "posts", "auction")))
        for name in GENERATED
    ],
)
def test_generated_events_are_the_same_at_each_call(name: str) -> None:
    feed = GENERATED[name]
    first, again = events_of(name), feed.frame(timedelta(0))
    assert first.columns == ["key", "value", "occurred_at", "event_id"]
    assert sha256(b"".join(first["value"])).digest() == sha256(b"".join(again["value"])).digest()
    assert first["event_id"].n_unique() == first.height
    assert first["occurred_at"].is_sorted()
    assert not set(first["event_id"]) & set(feed.frame(REPETITION)["event_id"])
    assert feed.name == feed.topic == name
    assert name not in FEEDS


def test_ad_events_have_the_format_of_the_benchmark() -> None:
    frame = events_of("ad_events")
    assert all(YSB.fullmatch(value.decode()) for value in frame["value"].head(500))
    assert set(frame["occurred_at"].diff().drop_nulls()) == {BETWEEN}
    kinds = Counter(json.loads(value)["event_type"] for value in frame["value"])
    assert all(abs(count / frame.height - 1 / 3) < 0.02 for count in kinds.values())
    assert Counter(Counter(campaign for _, campaign in ads()).values()) == {10: 100}


def test_auction_events_are_persons_auctions_and_bids_in_the_shares_of_nexmark() -> None:
    events = [json.loads(value) for value in events_of("auction")["value"]]
    kinds = Counter(event["event_type"] for event in events)
    assert [kinds[kind] for kind in (PERSON, AUCTION, BID)] == [400, 1200, 18_400]
    assert [e["auction"] for e in events if e["event_type"] == AUCTION] == list(range(FIRST_ID, FIRST_ID + 1200))
    bids = [event for event in events if event["event_type"] == BID]
    hot = sum((bid["auction"] - FIRST_ID) % 100 == 0 for bid in bids) / len(bids)
    assert 0.48 < hot < 0.54
    assert auction_event(7) == auction_event(7)


def test_searches_follow_the_usual_rate_but_in_injected_hours() -> None:
    rows = [json.loads(value) for value in events_of("searches")["value"]]
    hours = Counter((row["term"], row["searched_at"][:13]) for row in rows)
    for anomaly in injected():
        of_week = anomaly.hour.weekday() * 24 + anomaly.hour.hour
        share = hours[anomaly.term, f"{anomaly.hour:%Y-%m-%dT%H}"] / usual_rate(anomaly.term, of_week)
        assert share > 2 if anomaly.kind == "spike" else share < 0.5, anomaly
    assert len({row["term"] for row in rows} - set(FREQUENT)) == 16


def test_corrupt_ad_events_are_refused() -> None:
    run = Run(GENERATED["ad_events"], shares=Shares(corrupt=0.01))
    with pytest.raises(InvalidEventRange, match="cannot be corrupted"):
        deliveries(run, datetime.now(UTC))


@pytest.mark.parametrize("name", ["searches", "posts", "auction"])
def test_corrupt_records_of_other_workloads_have_a_reason(name: str) -> None:
    feed = replace(GENERATED[name], frame=lambda _: events_of(name))
    rows = deliveries(Run(feed, shares=Shares(corrupt=0.01)), datetime.now(UTC))
    corrupt = rows.filter(rows["fault"] == "corrupt")
    assert corrupt.height > 100
    assert corrupt["reason"].null_count() == 0
