"""Growth: what a small run costs at the beginning of a history, and after many batches of it.

Each batch is sent when the one before is published, so a run holds one batch, and its time is the platform's own. What
100,000 commits cost, made without Kafka and Spark, is `make bench-growth`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.cpu_usage import JVM, PYTHON, stream_cpu, used_between
from benchmarks.result import Figures
from benchmarks.sending import send_frames
from benchmarks.session import BenchSession

EVENTS = 500
"""Of a batch."""
PARTS = 4
"""The first part of the batches is compared with the last."""


@dataclass(frozen=True)
class SmallRun:
    """Seconds from the sending of a batch to its publication, and CPU seconds of the stream meanwhile."""

    seconds: float
    cpu: float


def measure_growth(session: BenchSession, batches: int) -> Figures:
    """Publish `batches` batches one by one; return the median cost of a run in the first and in the last part."""
    session.log(f"growth: {batches} batches of {EVENTS} events, one by one …")
    return growth_figures([_small_run(session) for _ in range(batches)])


def growth_figures(runs: Sequence[SmallRun]) -> Figures:
    """Return the medians of the first and of the last part of the runs, and how many times the first the last is."""
    length = max(1, len(runs) // PARTS)
    first, last = runs[:length], runs[-length:]
    figures: Figures = {}
    for name, kind in (("s a run", "seconds"), ("CPU s a run", "cpu")):
        before, after = (median(getattr(run, kind) for run in part) for part in (first, last))
        figures |= {f"{name}, first": before, f"{name}, last": after, f"{name}, times": after / before}
    return figures


def _small_run(session: BenchSession) -> SmallRun:
    before, began = stream_cpu(session.settings, session.dataset), time.monotonic()
    send_frames(session.target, session.supply.frames(EVENTS))
    session.await_published()
    seconds = time.monotonic() - began
    used = used_between(before, stream_cpu(session.settings, session.dataset))
    return SmallRun(seconds, used[JVM] + used[PYTHON])
