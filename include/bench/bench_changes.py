"""Measures changing history: rebuild rate, the stream's latency with and without rebuilds, planning, and the read
times during a promotion and a rollback."""

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

from include.bench.bench_events import EventSupply
from include.bench.bench_latency import Latency, measure_latency
from include.bench.bench_state import DATASET, LogLine
from include.planning import plan_stages
from include.planning.plan_stages import SilentReporter
from include.planning.release_plan import ReleaseParameters, plan_release
from include.planning.replay_plan import ReplayParameters, plan_replay
from include.plans.plan import PlanRecord
from include.plans.stage_results import SliceBuilt, Stage
from include.reading import pinned
from include.reading.publication import read_publication
from include.settings import Settings

Act = Callable[[Settings, PlanRecord, str], PlanRecord]


@dataclass(frozen=True)
class RebuildFigures:
    """A rebuild of all of history on an idle stream: records, seconds of the build, of its job without the start
    (`work_seconds`), and of planning."""

    records: int
    seconds: float
    work_seconds: float
    plan_seconds: float

    @property
    def rate(self) -> float:
        """Records a second, once the job has started."""
        return self.records / self.work_seconds


@dataclass(frozen=True)
class MoveFigures:
    """A promotion or rollback: seconds of the command, and longest read and number of reads of a polling reader."""

    name: str
    seconds: float
    longest_read: float
    reads: int


@dataclass(frozen=True)
class ChangeFigures:
    """All figures. Both latencies are at the same rate; `rebuilding` is during continuous rebuilds (`rebuilds`)."""

    rebuild: RebuildFigures
    quiet: Latency
    rebuilding: Latency
    rebuilds: int
    moves: tuple[MoveFigures, ...]


def measure_changes(
    settings: Settings, bootstrap: str, supply: EventSupply, rate: float, seconds: float, log: LogLine
) -> ChangeFigures:
    """Measure on a warm stream; `rate` events/s for `seconds` each time."""
    log("rebuild: all of history again, the stream idle …")
    rebuild = measure_rebuild(settings)
    quiet = measure_latency(settings, bootstrap, supply, rate, seconds, log)
    log("the same during rebuilds …")
    with repeated_rebuilds(settings) as counted:
        rebuilding = measure_latency(settings, bootstrap, supply, rate, seconds, log)
    log("release: a comment is shipped, promoted and rolled back under a polling reader …")
    return ChangeFigures(rebuild, quiet, rebuilding, len(counted), tuple(measure_moves(settings)))


def measure_rebuild(settings: Settings) -> RebuildFigures:
    """Plan and build a replay of every batch from bronze, then drop it."""
    began, user = time.monotonic(), getpass.getuser()
    record = _planned(settings)
    planned = time.monotonic() - began
    record = plan_stages.run_plan(settings, record, SilentReporter(), lambda _: user, user, Stage.BUILT)
    plan_stages.cancel(settings, record, user)
    built = record.last(SliceBuilt)
    return RebuildFigures(built.records, built.seconds, built.job_seconds, planned)


def _planned(settings: Settings) -> PlanRecord:
    last = read_publication(settings, DATASET).batch
    parameters = ReplayParameters(by="batches", first_batch=0, last_batch=last, source="bronze")
    return plan_replay(settings, DATASET, parameters, getpass.getuser(), datetime.now(UTC))


@contextmanager
def repeated_rebuilds(settings: Settings) -> Iterator[list[RebuildFigures]]:
    """Rebuild repeatedly in the background; the yielded list grows by each completed rebuild."""
    done: list[RebuildFigures] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            done.append(measure_rebuild(settings))

    with ThreadPoolExecutor(1, "rebuilds") as pool:
        working = pool.submit(work)
        try:
            yield done
        finally:
            stop.set()
        working.result()


@dataclass
class _Poll:
    """A reader that counts published silver and gold repeatedly."""

    settings: Settings
    waits: list[float] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()

        def poll() -> None:
            while not stop.is_set():
                began = time.monotonic()
                reading = pinned(self.settings)
                for table in (f"silver.{DATASET}", "gold.carrier_hours"):
                    reading.read(table, columns=["_last_batch" if "gold" in table else "_offset"]).count().collect()
                self.waits.append(time.monotonic() - began)

        with ThreadPoolExecutor(1, "reader") as pool:
            reading = pool.submit(poll)
            try:
                yield
            finally:
                stop.set()
            reading.result()


def measure_moves(settings: Settings) -> Iterator[MoveFigures]:
    """Ship a comment, roll it back."""
    folder = settings.state / "changed datasets"
    shutil.copytree(settings.datasets, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / DATASET / "pipeline.yaml").open("a", encoding="utf-8") as pipeline:
        pipeline.write("# another release\n")
    changed, by = settings.model_copy(update={"datasets": folder}), getpass.getuser()
    record = plan_release(changed, DATASET, ReleaseParameters(), by, datetime.now(UTC))
    record = plan_stages.run_plan(settings, record, SilentReporter(), lambda _: by, by, Stage.APPROVED)
    acts: tuple[tuple[str, Act], ...] = (("promote", plan_stages.apply), ("roll back", plan_stages.roll_back))
    for name, act in acts:
        poll, began = _Poll(settings), time.monotonic()
        with poll.running():
            record = act(settings, record, by)
            seconds = time.monotonic() - began
        yield MoveFigures(name, seconds, max(poll.waits), len(poll.waits))
