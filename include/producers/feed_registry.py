"""The feeds by name: real events, and the generated ones of `include/workloads`."""

from __future__ import annotations

from include.ground.errors import Terminal
from include.producers.ad_events import AD_EVENTS
from include.producers.auction_events import AUCTION_EVENTS
from include.producers.event_feed import Feed
from include.producers.flight_events import FLIGHTS
from include.producers.order_events import LINE_EVENTS, ORDER_EVENTS
from include.producers.post_events import POSTS
from include.producers.search_events import SEARCHES
from include.producers.weather_events import WEATHER

FEEDS: dict[str, Feed] = {feed.name: feed for feed in (FLIGHTS, WEATHER)}
WORKLOADS: dict[str, Feed] = {
    feed.name: feed for feed in (AD_EVENTS, SEARCHES, POSTS, AUCTION_EVENTS, ORDER_EVENTS, LINE_EVENTS)
}


class UnknownFeed(Terminal):
    """No feed has this name; `known` lists the names."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"unknown feed {name!r} (known: {', '.join(known)}); nothing was sent", f"headrace produce {known[0]}"
        )
        self.name = name
        self.known = known


def find_feed(name: str) -> Feed:
    """Return the feed. Raises UnknownFeed."""
    feeds = FEEDS | WORKLOADS
    if name not in feeds:
        raise UnknownFeed(name, tuple(feeds))
    return feeds[name]
