"""Advertising events as in the Yahoo Streaming Benchmark: views, clicks and purchases of 1,000 ads in 100 campaigns.

The record is the benchmark's, byte for byte: all seven values are strings, in its order and spacing
(yahoo/streaming-benchmarks, `data/src/setup/core.clj`). An event every 10 ms, so that `event_time` names it. Ads and
their campaigns are the reference table `ads` of the dataset; 100 users and 100 pages, as in the benchmark. Each user
likes every third campaign, and clicks on its ads instead of viewing them; over all events the types are as frequent
as in the benchmark.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

import polars as pl

from include.producers.feed import Feed
from workloads.generated_events import FRAME

EVENTS = 50_000
START = datetime(2026, 3, 1, tzinfo=UTC)
BETWEEN = timedelta(milliseconds=10)
CAMPAIGNS, ADS_OF_A_CAMPAIGN, USERS, PAGES = 100, 10, 100, 100
AD_TYPES = ("banner", "modal", "sponsored-search", "mail", "mobile")
EVENT_TYPES = ("view", "click", "purchase")
TASTES = 3
LIKED, OTHERS = (0.0, 0.7, 0.3), (0.5, 0.15, 0.35)
"""Shares of the event types; a third of `LIKED` and two of `OTHERS` are a third of each."""
SPACE = UUID("6f2dbd8e-62a4-4c0e-9f0c-1d6f4e1f3c55")
SEED = 1


def ids(kind: str, count: int) -> list[str]:
    """Return `count` UUIDs of a kind, the same at each call."""
    return [str(uuid5(SPACE, f"{kind} {number}")) for number in range(count)]


def ads() -> list[tuple[str, str]]:
    """Return each ad with its campaign."""
    campaigns = ids("campaign", CAMPAIGNS)
    return [(ad, campaigns[n // ADS_OF_A_CAMPAIGN]) for n, ad in enumerate(ids("ad", CAMPAIGNS * ADS_OF_A_CAMPAIGN))]


def ad_frame(shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the events moved by `shift`; columns as in `Feed.frame`."""
    numbers = random.Random(SEED)
    of_ads, users, pages = [ad for ad, _ in ads()], ids("user", USERS), ids("page", PAGES)
    tastes = {ad: n // ADS_OF_A_CAMPAIGN % TASTES for n, ad in enumerate(of_ads)}
    rows = []
    for number in range(EVENTS):
        at = START + shift + number * BETWEEN
        milliseconds, ad = str(round(at.timestamp() * 1000)), numbers.choice(of_ads)
        user = numbers.randrange(USERS)
        shares = LIKED if user % TASTES == tastes[ad] else OTHERS
        address = ".".join(str(numbers.randrange(1, 255)) for _ in range(4))
        value = (
            f'{{"user_id": "{users[user]}", "page_id": "{numbers.choice(pages)}", "ad_id": "{ad}", '
            f'"ad_type": "{numbers.choice(AD_TYPES)}", "event_type": "{numbers.choices(EVENT_TYPES, shares)[0]}", '
            f'"event_time": "{milliseconds}", "ip_address": "{address}"}}'
        )
        rows.append((ad.encode(), value.encode(), at, milliseconds))
    return pl.DataFrame(rows, schema=FRAME, orient="row")


AD_EVENTS = Feed(
    name="ad_events",
    topic="ad_events",
    source="50,000 generated events of the Yahoo Streaming Benchmark, 100 a second",
    id_field="event_time",
    time_field="event_time",
    frame=ad_frame,
    wrong_values=(),
    corruptible=False,
)
