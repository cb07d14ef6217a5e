"""What a shared driver of many small streams takes: make bench-shared.

Starts copies of the dataset `meter` in one driver, sends each a record a second, and then none. Prints what the driver,
its JVM and the datasets' own processes take of memory (resident) and processors, and how old records are when they are
published; broker and runner are apart. Publications are looked at four times a second.

Usage: shared_speed.py [--datasets N] [--seconds S] [--warm S] [--heap 1g]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import psutil
from confluent_kafka import Message, Producer
from readings import readings
from recovery_site import TEMPLATE, copy_dataset

from include.ground.settings import CLONE, Settings
from include.observe.processes import started_drivers
from include.read.publication import find_publication
from include.state.process_states import stream_name
from include.state.run_files import bootstrap_servers, read_run_file

GOALS = {"streaming": (3072, 0.6, 30.0), "quiet": (2048, 0.05, 0.0)}
"""MB, cores, seconds (95 of 100 records)."""
LOOK_SECONDS = 0.25
MB = 1 << 20


@dataclass
class Stream:
    """A dataset, when each of its records was sent, by partition and offset, and the ages of published ones."""

    name: str
    sent: dict[tuple[int, int], float] = field(default_factory=dict)
    ages: list[float] = field(default_factory=list)
    count: int = 0

    def send(self, producer: Producer) -> None:
        """Send the next record."""
        [record, *_] = readings(self.count, 1)
        self.count += 1
        now = time.time()

        def note(_: object, message: Message) -> None:
            self.sent[message.partition() or 0, message.offset() or 0] = now

        producer.produce(self.name, record.value.encode(), record.key.encode(), on_delivery=note)

    def look(self, settings: Settings) -> None:
        """Note the ages of the records that a new publication has."""
        publication, now = find_publication(settings, self.name), time.time()
        ends = publication.offsets if publication else {}
        for place in [place for place in self.sent if place[1] < ends.get(place[0], 0)]:
            self.ages.append(now - self.sent.pop(place))


@dataclass(frozen=True)
class Usage:
    """What the driver's processes have taken: processor seconds until now, resident bytes now."""

    seconds: float
    resident: int


def usage(settings: Settings, streams: list[Stream]) -> Usage:
    """Return what the shared driver, its JVM and the datasets' own processes take."""
    names = [*started_drivers(settings), *(stream_name(each.name) for each in streams)]
    runs = [run for name in names if (run := read_run_file(settings, name))]
    processes = [psutil.Process(run.pid) for run in runs]
    seconds, resident = 0.0, 0
    for process in (each for one in processes for each in (one, *one.children(recursive=True))):
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
            resident += process.memory_info().rss
    return Usage(seconds, resident)


@contextmanager
def site(count: int, heap: str) -> Iterator[tuple[Settings, list[Stream]]]:
    """Yield the running datasets of a new state folder."""
    with tempfile.TemporaryDirectory(prefix="headrace-shared-") as folder:
        settings = Settings(state=Path(folder) / "state", datasets=Path(folder) / "datasets")
        streams = [Stream(f"meter_{number:02d}") for number in range(count)]
        for each in streams:
            copy_dataset(TEMPLATE, settings.datasets / each.name, each.name)
        given = {"STATE": settings.state, "DATASETS": settings.datasets, "CONSOLE": "off", "SHARED_DRIVER": "auto"}
        given |= {"DRIVER_MEMORY": heap}
        environment = {**os.environ, **{f"HEADRACE_{name}": str(value) for name, value in given.items()}}

        def command(word: str) -> None:
            subprocess.run([sys.executable, "-m", "include.cli.main", word], cwd=CLONE, env=environment, check=True)

        try:
            command("up")
            yield settings, streams
        finally:
            command("down")


def passing(seconds: float, step: Callable[[], object]) -> None:
    """Call `step` again and again until the seconds have passed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        step()
        time.sleep(LOOK_SECONDS)


def measure(name: str, settings: Settings, streams: list[Stream], seconds: float, step: Callable[[], object]) -> None:
    """Print what the driver takes in these seconds, next to the goal."""
    for each in streams:
        each.ages.clear()
    before, began = usage(settings, streams), time.monotonic()
    passing(seconds, step)
    after = usage(settings, streams)
    ages = sorted(age for each in streams for age in each.ages)
    most, cores, late = GOALS[name]
    print(f"{name}: {len(streams)} datasets, {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}")
    print(f"  memory {after.resident / MB:,.0f} MB (goal {most:,})")
    print(f"  processors {(after.seconds - before.seconds) / (time.monotonic() - began):.3f} cores (goal {cores})")
    if ages:
        print(
            f"  age of {len(ages):,} published records: median {median(ages):.1f} s,"
            f" p95 {quantiles(ages, n=20)[-1]:.1f} s (goal {late:.0f}), most {ages[-1]:.1f} s",
        )
    sys.stdout.flush()


def main() -> None:
    """Measure streaming and quiet datasets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--warm", type=float, default=60.0)
    parser.add_argument("--heap", default="1g")
    chosen = parser.parse_args()
    with site(chosen.datasets, chosen.heap) as (settings, streams):
        producer, due = Producer({"bootstrap.servers": bootstrap_servers(settings)}), time.monotonic()

        def stream() -> None:
            nonlocal due
            while time.monotonic() >= due:
                due += 1.0
                for each in streams:
                    each.send(producer)
            producer.poll(0)
            look()

        def look() -> None:
            for each in streams:
                each.look(settings)

        passing(chosen.warm, stream)
        measure("streaming", settings, streams, chosen.seconds, stream)
        producer.flush()
        passing(chosen.warm, look)
        measure("quiet", settings, streams, chosen.seconds, lambda: None)


if __name__ == "__main__":
    main()
