"""The feeds by name."""

from __future__ import annotations

from include.errors import Terminal
from include.producers.event_feed import Feed
from include.producers.flight_events import FLIGHTS
from include.producers.weather_events import WEATHER

FEEDS: dict[str, Feed] = {feed.name: feed for feed in (FLIGHTS, WEATHER)}


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
    if name not in FEEDS:
        raise UnknownFeed(name, tuple(FEEDS))
    return FEEDS[name]
