"""What one live run of a few thousand rows costs, by step: make bench-run.

Refines batches of flights in one warm process, as a driver does. Every second run is the product's `refine`, whole;
the others go step by step and gold table by gold table, so that each has seconds and CPU of its own. Medians are
printed: CPU seconds hardly depend on what else the machine does, seconds do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from deliveries import days_of, deliveries
from small_release import SmallRelease, small_release

from include.ground.settings import Settings
from include.producers.faults import DEFAULT_SHARES
from include.read.publication import publish
from spark_jobs.backends.spark_session import open_session
from spark_jobs.layers.silver_tables import RefineRun
from spark_jobs.stream.refine import commit_gold, commit_silver, publication_of
from spark_jobs.tables.failpoints import Step, step_listeners

MONTHS = [f"2013-{month:02}-{day:02}" for month in range(1, 5) for day in range(1, 29)]
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Meter:
    """Seconds, and CPU seconds of the JVM and of this process, of each step in each run."""

    jvm: int
    steps: dict[str, list[tuple[float, float, float]]] = field(default_factory=lambda: defaultdict(list))

    def now(self) -> tuple[float, float, float]:
        fields = Path(f"/proc/{self.jvm}/stat").read_text("ascii").rpartition(")")[2].split()
        return time.monotonic(), (int(fields[11]) + int(fields[12])) / TICKS, time.process_time()

    def note(self, name: str, since: tuple[float, float, float]) -> tuple[float, float, float]:
        """Note what a step took since the last one; return now."""
        now = self.now()
        self.steps[name].append((now[0] - since[0], now[1] - since[1], now[2] - since[2]))
        return now

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        since = self.now()
        yield
        self.note(name, since)

    def results(self) -> dict[str, dict[str, float]]:
        """Median seconds, mean CPU seconds: a tick of the JVM's clock is 10 ms."""
        return {
            name: {
                "seconds": round(median(each[0] for each in found), 4),
                "jvm_cpu": round(sum(each[1] for each in found) / len(found), 4),
                "python_cpu": round(sum(each[2] for each in found) / len(found), 4),
            }
            for name, found in self.steps.items()
        }


@contextmanager
def listening(listener: Callable[[Step], None]) -> Iterator[None]:
    step_listeners.append(listener)
    try:
        yield
    finally:
        step_listeners.remove(listener)


def refine_by_steps(made: SmallRelease, batch: int, meter: Meter) -> None:
    """Execute one run as `refine` does, one gold table at a time."""
    run, release = RefineRun(batch, batch, made.epoch), made.release
    since = [meter.now()]
    names = {Step.SILVER_WRITTEN: "write silver, rejected", Step.SILVER_COMMITTED: "commit silver"}
    names[Step.REJECTED_COMMITTED] = "commit rejected"

    def note(step: Step) -> None:
        if step in names:
            since[0] = meter.note(names[step], since[0])

    with listening(note):
        decided = commit_silver(release, run)
    for target in release.gold:
        with meter.step(target.table.spec.name):
            commit_gold(replace(release, gold=(target,)), run, decided=decided)
    with meter.step("publish"):
        publish(made.settings, publication_of(made.settings, release, batch))


def measured(made: SmallRelease, batches: range, meter: Meter) -> None:
    for batch in batches:
        if batch % 2:
            refine_by_steps(made, batch, meter)
        else:
            with meter.step("whole run"):
                made.refine(batch, batch)


def main() -> int:
    """Print the medians as a table, or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--warm", type=int, default=30)
    parser.add_argument("--dataset", default="flights")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace run cost ") as name:
        settings = Settings(state=Path(name) / "state", driver_memory="2g")
        spark = open_session(settings, "run cost")
        meter = Meter(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
        made = small_release(spark, settings, chosen.dataset)
        sent = [item.record for item in deliveries(chosen.dataset, days_of(*MONTHS), DEFAULT_SHARES, 7)]
        total = chosen.warm + chosen.runs
        if total * chosen.rows > len(sent):
            parser.error(f"{total} runs need {total * chosen.rows:,} records; four months have {len(sent):,}")
        for number in range(total):
            made.ingest(sent[number * chosen.rows : (number + 1) * chosen.rows])
        measured(made, range(chosen.warm), Meter(meter.jvm))
        measured(made, range(chosen.warm, total), meter)
    print_results(meter.results(), chosen, total - chosen.warm)
    return 0


def print_results(found: dict[str, dict[str, float]], chosen: argparse.Namespace, runs: int) -> None:
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{runs} warm runs of {chosen.rows:,} rows of {chosen.dataset}")
    print(f"{'step':28} {'ms':>8} {'JVM CPU ms':>11} {'Python CPU ms':>14}")
    for step, each in found.items():
        figures: list[Any] = [1000 * each[name] for name in ("seconds", "jvm_cpu", "python_cpu")]
        print("{:28} {:8.0f} {:11.0f} {:14.0f}".format(step, *figures))


if __name__ == "__main__":
    sys.exit(main())
