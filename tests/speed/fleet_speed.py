"""What the commits and publications of many datasets take, and what breaks first: make bench-fleet.

Makes datasets whose streams are requested, and processes that stand for the drivers that they share. Each process takes
the two leases of each of its datasets in PostgreSQL, claims their tables, and makes runs at the rate that is asked for:
commits of bronze, silver, rejected and a gold table, compaction, publication, ledger, status. Meanwhile this process
looks as a runner, `headrace status`, a scrape and a reader do. Rows come from pyarrow, without Spark; PostgreSQL, Kafka
(one broker with all topics, which are empty), files, leases, commits and publications are the real ones.

In the end each process makes runs as fast as it can, and leases are taken one after the other until PostgreSQL refuses.

Usage: fleet_speed.py [--datasets N] [--drivers D] [--rates 10000,40000] [--seconds S] [--connections C] [--ledger URL]
                      [--requested M] [--lease-seconds L]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
from grown_history import GrownHistory
from recovery_site import TEMPLATE, close_broker, copy_dataset, open_broker

from include.ground.kafka import ensure_topic
from include.ground.paths import lease_path, release_lease_path
from include.ground.ports import LOOPBACK
from include.ground.settings import Settings
from include.observe.ledger_reader import open_reader
from include.observe.ledger_writer import open_writer
from include.observe.metrics import HeadraceCollector
from include.observe.progress import observe_progress
from include.read.publication import Publication, TableVersion, publications, publish, read_publication
from include.run.reconcile import Observation, Policy
from include.run.runner import Runner
from include.state.lease import Lease, LeaseRole, LeaseServerUnavailable, take_lease
from include.state.lease_table import held_leases
from include.state.process_states import ProcessState, stream_name
from include.state.run_files import RunFile, bootstrap_servers, identity_of, write_run_file
from include.state.streams import DriverStatus, request_stream, status_file
from infra.postgres.server import PostgresServer, postgres_server
from spark_jobs.backends.release import claim_tables, tables_of

CONNECTIONS_OF_A_DATASET = 3
"""Two leases, its own and that of its release, and the ledger."""
SPARE = 50
DEFAULT_CONNECTIONS = 100
"""Of PostgreSQL, without a setting."""
PAUSE_OF_LOOKS = 1.0
MB = 1 << 20
Figures = dict[str, float]


@dataclass
class Member:
    """A dataset of a driver, with its leases; its tables are claimed."""

    settings: Settings
    name: str
    history: GrownHistory = field(init=False)
    leases: list[Lease] = field(default_factory=list)

    def __post_init__(self) -> None:
        now = datetime.now(UTC)
        own = lease_path(self.settings, self.name)
        self.leases.append(take_lease(self.settings, own, self.name, now, LeaseRole.STREAM))
        self.history = GrownHistory(self.settings, name=self.name)
        release = release_lease_path(self.settings, self.name, self.history.dataset.release)
        self.leases.append(take_lease(self.settings, release, self.name, now))
        claim_tables(list(tables_of([self.history.release])), self.leases[0])
        started = psutil.Process().create_time()
        write_run_file(self.settings, RunFile(stream_name(self.name), os.getpid(), started, sys.argv))
        self.run()

    def run(self) -> None:
        """Make one run, publish it and report it."""
        self.history.add_batch()
        pid, now = os.getpid(), datetime.now(UTC)
        status = DriverStatus("running", pid=pid, identity=identity_of(pid), at=now, progress_at=now)
        status.release, status.refined_batch = self.history.dataset.release, self.history.batches - 1
        status_file(self.settings, stream_name(self.name)).write(status)


@dataclass
class Fleet:
    """The datasets of one process. A question is `rate seconds`: runs an hour, 0 for as many as it can."""

    members: Sequence[Member]

    def answer(self, rate: float, seconds: float) -> Figures | dict[str, Any]:
        """Make runs for so long; return how many, the age of each when it was published, and what they took."""
        choose, ages = random.Random(len(self.members)), list[float]()
        began, cpu, due = time.monotonic(), time.process_time(), time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            due = due + 3600 / rate if rate else now
            time.sleep(max(0.0, due - now))
            choose.choice(self.members).run()
            ages.append(time.monotonic() - due)
        spent = time.process_time() - cpu
        return {"ages": ages, "cpu": spent, "seconds": time.monotonic() - began, "resident": resident(os.getpid())}


def serve(settings: Settings, names: Sequence[str]) -> None:
    """Open the datasets, then answer each line of standard input."""
    fleet = Fleet([Member(settings, name) for name in names])
    print(json.dumps({"cpu": time.process_time(), "resident": resident(os.getpid())}), flush=True)
    for line in sys.stdin:
        rate, seconds = map(float, line.split())
        print(json.dumps(fleet.answer(rate, seconds)), flush=True)
    for each in fleet.members:
        for lease in each.leases:
            lease.release()


def resident(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / MB


@dataclass
class Driver:
    """A process with a share of the datasets."""

    process: subprocess.Popen[str]

    def ask(self, rate: float, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{rate} {seconds}\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next answer. Raises RuntimeError when the process has ended."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"a driver ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


class Watching(Runner):
    """A runner that observes everything, and acts on nothing."""

    def _reconcile(self, name: str, observed: Observation, now: float) -> bool:
        return observed.status.state is ProcessState.RUNNING


@dataclass
class Looks:
    """What others do meanwhile, each in turn; `seconds`, and those of the processor, that each took, by its name."""

    settings: Settings
    seconds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reader, runner = open_reader(self.settings), Watching(self.settings, Policy(), lambda _: None)
        collector = HeadraceCollector(self.settings)
        self.looks: dict[str, Callable[[], object]] = {
            "a reader: one publication": lambda: read_publication(self.settings, "d0000"),
            "a reader: all publications": lambda: publications(self.settings),
            "leases of all, listed": lambda: held_leases(self.settings),
            "a step of the runner": lambda: runner.step(time.monotonic()),
            "headrace status": lambda: observe_progress(self.settings, reader),
            "a scrape": lambda: list(collector.collect()),
        }

    def until(self, end: float) -> None:
        """Look at everything in turn, again and again, until this monotonic time."""
        while True:
            for name, look in self.looks.items():
                if time.monotonic() > end and self.seconds.get(name):
                    return
                before, cpu = time.monotonic(), time.process_time()
                look()
                took = (time.monotonic() - before, time.process_time() - cpu)
                self.seconds.setdefault(name, []).append(took)
                time.sleep(min(PAUSE_OF_LOOKS, max(0.0, end - time.monotonic())))


@contextmanager
def site(chosen: argparse.Namespace, server: PostgresServer) -> Iterator[Settings]:
    """Yield a state folder with requested datasets, their topics, and a broker."""
    with tempfile.TemporaryDirectory(prefix="headrace-fleet-") as place, ExitStack() as ends:
        folder, names = Path(place), dataset_names(chosen.datasets)
        broker = Settings(state=folder / "broker", console="off")
        open_broker(broker)
        ends.callback(close_broker, broker)
        settings = Settings(
            state=folder / "state",
            datasets=folder / "datasets",
            runner="service",
            kafka_bootstrap=bootstrap_servers(broker),
            lease_url=server.url,
            lease_seconds=chosen.lease_seconds,
            ledger_url=chosen.ledger.format(server=server.url.replace("postgresql:", "postgresql+psycopg:")),
            console="off",
        )
        for name in names:
            copy_dataset(TEMPLATE, settings.datasets / name, name)
            ensure_topic(settings.kafka_bootstrap, name, 1)
            request_stream(settings, name, "bench-fleet")
        # Drivers that start at the same time on a busy machine wait for each other longer than one may.
        with open_writer(settings).transaction():
            pass
        yield settings


def dataset_names(count: int) -> list[str]:
    return [f"d{number:04d}" for number in range(count)]


@contextmanager
def drivers(settings: Settings, names: Sequence[str], count: int) -> Iterator[list[Driver]]:
    """Yield processes that share the datasets, when all have opened them."""
    texts = {name: str(getattr(settings, name)) for name in sorted(settings.model_fields_set)}
    found = []
    for number in range(count):
        argument = json.dumps({"settings": texts, "names": names[number::count]})
        command = [sys.executable, __file__, "--serve", argument]
        found.append(Driver(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)))
    try:
        before = time.monotonic()
        opened = [each.answer() for each in found]
        memory, cpu = sum(each["resident"] for each in opened), sum(each["cpu"] for each in opened)
        took = f"{time.monotonic() - before:.0f} s, CPU {cpu:.0f} s, {memory:,.0f} MB"
        print(f"{len(names):,} datasets opened by {count} processes: {took}", flush=True)
        yield found
    finally:
        for each in found:
            with suppress(OSError):
                each.process.communicate(timeout=120)


def measure(found: Sequence[Driver], server: PostgresServer, looks: Looks, rate: float, seconds: float) -> None:
    """Print what runs at this rate take, and what looking at them takes; rate 0: as many as it can."""
    title = f"{rate:,.0f} runs an hour" if rate else "as fast as it goes"
    looks.seconds.clear()
    before = postgres_seconds(server)
    for each in found:
        each.ask(rate / len(found), seconds)
    looks.until(time.monotonic() + seconds)
    answers = [each.answer() for each in found]
    ages = [1000 * age for answer in answers for age in answer["ages"]]
    lasted = max(answer["seconds"] for answer in answers)
    cpu, database = sum(answer["cpu"] for answer in answers), postgres_seconds(server) - before
    p95 = quantiles(ages, n=20)[-1]
    print(f"{title}: {len(ages):,} runs in {lasted:.0f} s, {3600 * len(ages) / lasted:,.0f} an hour")
    print(f"  age when published: median {median(ages):.0f} ms, p95 {p95:.0f} ms, most {max(ages):,.0f} ms")
    print(f"  CPU of a run: drivers {1000 * cpu / len(ages):.1f} ms, PostgreSQL {1000 * database / len(ages):.1f} ms")
    print(f"  cores: drivers {cpu / lasted:.2f}, PostgreSQL {database / lasted:.2f}; load {os.getloadavg()[0]:.1f}")
    print(f"  PostgreSQL: {connections_of(server):,} connections, {memory_of(server):,.0f} MB of their own")
    for name, took in looks.seconds.items():
        wall, own = [each for each, _ in took], [each for _, each in took]
        print(f"  {name}: median {median(wall):.3f} s, most {max(wall):.3f} s of {len(took)}; CPU {median(own):.3f} s")
    sys.stdout.flush()


def postgres_seconds(server: PostgresServer) -> float:
    """Return the CPU seconds of the server and all that it has started, also what has ended."""
    assert server.process is not None
    total = 0.0
    for process in (parent := psutil.Process(server.process.pid), *parent.children(recursive=True)):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total + sum(parent.cpu_times()[2:4])


def connections_of(server: PostgresServer) -> int:
    """Return how many connections the server has: its processes whose titles name a client's address."""
    return sum(f"{LOOPBACK}(" in " ".join(each.cmdline()) for each in children_of(server))


def memory_of(server: PostgresServer) -> float:
    """Return the MB that the server's processes have for themselves, without what they share."""
    return sum(each.memory_full_info().uss for each in children_of(server)) / MB


def children_of(server: PostgresServer) -> list[psutil.Process]:
    """Return the server's processes."""
    assert server.process is not None
    return psutil.Process(server.process.pid).children(recursive=True)


def print_limit_of_leases(server: PostgresServer) -> None:
    """Take leases in PostgreSQL as it is without a setting, until it refuses."""
    with tempfile.TemporaryDirectory(prefix="headrace-fleet-") as place:
        settings = Settings(
            state=Path(place), runner="service", kafka_bootstrap="127.0.0.1:9", lease_url=server.url, lease_seconds=600
        )
        taken = list[Lease]()
        try:
            for name in dataset_names(DEFAULT_CONNECTIONS + 1):
                taken.append(take_lease(settings, lease_path(settings, name), name, datetime.now(UTC)))
        except LeaseServerUnavailable as error:
            print(f"max_connections={DEFAULT_CONNECTIONS}: {len(taken)} leases, then: {error.what}")
        for lease in taken:
            lease.release()


def print_looks_at_files(count: int) -> None:
    """Print what a step of the runner and reading all publications take, with files alone: no tables, no leases."""
    with tempfile.TemporaryDirectory(prefix="headrace-fleet-") as place:
        settings = Settings(
            state=Path(place) / "state",
            datasets=Path(place) / "datasets",
            runner="service",
            kafka_bootstrap="127.0.0.1:9",
        )
        now, pid, started = datetime.now(UTC), os.getpid(), psutil.Process().create_time()
        tables = {f"table{number}": TableVersion(f"t/{number}", 1) for number in range(4)}
        for name in dataset_names(count):
            copy_dataset(TEMPLATE, settings.datasets / name, name)
            request_stream(settings, name, "bench-fleet")
            write_run_file(settings, RunFile(stream_name(name), pid, started, sys.argv))
            status = DriverStatus("running", pid=pid, identity=identity_of(pid), at=now, progress_at=now)
            status_file(settings, stream_name(name)).write(status)
            publish(settings, Publication(name, "r", 1, now, {0: 1}, tables))
        runner = Watching(settings, Policy(), lambda _: None)
        looks = {"a step of the runner": lambda: runner.step(0.0), "all publications": lambda: publications(settings)}
        print(f"{count:,} datasets of files alone; load {os.getloadavg()[0]:.1f}")
        for title, look in looks.items():
            own = [cpu_seconds(look) for _ in range(5)]
            print(f"  {title}: CPU median {median(own):.3f} s of {len(own)}", flush=True)


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    before = time.process_time()
    call()
    return time.process_time() - before


def main() -> None:
    """Print the figures; with `--serve`, be a driver."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=1_000)
    parser.add_argument("--drivers", type=int, default=20)
    parser.add_argument("--rates", default="10000")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--connections", type=int, default=0, help="of PostgreSQL; 0: as many as the datasets need")
    parser.add_argument("--lease-seconds", type=float, default=30.0, help="more on a machine that is busy otherwise")
    parser.add_argument("--requested", type=int, default=1_000, help="datasets of which there are only files")
    parser.add_argument("--ledger", default="{server}", help="URL of the ledger; empty: SQLite in the state folder")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        given = json.loads(chosen.serve)
        serve(Settings(**given["settings"]), given["names"])
        return
    print_looks_at_files(chosen.requested)
    with postgres_server() as server:
        print_limit_of_leases(server)
    connections = chosen.connections or CONNECTIONS_OF_A_DATASET * chosen.datasets + SPARE
    with ExitStack() as ends:
        server = ends.enter_context(postgres_server(options=("-c", f"max_connections={connections}")))
        settings = ends.enter_context(site(chosen, server))
        found = ends.enter_context(drivers(settings, dataset_names(chosen.datasets), chosen.drivers))
        looks = Looks(settings)
        for rate in (*map(float, chosen.rates.split(",")), 0.0):
            measure(found, server, looks, rate, chosen.seconds)


if __name__ == "__main__":
    main()
