"""Watching until all is published: one look after the other, what changed between them, and when to give up.

Reads: what `headrace status` reads, and the feeding.  Never acts.
Ends: everything sent is published; a process is lost (StreamLost); refine stays halted (RefineHalted); no number
changes any more (NothingMoves); sending failed (its own error).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from include.demo.demo_feed import Fed, Feeding
from include.errors import Terminal
from include.ledger.ledger_reader import open_reader
from include.paths import log_path
from include.settings import Settings
from include.state.driver_status import stream_status
from include.state.process_states import ProcessState, ProcessStatus
from include.status.stream_progress import DatasetProgress, Progress, observe_progress

LOOK_EVERY = 1.0
RATE_OVER = 5.0
HALTED_FOR = 45.0
# Longer than a batch takes on a machine that is busy with other things.
STILL_FOR = 180.0


class StreamLost(Terminal):
    """A process that the demo needs is gone; `status` is how it was seen."""

    def __init__(self, status: ProcessStatus, log: Path) -> None:
        said = f": {status.detail}" if status.detail else ""
        super().__init__(
            f"{status.name} is {status.state.label}{said}; what is committed stays",
            f'read "{log}", then: headrace demo   (it goes on from here)',
        )
        self.status = status


class RefineHalted(Terminal):
    """Refine fails again and again; bronze goes on."""

    def __init__(self, status: ProcessStatus, seconds: float, log: Path) -> None:
        super().__init__(
            f"{status.name} has been halted for {seconds:.0f} s: {status.detail}; bronze goes on, nothing is lost",
            f'read "{log}", then: headrace demo   (it goes on from here)',
        )
        self.status = status


class NothingMoves(Terminal):
    """No number has changed for `seconds`, and not everything is published."""

    def __init__(self, seconds: float, behind: Mapping[str, int | None], logs: Path) -> None:
        missing = ", ".join(f"{name}: {'?' if count is None else f'{count:,}'}" for name, count in behind.items())
        super().__init__(
            f"nothing has moved for {seconds:.0f} s; records not published: {missing}; nothing is lost",
            f'headrace status, and the logs in "{logs}"; then: headrace demo   (it goes on from here)',
        )
        self.seconds, self.behind = seconds, behind


@dataclass(frozen=True)
class Look:
    """One look: `at` (monotonic seconds), the platform's progress, and how far the runs are sent, by feed.

    `ingested`: offsets in bronze by dataset, as the driver says; the ledger counts them only after the next refine.
    """

    at: float
    progress: Progress
    fed: Mapping[str, Fed]
    ingested: Mapping[str, int] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether all runs are sent and all that is in Kafka is published, with its rows counted."""
        return all(fed.finished for fed in self.fed.values()) and all(map(settled, self.datasets))

    @property
    def datasets(self) -> list[DatasetProgress]:
        """The datasets that the demo feeds."""
        return [dataset for dataset in self.progress.datasets if dataset.dataset in self.fed]

    @property
    def processes(self) -> list[ProcessStatus]:
        """Broker and streams that the demo needs."""
        names = {dataset.process.name for dataset in self.datasets} | {"broker"}
        return [process for process in self.progress.processes if process.name in names]


def settled(dataset: DatasetProgress) -> bool:
    """Return whether readers see all of a dataset and the ledger has counted it, as it does right after publishing."""
    rows = dataset.rows
    counted = None not in (rows["silver"], rows["rejected"]) and refined_rows(dataset) == rows["bronze"]
    return dataset.lag.offsets == 0 and counted


def refined_rows(dataset: DatasetProgress) -> int:
    """Return the records that silver and rejected account for."""
    return (dataset.rows["silver"] or 0) + (dataset.rows["rejected"] or 0)


def take_look(settings: Settings, feeding: Feeding) -> Callable[[], Look]:
    """Return a function that looks once, with one ledger reader for all looks."""
    ledger = open_reader(settings)

    def look() -> Look:
        ingested = {name: sum(stream_status(settings, name).ingested.values()) for name in feeding.fed}
        return Look(time.monotonic(), observe_progress(settings, ledger), dict(feeding.fed), ingested)

    return look


@dataclass(frozen=True)
class Rates:
    """Records/s over the last seconds, by dataset: into Kafka, and judged into silver or rejected."""

    kafka: Mapping[str, float]
    refined: Mapping[str, float]


class Recent:
    """The looks of the last few seconds, for rates that a person can read."""

    def __init__(self, over: float = RATE_OVER) -> None:
        self._over = over
        self._looks: deque[Look] = deque()

    def rates(self, look: Look) -> Rates:
        """Take in a look and return the rates since the oldest one kept."""
        self._looks.append(look)
        while len(self._looks) > 2 and look.at - self._looks[1].at >= self._over:
            self._looks.popleft()
        first = self._looks[0]
        seconds = max(look.at - first.at, 1e-9)
        return Rates(
            _change(first, look, seconds, lambda dataset: dataset.rows["kafka"] or 0),
            _change(first, look, seconds, refined_rows),
        )


def _change(before: Look, now: Look, seconds: float, count: Callable[[DatasetProgress], int]) -> dict[str, float]:
    first = {dataset.dataset: count(dataset) for dataset in before.datasets}
    return {
        dataset.dataset: max(0, count(dataset) - first.get(dataset.dataset, 0)) / seconds for dataset in now.datasets
    }


class Patience:
    """Knows since when nothing has moved, and since when refine has been halted."""

    def __init__(self, settings: Settings, still_for: float = STILL_FOR, halted_for: float = HALTED_FOR) -> None:
        self._settings, self._still_for, self._halted_for = settings, still_for, halted_for
        self._numbers: object = None
        self._moved_at = 0.0
        self._halted: dict[str, float] = {}

    def judge(self, look: Look) -> None:
        """Raise StreamLost, RefineHalted or NothingMoves when waiting longer cannot help."""
        for process in look.processes:
            self._judge_process(process, look.at)
        numbers = seen_numbers(look)
        if numbers != self._numbers:
            self._numbers, self._moved_at = numbers, look.at
        still = look.at - self._moved_at
        if still >= self._still_for:
            behind = {dataset.dataset: dataset.lag.offsets for dataset in look.datasets}
            raise NothingMoves(still, behind, log_path(self._settings, "broker").parent)

    def _judge_process(self, process: ProcessStatus, at: float) -> None:
        if process.state.terminal:
            raise StreamLost(process, log_path(self._settings, process.name))
        if process.state is not ProcessState.HALTED:
            self._halted.pop(process.name, None)
            return
        halted = at - self._halted.setdefault(process.name, at)
        if halted >= self._halted_for:
            raise RefineHalted(process, halted, log_path(self._settings, process.name))


def seen_numbers(look: Look) -> object:
    """Return every number that moves while work is done."""
    fed = tuple((fed.feed, fed.sent, fed.total, fed.finished) for fed in look.fed.values())
    return (
        fed,
        dict(look.ingested),
        tuple((d.dataset, d.batches, tuple(d.rows.items()), d.lag.offsets) for d in look.datasets),
    )


def watch(
    looks: Iterable[Look], patience: Patience, show: Callable[[Look, Rates], None], failed: Callable[[], None]
) -> Look:
    """Show look after look until one is done, and return it; raises what `patience` or `failed` raise."""
    recent = Recent()
    for look in looks:
        failed()
        show(look, recent.rates(look))
        if look.done:
            return look
        patience.judge(look)
    raise RuntimeError("looks ended before everything was published")


def looks_every(look: Callable[[], Look], seconds: float = LOOK_EVERY) -> Iterable[Look]:
    """Yield looks without end, at most one each `seconds`."""
    while True:
        seen = look()
        yield seen
        time.sleep(max(0.0, seconds - (time.monotonic() - seen.at)))
