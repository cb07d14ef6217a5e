"""Sends recorded changes as events: each poll sends those that are due, in order, until one is not accepted.

Reads: publications, the ledger, Delta logs, plans, validations, run files.  Writes: `openlineage/cursors.json`.
Guarantee: one follower for a state folder. Every publication, stage and validation since the first poll is delivered at
least once, in runs with stable ids. Nothing else waits for it.
After a crash: the next poll sends again what is not known to be delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from include.ground.errors import HeadraceError
from include.ground.paths import openlineage_path
from include.ground.process_place import process_label
from include.ground.settings import Settings
from include.observe.analysis_feed import analysis_events
from include.observe.derived_feed import derived_events
from include.observe.event_cursors import EventCursor, EventCursors, cursors_file
from include.observe.event_delivery import Deliver, EventRefused
from include.observe.event_naming import event_naming
from include.observe.known_tables import KnownTables
from include.observe.ledger_reader import open_reader
from include.observe.outgoing_events import Feed, Outgoing
from include.observe.plan_feed import PlanFeed
from include.observe.process_feed import process_events
from include.observe.quality_feed import quality_events
from include.observe.stream_feed import stream_events
from include.state.broker_address import bootstrap_servers
from include.state.file_locks import take_lock
from include.state.json_file import StateFileUnreadable

UNKNOWN_BROKER = "localhost:9092"
"""The broker in the names of topics until a broker has run."""


@dataclass
class EventFollower:
    """Sends events to `deliver`; `show` prints a line for people.

    `noted`: the errors of the last poll, which are not shown again.
    """

    settings: Settings
    deliver: Deliver
    show: Callable[[str], None]
    feeds: list[Feed] = field(default_factory=list)
    noted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # Runs of drivers first: they are the parents of what the drivers have done.
        self.feeds = [process_events, stream_events, derived_events, analysis_events, quality_events, PlanFeed()]
        self.ledger = open_reader(self.settings)
        self.known: KnownTables | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from sending the same events. Raises LockHeld."""
        with take_lock(openlineage_path(self.settings) / "lock", process_label()):
            yield

    def poll(self) -> int:
        """Send what is due; return how many events were delivered.

        An error of one dataset is shown, and the others follow. Raises ReceiverUnavailable, StateFileUnreadable,
        OSError, PublicationUnreadable.
        """
        stored = cursors_file(self.settings).read() or EventCursors()
        sending = _Sending(self, dict(stored.cursors), known_brokers(self.settings))
        known, before, self.noted = self._known(sending.kafka), self.noted, set()
        for feed in self.feeds:
            for outgoing in feed(known, sending.cursors):
                sending.send(outgoing)
        for error in sorted(self.noted - before):
            self.show(error)
        return sending.delivered

    def _known(self, kafka: str) -> KnownTables:
        """Return the cache of earlier polls, unless the brokers have another address."""
        naming = event_naming(self.settings, kafka)
        if self.known is None or self.known.naming != naming:
            self.known = KnownTables(self.settings, self.ledger, naming, lambda error: self.noted.add(error))
        return self.known


def known_brokers(settings: Settings) -> str:
    """Return the address of the brokers, or the last one known; topics keep their names while the broker is down."""
    with suppress(HeadraceError):
        return str(bootstrap_servers(settings))
    with suppress(StateFileUnreadable):
        return (cursors_file(settings).read() or EventCursors()).kafka or UNKNOWN_BROKER
    return UNKNOWN_BROKER


@dataclass
class _Sending:
    """One poll: advances the cursors as events are delivered."""

    follower: EventFollower
    cursors: dict[str, EventCursor]
    kafka: str
    delivered: int = 0

    def send(self, outgoing: Outgoing) -> None:
        if outgoing.fixed is not None and outgoing.fixed != self.cursors.get(outgoing.key):
            self._move(outgoing.key, outgoing.fixed)
        for event in outgoing.events:
            try:
                self.follower.deliver(event)
                self.delivered += 1
            except EventRefused as error:
                self.follower.show(error.what)
        self._move(outgoing.key, outgoing.done)

    def _move(self, key: str, cursor: EventCursor | None) -> None:
        if cursor is None:
            self.cursors.pop(key, None)
        else:
            self.cursors[key] = cursor
        cursors_file(self.follower.settings).write(EventCursors(dict(self.cursors), self.kafka))
