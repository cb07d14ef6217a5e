"""Observes a stream from outside: each publication with its time, and the driver's status of its runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from include.ground.errors import Terminal
from include.ground.paths import log_path, publication_path
from include.ground.settings import Settings
from include.observe.processes import observe_processes
from include.observe.progress import blocking_process
from include.read.publication import find_publication
from include.state.process_states import stream_name
from include.state.streams import LastRun, stream_status

POLL_SECONDS = 0.02
STATUS_SECONDS = 0.25
# Longer than any batch takes.
STALLED_SECONDS = 300.0
Ends = Mapping[int, int]


class BenchFailed(Terminal):
    """The measured stream is lost or stalled, so there is no result."""

    def __init__(self, why: str, settings: Settings, dataset: str) -> None:
        log = log_path(settings, stream_name(dataset))
        super().__init__(f"nothing was measured: {why}", f'again with --keep, then read "{log.name}" in its logs')


@dataclass(frozen=True)
class ObservedPublication:
    """A publication with its exclusive end offsets by partition; `at`: when it was first observed, epoch seconds."""

    at: float
    ends: Ends


@dataclass
class PublicationFollower:
    """Polls the publication file every 20 ms and the driver's status four times a second."""

    settings: Settings
    dataset: str
    publications: list[ObservedPublication] = field(default_factory=list)
    runs: list[LastRun] = field(default_factory=list)
    _last_run: LastRun | None = None
    _stamp: tuple[int, int] | None = None
    _status_at: float = 0.0
    _moved_at: float = field(default_factory=time.monotonic)

    def follow(self, done: Callable[[], bool]) -> None:
        """Poll until `done()`. Raises BenchFailed when the stream is lost or no longer publishes."""
        self._moved_at = time.monotonic()
        while not done():
            self.poll()
            time.sleep(POLL_SECONDS)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Poll in a background thread during the block. Raises what `follow` raises, at the end of the block."""
        stop = threading.Event()
        with ThreadPoolExecutor(1, "follower") as pool:
            polling = pool.submit(self.follow, stop.is_set)
            try:
                yield
            finally:
                stop.set()
            polling.result()

    def reached(self, ends: Ends) -> bool:
        """Return whether the last publication holds everything below `ends`."""
        return bool(self.publications) and all(
            self.publications[-1].ends.get(part, 0) >= end for part, end in ends.items()
        )

    def published(self) -> int:
        """Return the sum of the end offsets of the last publication."""
        return sum(self.publications[-1].ends.values()) if self.publications else 0

    def poll(self) -> None:
        """Poll once."""
        self._read_publication()
        now = time.monotonic()
        if now - self._status_at >= STATUS_SECONDS:
            self._status_at = now
            self._read_status()
            if now - self._moved_at > STALLED_SECONDS:
                raise BenchFailed(f"nothing was published for {STALLED_SECONDS:.0f} s", self.settings, self.dataset)

    def _read_publication(self) -> None:
        try:
            found = publication_path(self.settings, self.dataset).stat()
        except FileNotFoundError:
            return
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return
        publication, at = find_publication(self.settings, self.dataset), time.time()
        if publication is not None:
            self._stamp, self._moved_at = stamp, time.monotonic()
            self.publications.append(ObservedPublication(at, dict(publication.offsets)))

    def _read_status(self) -> None:
        lost = blocking_process(observe_processes(self.settings, [self.dataset]))
        if lost:
            raise BenchFailed(lost, self.settings, self.dataset)
        run = stream_status(self.settings, self.dataset).last_batch
        if run is not None and run != self._last_run:
            self._last_run = run
            self.runs.append(run)


def seconds_per_million(runs: list[LastRun]) -> dict[str, float]:
    """Return wall seconds per million rows by step, over these runs; empty without rows."""
    rows = sum(run.rows for run in runs)
    names = dict.fromkeys(name for run in runs for name in run.steps)
    return {name: 1e6 * sum(run.steps.get(name, 0.0) for run in runs) / rows for name in names} if rows else {}
