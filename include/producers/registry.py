"""The feeds by name: real events, and those of the workloads in a clone (`tests/workloads`)."""

from __future__ import annotations

from importlib import import_module

from include.ground.errors import Refused
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


def find_feed(name: str) -> Feed:
    """Return the feed. Raises Refused."""
    feeds = known_feeds()
    if name not in feeds:
        what = f"unknown feed {name!r} (known: {', '.join(feeds)}); nothing was sent"
        raise Refused(what, f"headrace produce {next(iter(feeds))}", code="unknown-feed", known=tuple(feeds))
    return feeds[name]
