"""The process that sends recorded changes as OpenLineage events. `python -m include.observe.lineage_sender`

Each poll sends the events that are due, in order, until one is not accepted: by HTTP, or as lines of a file. There is
one follower for a state folder. Every publication, stage and validation since the first poll is delivered at least
once, in runs with stable ids; after a crash the next poll sends again what is not known to be delivered.
A receiver that is missing delays nothing but its events; they are tried again with growing pauses.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider
from requests.exceptions import HTTPError, RequestException

from include.ground.errors import HeadraceError, Terminal, Transient, mask_secrets
from include.ground.paths import openlineage_path
from include.ground.processes import process_label, stop_on
from include.ground.settings import Settings, load_settings, read_password
from include.observe.ledger_reader import open_reader
from include.observe.lineage_events import Event, KnownTables, event_naming
from include.observe.plan_feed import PlanFeed
from include.observe.run_feeds import (
    EventCursor,
    EventCursors,
    Feed,
    Outgoing,
    analysis_events,
    cursors_file,
    derived_events,
    process_events,
    quality_events,
    stream_events,
)
from include.state.json_file import StateFileUnreadable
from include.state.lease import take_lock
from include.state.process_states import OPENLINEAGE, ProcessState
from include.state.run_files import bootstrap_servers
from include.state.streams import DriverStatus, status_file

WITHIN = 10.0
ENDPOINT = "api/v1/lineage"
NOT_AN_EVENT = (400, 413, 422)
"""Status codes with which a receiver rejects the event itself for good."""
NO_RETRY = {"total": 0, "read": 0, "connect": 0}
Deliver = Callable[[Event], None]
"""Raises ReceiverUnavailable, EventRefused."""


class ReceiverUnavailable(Transient):
    """The receiver does not accept events now; they are sent later, in the same order."""

    def __init__(self, receiver: str, why: str) -> None:
        super().__init__(
            f"OpenLineage events are not delivered: {receiver}: {why}; they are sent later, and nothing else waits",
            "check HEADRACE_OPENLINEAGE_URL and _KEY_FILE, then: headrace openlineage --once",
        )
        self.receiver = receiver


class EventRefused(Terminal):
    """The receiver rejects an event as invalid; it is skipped."""

    def __init__(self, receiver: str, event: Event, why: str) -> None:
        name = event.job.name
        super().__init__(f"{receiver} refuses an event of job {name}: {why}; it was left out, the others follow")
        self.receiver, self.event = receiver, event


@dataclass(frozen=True)
class HttpReceiver:
    """Posts events to a receiver."""

    transport: HttpTransport
    name: str

    def __call__(self, event: Event) -> None:
        try:
            self.transport.emit(event)
        except HTTPError as error:
            code = error.response.status_code if error.response is not None else 0
            if code in NOT_AN_EVENT:
                raise EventRefused(self.name, event, f"HTTP {code}") from error
            raise ReceiverUnavailable(self.name, f"HTTP {code}") from error
        except RequestException as error:
            raise ReceiverUnavailable(self.name, mask_secrets(_cause(error))) from error


@dataclass(frozen=True)
class FileReceiver:
    """Appends events to a file, one per line."""

    path: Path

    def __call__(self, event: Event) -> None:
        """Append an event; a line that was cut off, as by a full disk, is ended first. Raises ReceiverUnavailable."""
        try:
            _end_cut_line(self.path)
            FileTransport(FileConfig(str(self.path), append=True)).emit(event)
        except (OSError, RuntimeError) as error:
            raise ReceiverUnavailable(str(self.path), str(error)) from error


def _end_cut_line(path: Path) -> None:
    """End the last line of a file, if there is one without its end."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def receiver(settings: Settings) -> Deliver:
    """Return what delivers events. Raises Terminal without a receiver, PasswordUnreadable."""
    if settings.openlineage_url.startswith("file://"):
        return FileReceiver(Path(unquote(urlsplit(settings.openlineage_url).path)))
    if not settings.openlineage_url:
        raise Terminal(
            "no receiver of OpenLineage events is set; nothing was sent",
            "HEADRACE_OPENLINEAGE_URL=http://…, or file:///events.jsonl; headrace openlineage --export FILE needs none",
            code="no-receiver",
        )
    key_file, auth = settings.openlineage_key_file, TokenProvider({})
    if key_file is not None:
        auth = ApiKeyTokenProvider({"apiKey": read_password("HEADRACE_OPENLINEAGE_KEY_FILE", key_file)})
    url, endpoint = split_address(settings.openlineage_url)
    config = HttpConfig(url=url, endpoint=endpoint, timeout=WITHIN, auth=auth, retry=NO_RETRY)
    return HttpReceiver(HttpTransport(config), mask_secrets(settings.openlineage_url))


def split_address(address: str) -> tuple[str, str]:
    """Return the server and the path of a receiver: Marquez's path, unless the address ends in one of its own."""
    parts = urlsplit(address)
    path = parts.path.strip("/")
    own = path.rpartition("/")[2] == "lineage"
    endpoint = path if own else "/".join(filter(None, (path, ENDPOINT)))
    return f"{parts.scheme}://{parts.netloc}/", f"{endpoint}?{parts.query}" if parts.query else endpoint


def _cause(error: BaseException) -> str:
    """Return the innermost reason of an error of the HTTP library, in a line."""
    reason = error.args[0] if error.args else error
    inner = getattr(reason, "reason", reason)
    return str(inner).splitlines()[0] if str(inner) else type(error).__name__


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


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
REFUSED = 2
Wait = Callable[[float], object]


def follow(follower: EventFollower, seconds: float, wait: Wait, ended: Callable[[], bool]) -> None:
    """Poll until `ended`; after an error with pauses that double up to a minute."""
    pause, waiting = FIRST_PAUSE, ""
    while not ended():
        try:
            follower.poll()
        except (HeadraceError, OSError) as error:
            if str(error) != waiting:
                waiting = str(error)
                report(follower, waiting)
            wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            continue
        if waiting:
            report(follower, "")
        pause, waiting = FIRST_PAUSE, ""
        wait(seconds)


def report(follower: EventFollower, waiting: str) -> None:
    """Report why events wait, in the log and in the process's status; "": they are accepted again."""
    follower.show(waiting or "events are accepted again")
    state = ProcessState.WAITING if waiting else ProcessState.RUNNING
    reason = waiting.partition("\n")[0] or None
    with suppress(OSError):
        status_file(follower.settings, OPENLINEAGE).write(
            DriverStatus(state=state.label, reason=reason, pid=os.getpid(), at=datetime.now(UTC))
        )


def serve(settings: Settings, show: Callable[[str], None]) -> None:
    """Send events until SIGTERM or Ctrl-C. Raises Terminal without a receiver, PasswordUnreadable, LockHeld."""
    ended = stop_on(signal.SIGTERM, signal.SIGINT)
    follower = EventFollower(settings, receiver(settings), show)
    with follower.alone():
        show(f"sends OpenLineage events to {mask_secrets(settings.openlineage_url)}")
        follow(follower, settings.openlineage_seconds, ended.wait, ended.is_set)


def main() -> int:
    """Send events until the process is ended; return the exit code."""
    try:
        serve(load_settings(), lambda line: print(f"{datetime.now(UTC):%FT%TZ} {line}", flush=True))
    except HeadraceError as error:
        print(f"headrace: {error}", flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
