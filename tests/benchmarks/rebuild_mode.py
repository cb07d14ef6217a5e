"""Rebuild: a release over all records while the stream runs, the stream's latency with and without it, and the
longest read of a polling reader while the release is promoted and rolled back."""

from __future__ import annotations

import getpass
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import polars as pl

from benchmarks.latency_mode import measure_latency, sending
from benchmarks.result import Figures
from benchmarks.session import BenchSession
from include.change import stages as plan_stages
from include.change.plan_parameters import ReleaseParameters
from include.change.release import ReleasePlan
from include.change.stages import PlanReporter
from include.ground.settings import Settings
from include.plans.plan import PlanRecord, Stage
from include.read.published_tables import pinned

LONGEST_STREAM = 3600.0
"""Seconds of events that are available while the release is built."""
Act = Callable[[Settings, PlanRecord, str], PlanRecord]


def measure_rebuild(session: BenchSession, rate: float, seconds: float) -> Figures:
    """Measure at `rate` events/s: `seconds` without a build, then during one, then promotion and rollback."""
    quiet = measure_latency(session, rate, seconds)
    session.log(f"rebuild: a release over {session.sent.accepted:,} rows, stream at {rate:,.0f} events/s …")
    session.supply.prepare(round(rate * seconds))
    began, rows = time.monotonic(), session.sent.accepted
    with sending(session, session.supply.frames(round(rate * LONGEST_STREAM)), rate) as phase:
        changed = changed_folder(session)
        record = ReleasePlan().plan(changed, session.dataset, ReleaseParameters(), getpass.getuser(), datetime.now(UTC))
        planned = time.monotonic() - began
        record = run_release(changed, record)
        built = time.monotonic() - began
    session.await_published()
    session.log("rebuild: promoted and rolled back under a polling reader …")
    p95, during = quiet["p95, s"], phase.figures["p95, s"]
    figures = {
        "records": float(rows),
        "seconds to approved": built,
        "records/s": rows / built,
        "s to the plan": planned,
    }
    figures |= {"p95 without, s": p95, "p95 meanwhile, s": during, "p95, times": during / p95}
    return figures | measure_moves(session, record)


def run_release(settings: Settings, record: PlanRecord) -> PlanRecord:
    """Build, compare and approve a planned release."""
    by = getpass.getuser()
    return plan_stages.run_plan(settings, record, PlanReporter(), lambda _: by, by, Stage.APPROVED)


def changed_folder(session: BenchSession) -> Settings:
    """Return the settings with a copy of the datasets, in which the measured one has another comment."""
    folder = session.settings.state / "changed datasets"
    shutil.copytree(session.settings.datasets, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / session.dataset / "pipeline.yaml").open("a", encoding="utf-8") as pipeline:
        pipeline.write("# another release\n")
    return session.settings.model_copy(update={"datasets": folder})


@dataclass
class _Poll:
    """A reader that counts the rows of all published tables repeatedly; polars reads one column for it."""

    session: BenchSession
    waits: list[float] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        with ThreadPoolExecutor(1, "reader") as pool:
            reading = pool.submit(self._poll, stop)
            try:
                yield
            finally:
                stop.set()
            reading.result()

    def _poll(self, stop: threading.Event) -> None:
        while not stop.is_set():
            began, reading = time.monotonic(), pinned(self.session.settings)
            for table in reading.tables:
                reading.read(table).select(pl.len()).collect()
            self.waits.append(time.monotonic() - began)


def measure_moves(session: BenchSession, record: PlanRecord) -> Figures:
    """Promote a release and roll it back; return the seconds of each, and of the longest read meanwhile."""
    figures, by = Figures(), getpass.getuser()
    acts: tuple[tuple[str, Act], ...] = (("promote", plan_stages.apply), ("roll back", plan_stages.roll_back))
    for name, act in acts:
        poll, began = _Poll(session), time.monotonic()
        with poll.running():
            record = act(session.settings, record, by)
            figures[f"{name}, s"] = time.monotonic() - began
        figures[f"{name}, longest read, s"] = max(poll.waits)
    return figures
