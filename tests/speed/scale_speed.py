"""What few and many records cost a driver whose rows executors write, and what a second worker gains: make bench-scale.

A standalone cluster whose workers have a core each. For each number of workers and records the records are sent first;
then a driver starts, which takes them as one batch and publishes them. Shown: seconds and CPU seconds from the moment
that it runs to the publication, of the driver (Python and JVM) and of executors, and its heap after a collection.
With --files the records are in files, one for each worker, which the driver loads into bronze, from its request on.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import psutil
from benchmarks.event_supply import EventSupply
from recovery_site import Driver, Site, close_broker, open_broker
from standalone_cluster import Cluster, standalone_cluster

from include.change.load import LoadPlan
from include.change.plan_parameters import LoadParameters
from include.change.stages import cancel
from include.ground.kafka import ensure_topic
from include.ground.settings import CLONE, Settings
from include.plans.journal import load_plan
from include.producers.sending import produce

WITHIN = 3600.0
JCMD = shutil.which("jcmd") or "jcmd"


@dataclass(frozen=True)
class Figures:
    """Readings of a moment: CPU seconds since each process began."""

    at: float
    driver: float
    executors: float

    @classmethod
    def now(cls, driver: Driver, workers: Sequence[psutil.Process]) -> Figures:
        """Read the clocks; an executor that has ended no longer counts."""
        root = psutil.Process(driver.process.pid)
        return cls(time.monotonic(), cpu([root, *root.children(recursive=True)]), cpu(children(workers)))


def children(workers: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [child for worker in workers for child in worker.children(recursive=True)]


def cpu(processes: Sequence[psutil.Process]) -> float:
    found = 0.0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            found += times.user + times.system
    return found


def heap_megabytes(driver: Driver) -> float:
    """Return the heap that the driver's JVM holds after a full collection."""
    (jvm,) = [each for each in psutil.Process(driver.process.pid).children() if each.name() == "java"]
    subprocess.run([JCMD, str(jvm.pid), "GC.run"], check=True, capture_output=True)
    shown = subprocess.run([JCMD, str(jvm.pid), "GC.heap_info"], check=True, capture_output=True, text=True).stdout
    return sum(int(used) for used in re.findall(r"Gen +total \d+K, used (\d+)K", shown)) / 1024


@contextmanager
def flights(folder: Path) -> Iterator[Site]:
    """Yield a broker and the place of a stream of flights."""
    settings = Settings(state=folder / "state", datasets=CLONE / "include" / "datasets", driver_memory="1g")
    site = Site(settings, "flights")
    try:
        open_broker(settings)
        ensure_topic(site.bootstrap, site.dataset, 2)
        yield site
    finally:
        site.kill_all()
        close_broker(settings)


def measured(site: Site, cluster: Cluster, supply: EventSupply, cores: int, records: int) -> str:
    """Publish this many records by a new driver; return the line of its figures."""
    for frame in supply.frames(records):
        produce(site.bootstrap, site.dataset, frame)
    workers = [psutil.Process(each.pid) for each in cluster.processes[1:]]
    driver = site.start_driver(**cluster.settings(cores), HEADRACE_BATCH_RECORDS=str(records + 1))
    site.wait_state("running", driver, WITHIN)
    since = Figures.now(driver, workers)
    site.wait_published(driver, WITHIN)
    return shown(since, driver, workers, cores, records)


def shown(since: Figures, driver: Driver, workers: Sequence[psutil.Process], cores: int, records: int) -> str:
    """Return the line of what was spent since, and end the driver."""
    now, heap = Figures.now(driver, workers), heap_megabytes(driver)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    wall = now.at - since.at
    spent = f"{now.driver - since.driver:13.1f} {now.executors - since.executors:16.1f}"
    return f"{cores:7} {records:11,} {wall:8.1f} {records / wall:10,.0f} {spent} {heap:8.0f}"


def measured_load(site: Site, cluster: Cluster, supply: EventSupply, cores: int, records: int) -> str:
    """Load this many records from files by a new driver; return the line of its figures."""
    settings, folder = site.settings, site.settings.state / f"{cores} {records} {time.monotonic_ns()}"
    folder.mkdir(parents=True)
    values = pl.concat(supply.frames(records))["value"].drop_nulls()
    for part in range(cores):
        (folder / f"{part}.jsonl").write_bytes(b"\n".join(values.gather_every(cores, part)))
    workers = [psutil.Process(each.pid) for each in cluster.processes[1:]]
    driver = site.start_driver(**cluster.settings(cores))
    site.wait_state("running", driver, WITHIN)
    produce(site.bootstrap, site.dataset, next(supply.frames(100)))
    site.wait_published(driver, WITHIN)
    given = LoadParameters(files=[f"{folder}/*.jsonl"])
    plan = LoadPlan().plan(settings, site.dataset, given, "scale", datetime.now(UTC)).plan
    since = Figures.now(driver, workers)
    LoadPlan().prepare(settings, plan, lambda _: None)
    line = shown(since, driver, workers, cores, records)
    cancel(settings, load_plan(settings, plan.id), "scale")
    return line


def main() -> int:
    """Print a line for each number of workers and records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[5_000, 500_000, 5_000_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--files", action="store_true", help="load the records from files")
    chosen = parser.parse_args()
    titles = ("workers", "records", "seconds", "records/s", "driver CPU s", "executors CPU s", "heap MB")
    print("{:>7} {:>11} {:>8} {:>10} {:>13} {:>16} {:>8}".format(*titles))
    for cores in chosen.workers:
        with (
            tempfile.TemporaryDirectory(prefix="headrace scale ") as name,
            standalone_cluster(Path(name)) as cluster,
            flights(Path(name) / "platform") as site,
        ):
            supply = EventSupply("flights")
            for _ in range(cores):
                cluster.add_worker()
            for records in (chosen.records[0], *chosen.records):
                measure = measured_load if chosen.files else measured
                print(measure(site, cluster, supply, cores, records), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
