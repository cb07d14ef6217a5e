"""Which feeds there are."""

from __future__ import annotations

from include.errors import Terminal
from include.producers.event_feed import Feed
from include.producers.flight_events import FLIGHTS
from include.producers.weather_events import WEATHER

FEEDS: dict[str, Feed] = {feed.name: feed for feed in (FLIGHTS, WEATHER)}


class UnknownFeed(Terminal):
    """No feed has this name; `known` lists those that there are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"there is no feed {name!r} (known: {', '.join(known)}); nothing was sent", f"headrace produce {known[0]}"
        )
        self.name = name
        self.known = known


def find_feed(name: str) -> Feed:
    """Return the feed; UnknownFeed lists the known ones."""
    if name not in FEEDS:
        raise UnknownFeed(name, tuple(FEEDS))
    return FEEDS[name]
