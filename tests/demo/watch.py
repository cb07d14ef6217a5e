"""Waits until every sent record is published: polls progress, computes rates, detects a stalled demo.

Ends when everything sent is published, a process is lost, refine stays halted, no count
changes any more, or sending failed (the sender's error).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from demo.feed import FeedProgress, FeedSender
from include.ground.errors import Terminal
from include.ground.paths import log_path
from include.ground.settings import Settings
from include.observe.ledger_reader import open_reader
from include.observe.progress import DatasetProgress, Progress, observe_progress
from include.state.process_states import ProcessState, ProcessStatus
from include.state.streams import stream_status

CONTINUE = "headrace demo   (continues here)"
POLL_SECONDS = 1.0
RATE_SECONDS = 5.0
HALTED_SECONDS = 45.0
# Longer than a batch takes on a busy machine.
STALLED_SECONDS = 180.0


@dataclass(frozen=True)
class Snapshot:
    """Progress of the platform and of the sender (`fed`, by feed) at one moment (`at`, monotonic seconds).

    `ingested`: offsets in bronze by dataset, from the driver's status; the ledger counts them after the next refine.
    """

    at: float
    progress: Progress
    fed: Mapping[str, FeedProgress]
    ingested: Mapping[str, int] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether all runs are sent, and every record in Kafka is published and counted by the ledger."""
        return all(fed.finished for fed in self.fed.values()) and all(map(is_published, self.datasets))

    @property
    def datasets(self) -> list[DatasetProgress]:
        return [dataset for dataset in self.progress.datasets if dataset.dataset in self.fed]

    @property
    def processes(self) -> list[ProcessStatus]:
        names = {dataset.process.name for dataset in self.datasets} | {"broker"}
        return [process for process in self.progress.processes if process.name in names]


def is_published(dataset: DatasetProgress) -> bool:
    """Return whether all records of a dataset are published and the ledger, which follows, has counted them."""
    rows = dataset.rows
    counted = None not in (rows["silver"], rows["rejected"]) and refined_rows(dataset) == rows["bronze"]
    return dataset.lag.offsets == 0 and counted


def refined_rows(dataset: DatasetProgress) -> int:
    """Return the records that silver and rejected account for."""
    return (dataset.rows["silver"] or 0) + (dataset.rows["rejected"] or 0)


def snapshot_reader(settings: Settings, sender: FeedSender) -> Callable[[], Snapshot]:
    """Return a function that takes a snapshot; all snapshots share one ledger reader."""
    ledger = open_reader(settings)

    def snapshot() -> Snapshot:
        ingested = {name: sum(stream_status(settings, name).ingested.values()) for name in sender.fed}
        return Snapshot(time.monotonic(), observe_progress(settings, ledger), dict(sender.fed), ingested)

    return snapshot


@dataclass(frozen=True)
class Rates:
    """Records/s over the last seconds, by dataset: into Kafka, and into silver or rejected."""

    kafka: Mapping[str, float]
    refined: Mapping[str, float]


class RateWindow:
    """The snapshots of the last few seconds, so that the displayed rates are steady."""

    def __init__(self, seconds: float = RATE_SECONDS) -> None:
        self._seconds = seconds
        self._snapshots: deque[Snapshot] = deque()

    def rates(self, snapshot: Snapshot) -> Rates:
        """Add a snapshot and return the rates since the oldest one in the window."""
        self._snapshots.append(snapshot)
        while len(self._snapshots) > 2 and snapshot.at - self._snapshots[1].at >= self._seconds:
            self._snapshots.popleft()
        first = self._snapshots[0]
        seconds = max(snapshot.at - first.at, 1e-9)
        return Rates(
            _change(first, snapshot, seconds, lambda dataset: dataset.rows["kafka"] or 0),
            _change(first, snapshot, seconds, refined_rows),
        )


def _change(
    before: Snapshot, now: Snapshot, seconds: float, count: Callable[[DatasetProgress], int]
) -> dict[str, float]:
    first = {dataset.dataset: count(dataset) for dataset in before.datasets}
    return {
        dataset.dataset: max(0, count(dataset) - first.get(dataset.dataset, 0)) / seconds for dataset in now.datasets
    }


class StallDetector:
    """Tracks how long no count has changed, and how long refine has been halted."""

    def __init__(
        self, settings: Settings, stalled_after: float = STALLED_SECONDS, halted_after: float = HALTED_SECONDS
    ) -> None:
        self._settings, self._stalled_after, self._halted_after = settings, stalled_after, halted_after
        self._numbers: object = None
        self._moved_at = 0.0
        self._halted: dict[str, float] = {}

    def check(self, snapshot: Snapshot) -> None:
        """Raise Terminal when waiting cannot help."""
        for process in snapshot.processes:
            self._check_process(process, snapshot.at)
        numbers = progress_counts(snapshot)
        if numbers != self._numbers:
            self._numbers, self._moved_at = numbers, snapshot.at
        still = snapshot.at - self._moved_at
        if still >= self._stalled_after:
            behind = {dataset.dataset: dataset.lag.offsets for dataset in snapshot.datasets}
            counts = (f"{name}: {'?' if count is None else f'{count:,}'}" for name, count in behind.items())
            what = f"no progress for {still:.0f} s; records not published: {', '.join(counts)}; nothing is lost"
            logs = f'headrace status, and the logs in "{log_path(self._settings, "broker").parent}"'
            raise Terminal(what, f"{logs}; then: {CONTINUE}", code="demo-stalled", behind=behind)

    def _check_process(self, process: ProcessStatus, at: float) -> None:
        remedy = f'read "{log_path(self._settings, process.name)}", then: {CONTINUE}'
        if process.state.terminal:
            detail = f": {process.detail}" if process.detail else ""
            what = f"{process.name} is {process.state.label}{detail}; committed batches are not lost"
            raise Terminal(what, remedy, code="stream-lost", process=process.name)
        if process.state is not ProcessState.HALTED:
            self._halted.pop(process.name, None)
            return
        halted = at - self._halted.setdefault(process.name, at)
        if halted >= self._halted_after:
            what = f"{process.name} has been halted for {halted:.0f} s: {process.detail}"
            raise Terminal(f"{what}; bronze continues, nothing is lost", remedy, code="refine-halted")


def progress_counts(snapshot: Snapshot) -> object:
    """Return every count that changes while work is done."""
    fed = tuple((fed.feed, fed.sent, fed.total, fed.finished) for fed in snapshot.fed.values())
    return (
        fed,
        dict(snapshot.ingested),
        tuple((d.dataset, d.batches, tuple(d.rows.items()), d.lag.offsets) for d in snapshot.datasets),
    )


def watch(
    snapshots: Iterable[Snapshot],
    detector: StallDetector,
    show: Callable[[Snapshot, Rates], None],
    failed: Callable[[], None],
) -> Snapshot:
    """Show every snapshot until one is done, and return it. Raises what `detector` or `failed` raises."""
    recent = RateWindow()
    for snapshot in snapshots:
        failed()
        show(snapshot, recent.rates(snapshot))
        if snapshot.done:
            return snapshot
        detector.check(snapshot)
    raise RuntimeError("snapshots ended before everything was published")


def poll_snapshots(read: Callable[[], Snapshot]) -> Iterable[Snapshot]:
    """Yield snapshots without end, at most one every POLL_SECONDS."""
    while True:
        snapshot = read()
        yield snapshot
        time.sleep(max(0.0, POLL_SECONDS - (time.monotonic() - snapshot.at)))
