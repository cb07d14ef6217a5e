"""The feeds by name: real events, and those of the workloads in a clone (`tests/workloads`)."""

from __future__ import annotations

from importlib import import_module

from include.ground.errors import Terminal
from include.producers.feed import Feed
from include.producers.flights import FLIGHTS
from include.producers.weather import WEATHER

FEEDS: dict[str, Feed] = {feed.name: feed for feed in (FLIGHTS, WEATHER)}


def known_feeds() -> dict[str, Feed]:
    """Return all feeds; an installation without the workloads has the real ones only."""
    try:
        generated: dict[str, Feed] = import_module("workloads.feeds").GENERATED
    except ModuleNotFoundError:
        generated = {}
    return FEEDS | generated


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
    feeds = known_feeds()
    if name not in feeds:
        raise UnknownFeed(name, tuple(feeds))
    return feeds[name]
