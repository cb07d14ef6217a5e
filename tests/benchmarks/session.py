"""One session: a new state folder and broker, and a driver of one dataset.

Sessions are independent of each other, so the spread over several of them is that of the whole platform, with the JIT.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

from benchmarks.event_supply import FEEDS, EventSupply
from benchmarks.follower import BenchFailed, Ends, PublicationFollower
from benchmarks.sending import Target, send_frames
from benchmarks.sent_records import SentRecords
from benchmarks.state import LogLine, stopped_afterwards, temporary_state
from include.ground.kafka import ensure_topic, readable_end_offsets
from include.ground.paths import publication_path
from include.ground.processes import NoProgress, Waiting
from include.ground.settings import Settings
from include.run.start_stop import up
from include.state.process_states import stream_name
from include.state.run_files import bootstrap_servers, process_signs, read_run_file

PARTITIONS = 2
COLD_EVENTS = 2_000
"""Events that are in the topic before the driver starts."""


@dataclass
class BenchSession:
    """A dataset's broker and driver, the events for it, and what was sent. `cold`: see `start_driver`, 0 before it."""

    settings: Settings
    dataset: str
    log: LogLine
    supply: EventSupply
    sent: SentRecords
    cold: float = 0.0

    @cached_property
    def bootstrap(self) -> str:
        """Return the broker's address."""
        return bootstrap_servers(self.settings)

    @property
    def target(self) -> Target:
        """Return the dataset's topic."""
        return Target(self.bootstrap, FEEDS[self.dataset].topic, self.sent)

    def follower(self) -> PublicationFollower:
        """Return a new observer of the stream."""
        return PublicationFollower(self.settings, self.dataset)

    def readable_ends(self) -> Ends:
        """Return how far the topic can be read now."""
        return readable_end_offsets(self.bootstrap, FEEDS[self.dataset].topic)

    def await_published(self) -> None:
        """Wait until everything readable is published."""
        follower, ends = self.follower(), self.readable_ends()
        follower.follow(lambda: follower.reached(ends))


@contextmanager
def cold_session(dataset: str, keep: bool, log: LogLine) -> Iterator[BenchSession]:
    """Yield a session with COLD_EVENTS in the topic, whose driver is not started."""
    with temporary_state(dataset, keep) as settings:
        if keep:
            log(f"state folder (not removed): {settings.state}")
        with stopped_afterwards(settings, log):
            session = BenchSession(settings, dataset, log, EventSupply(dataset), SentRecords(dataset))
            up(settings, [], log)
            ensure_topic(session.bootstrap, session.target.topic, PARTITIONS)
            send_frames(session.target, session.supply.frames(COLD_EVENTS))
            yield session


@contextmanager
def warm_session(dataset: str, warm_up: int, keep: bool, log: LogLine) -> Iterator[BenchSession]:
    """Yield a session whose driver has processed `warm_up` events."""
    with cold_session(dataset, keep, log) as session:
        session.cold = start_driver(session)
        log(f"{dataset}: first publication after {session.cold:.1f} s; warm-up: {warm_up:,} events …")
        send_frames(session.target, session.supply.frames(max(0, warm_up - COLD_EVENTS)))
        session.await_published()
        yield session


def start_driver(session: BenchSession) -> float:
    """Start the driver; return the seconds from its process to its first publication. Raises BenchFailed."""
    settings, published = session.settings, publication_path(session.settings, session.dataset)
    signs = partial(process_signs, settings, stream_name(session.dataset))
    with ThreadPoolExecutor(1, "up") as pool:
        starting = pool.submit(up, settings, [session.dataset], session.log)

        def has_published() -> bool:
            if starting.done():
                starting.result()
            return published.exists()

        try:
            Waiting(session.dataset, lambda: signs() if starting.done() else time.monotonic()).holds(
                has_published, 0.01
            )
        except NoProgress as error:
            raise BenchFailed(f"the driver published nothing, {error.why}", settings, session.dataset) from error
        at = time.time()
        starting.result()
    driver = read_run_file(settings, stream_name(session.dataset))
    if driver is None:
        raise BenchFailed("the driver is gone", settings, session.dataset)
    return at - driver.started
