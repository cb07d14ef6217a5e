"""What a feed yields: events to deliver in order, and how far everything is known to be sent before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from include.ground.errors import HeadraceError
from include.observe.event_cursors import EventCursor
from include.observe.event_delivery import Event
from include.observe.known_tables import KnownTables

MOST_RUNS = 1000
"""Runs of a stream that one run of a job represents at most, as after an outage of the receiver."""


@dataclass(frozen=True)
class Outgoing:
    """`events` about `key`: `fixed` is written before the first is sent, `done` after the last (None: forget `key`)."""

    key: str
    events: Sequence[Event]
    done: EventCursor | None
    fixed: EventCursor | None = None


def separately(show: Callable[[str], None], events: Iterator[Outgoing]) -> Iterator[Outgoing]:
    """Yield the due events of one dataset; its errors are shown and do not affect other datasets."""
    try:
        yield from events
    except HeadraceError as error:
        show(f"{error.what}; tried again")


Cursors = Mapping[str, EventCursor]
Feed = Callable[[KnownTables, Cursors], Iterator[Outgoing]]
"""Yields the due events; each is requested after the previous one was delivered."""
