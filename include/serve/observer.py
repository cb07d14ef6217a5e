"""The current state that all pages show, observed by one thread: no page waits for Kafka or reads the history."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module

from include.audit.run import AuditOutcome, last_outcome
from include.declare.dataset import released_dataset
from include.ground.errors import HeadraceError, Transient
from include.ground.settings import Settings
from include.observe.ledger_reader import LedgerReader, open_reader
from include.observe.progress import Progress, observe_progress, value_or_note
from include.observe.stream_history import Interval, StreamHistory
from include.observe.watermark import WatermarkStatus
from include.plans.journal import open_plans
from include.plans.plan import PlanRecord
from include.read.publication import Publication, publications

PAUSE, IDLE_PAUSE, IDLE_AFTER = 2.0, 10.0, 30.0
FIRST_WITHIN = 15.0
HISTORY_SECONDS = 1.0
SLOW_PACKAGES = ("duckdb", "polars", "pyarrow.dataset", "deltalake")


@dataclass(frozen=True)
class TimeRange:
    """A range that charts show: `count` intervals of `length` up to now; `label_format` for strftime."""

    name: str
    length: timedelta
    count: int
    label_format: str


RANGES = {
    each.name: each
    for each in (
        TimeRange("hour", timedelta(minutes=1), 60, "%H:%M"),
        TimeRange("day", timedelta(minutes=15), 96, "%d %b %H:%M"),
        TimeRange("month", timedelta(hours=8), 90, "%d %b %H:%M"),
    )
}


@dataclass(frozen=True)
class LiveSnapshot:
    """One observation; `notes` give the reason for each unknown value. `number` grows with each."""

    number: int
    progress: Progress
    plans: Sequence[PlanRecord]
    published: Mapping[str, Publication]
    watermarks: Mapping[str, WatermarkStatus | None]
    audits: Mapping[str, AuditOutcome | None]
    latencies: Mapping[str, float]
    """Seconds that the published contract promises, by dataset."""
    notes: Sequence[str]

    @property
    def at(self) -> datetime:
        return self.progress.at


@dataclass
class LiveObserver:
    """Observes every two seconds while a page is open, else every ten."""

    settings: Settings
    clock: Callable[[], float] = time.monotonic
    ledger: LedgerReader = field(init=False)
    _histories: dict[str, StreamHistory] = field(default_factory=dict)
    _latencies: dict[tuple[str, str], float | None] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stop: threading.Event = field(default_factory=threading.Event)
    _requested: threading.Event = field(default_factory=threading.Event)
    """Set when a page asks or `stop` is called: both end a long pause."""
    _snapshot: LiveSnapshot | None = None
    _requested_at: float = 0.0
    _behind: bool = False
    """Whether the ledger has runs that the histories lack."""

    def __post_init__(self) -> None:
        self.ledger = open_reader(self.settings)

    def start(self) -> None:
        """Start the thread; it ends with the process, or with `stop`."""
        threading.Thread(target=self._run, name="observer", daemon=True).start()

    def stop(self) -> None:
        """End the thread after its current observation."""
        self._stop.set()
        self._requested.set()

    def snapshot(self) -> LiveSnapshot:
        """Return the last observation; wait for the first one. Raises Transient."""
        self._note_request()
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot is not None, FIRST_WITHIN)
        if self._snapshot is None:
            what = f"nothing was observed within {FIRST_WITHIN:.0f} s"
            raise Transient(what, "headrace status, then open it again", code="not-observed")
        return self._snapshot

    def _note_request(self) -> None:
        self._requested_at = self.clock()
        self._requested.set()

    @property
    def number(self) -> int:
        self._note_request()
        return self._snapshot.number if self._snapshot else 0

    def intervals(self, dataset: str, chosen: TimeRange, until: datetime) -> list[Interval]:
        """Return a dataset's figures over a range of time that ends now."""
        with self._changed:
            history = self._histories.get(dataset) or StreamHistory(dataset)
            return history.intervals(until, chosen.length, chosen.count)

    def observe(self) -> LiveSnapshot:
        """Observe once and return the result; what cannot be read becomes a note."""
        settings, notes = self.settings, list[str]()
        progress = observe_progress(settings, self.ledger)
        published = value_or_note(notes, lambda: publications(settings)) or {}
        if published:
            value_or_note(notes, self._advance_histories)
        snapshot = LiveSnapshot(
            number=(self._snapshot.number if self._snapshot else 0) + 1,
            progress=progress,
            plans=value_or_note(notes, lambda: open_plans(settings)) or [],
            published=published,
            watermarks={each.dataset: each.watermark for each in progress.datasets},
            audits={name: last_outcome(settings, name) for name in published},
            latencies={name: found for name, each in published.items() if (found := self._latency(each)) is not None},
            notes=tuple(dict.fromkeys((*progress.notes, *notes))),
        )
        with self._changed:
            self._snapshot = snapshot
            self._changed.notify_all()
        return snapshot

    def _run(self) -> None:
        for name in SLOW_PACKAGES:
            # Otherwise the first page that reads a table would wait for it.
            import_module(name)
        while not self._stop.is_set():
            try:
                self.observe()
            except Exception:  # noqa: BLE001  (an error of one observation must not end all later ones)
                traceback.print_exc()
            if not self._behind:
                self._pause()

    def _pause(self) -> None:
        self._stop.wait(PAUSE)
        # Cleared before the checks: who asks or stops after them ends the wait.
        self._requested.clear()
        if self.clock() - self._requested_at > IDLE_AFTER and not self._stop.is_set():
            self._requested.wait(IDLE_PAUSE - PAUSE)

    def _advance_histories(self) -> None:
        """Read new rows of the ledger, for a second at most; a long history is read in several steps."""
        until, self._behind = time.monotonic() + HISTORY_SECONDS, False
        for name, totals in self.ledger.totals().items():
            history, more = self._histories.setdefault(name, StreamHistory(name)), True
            while more and not self._stop.is_set():
                with self._changed:
                    more = history.advance(self.ledger, totals.releases)
                if more and time.monotonic() > until:
                    self._behind = True
                    break

    def _latency(self, publication: Publication) -> float | None:
        key = (publication.dataset, publication.release)
        if key not in self._latencies:
            self._latencies[key] = None
            if not publication.is_derived:
                with suppress(HeadraceError):
                    self._latencies[key] = released_dataset(self.settings, *key).contract.latency
        return self._latencies[key]
