"""A dataset in a state folder with a real broker, and its drivers as processes that are always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import polars as pl
import psutil
from readings import Sent, readings, wrong_rows
from sqlalchemy import select

from include.audit.kafka import open_topic
from include.audit.run import audit_dataset
from include.ground.kafka import ensure_topic, log_end_offsets
from include.ground.paths import log_path, publication_path, run_path, status_path, warehouse
from include.ground.settings import CLONE, Settings
from include.observe.ledger_schema import FACTS, open_engine
from include.producers.sending import produce
from include.run.child_process import driver_command
from include.run.kafka_broker import answers, start_broker
from include.run.start_stop import down
from include.state.process_states import log_size, stream_name
from include.state.run_files import RunFile, bootstrap_servers, write_run_file

TEMPLATE = Path(__file__).parent / "datasets" / "meter"
# Drivers of these tests run for seconds: the optimising compiler costs more than it gains.
FAST_START_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
TIMEOUT = 300.0


@dataclass
class Driver:
    """A driver's process, in a session with its JVM; `since`: the size of the log before its start."""

    process: subprocess.Popen[bytes]
    log: Path
    since: int

    def wait(self, within: float = TIMEOUT) -> int:
        """Wait for the end; return the exit code (negative: the signal)."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end within {within:.0f} s\n{self.log_text()[-4000:]}") from None

    def log_text(self) -> str:
        """Return the log lines of this driver."""
        with self.log.open("rb") as file:
            file.seek(self.since)
            return file.read().decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the Python process."""
        self.process.send_signal(number)

    def is_stopped(self) -> bool:
        """Whether the Python process is suspended (SIGSTOP)."""
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def kill(self) -> None:
        """Kill the process and its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


@dataclass
class Site:
    """One dataset of a state folder, a copy of `meter` under its own name."""

    settings: Settings
    dataset: str
    sent: list[Sent] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)
    sent_count: int = 0
    backend: str = "auto"
    variables: dict[str, str] = field(default_factory=dict)
    """More of the environment of commands and drivers."""

    def prepare(self, partitions: int = 2) -> None:
        """Create the dataset's folder and topic."""
        copy_dataset(TEMPLATE, self.settings.datasets / self.dataset, self.dataset)
        ensure_topic(self.bootstrap, self.dataset, partitions)

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return bootstrap_servers(self.settings)

    @property
    def checkpoint(self) -> Path:
        """The dataset's checkpoint folder, with one folder per generation."""
        return self.settings.state / "checkpoints" / self.dataset

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of commands and drivers."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        mine = {
            "HEADRACE_STATE": str(self.settings.state),
            "HEADRACE_DATASETS": str(self.settings.datasets),
            "HEADRACE_DRIVER_MEMORY": "1g",
            "HEADRACE_CONSOLE": "off",
            "HEADRACE_BACKEND": self.backend,
            "HEADRACE_DRIVER_JVM": FAST_START_JVM,
            "HEADRACE_TRIGGER_SECONDS": "0.25",
            "PYTHONUNBUFFERED": "1",
        }
        return plain | mine | self.variables | dict(more)

    def start_driver(self, failpoint: str = "", **more: str) -> Driver:
        """Start a driver, as `headrace up` would; `failpoint` is HEADRACE_FAILPOINT in its environment alone."""
        name = stream_name(self.dataset)
        since, log = log_size(self.settings, name), log_path(self.settings, name)
        log.parent.mkdir(parents=True, exist_ok=True)
        variables = {"HEADRACE_FAILPOINT": failpoint} if failpoint else {}
        argv = driver_command(self.dataset)
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                cwd=CLONE,
                env=self.environment(variables | more),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        driver = Driver(process, log, since)
        self.drivers.append(driver)
        started = psutil.Process(process.pid).create_time()
        write_run_file(self.settings, RunFile(name, process.pid, started, argv))
        return driver

    def start_second_driver(self) -> Driver:
        """Start another driver; the run file stays that of the first."""
        path = run_path(self.settings, stream_name(self.dataset))
        mine = path.read_bytes()
        second = self.start_driver()
        path.write_bytes(mine)
        return second

    def send(self, count: int = 200, key: Callable[[Sent], str] = attrgetter("key")) -> None:
        """Send the next `count` readings, with their duplicates and invalid records; `key` decides on the partition."""
        fresh = readings(self.sent_count, count)
        rows = [(key(item).encode(), item.value.encode(), None) for item in fresh]
        schema = {"key": pl.Binary, "value": pl.Binary, "fault": pl.String}
        produce(self.bootstrap, self.dataset, pl.DataFrame(rows, schema=schema, orient="row"))
        self.sent_count += count
        self.sent += fresh

    @contextmanager
    def sending(self, count: int = 50, pause: float = 0.2) -> Iterator[None]:
        """Send `count` readings again and again, in a thread; AssertionError afterwards if a record was not accepted.

        An error of the block itself comes first: it may be why sending failed.
        """
        enough, failures = threading.Event(), list[BaseException]()

        def send() -> None:
            try:
                while not enough.wait(pause):
                    self.send(count)
            except BaseException as error:  # noqa: BLE001  (reported below)
                failures.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()
        assert not failures, f"sending failed: {failures[0]!r}"

    def command(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `headrace …`; return exit code and output."""
        return subprocess.run(
            [sys.executable, "-m", "include.cli.main", *words],
            cwd=CLONE,
            env=self.environment(more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        """Return the driver's last status, {} for none."""
        try:
            status = json.loads(status_path(self.settings, stream_name(self.dataset)).read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        assert isinstance(status, dict)
        return status

    def publication(self) -> dict[str, Any]:
        """Return the publication, with batch -1 before the first."""
        path = publication_path(self.settings, self.dataset)
        found = json.loads(path.read_text("utf-8")) if path.exists() else {"batch": -1, "offsets": {}}
        assert isinstance(found, dict)
        return found

    def is_published(self) -> bool:
        """Whether everything in the topic is published."""
        ends = log_end_offsets(self.bootstrap, self.dataset)
        return {str(p): end for p, end in ends.items()} == self.publication()["offsets"]

    def wait_published(self, driver: Driver, within: float = TIMEOUT) -> None:
        """Wait until everything in the topic is published by `driver`."""
        wait_until(self.is_published, f"{self.dataset} is published", driver, within)

    def wait_state(self, state: str, driver: Driver, within: float = TIMEOUT) -> dict[str, Any]:
        """Wait until `driver` reports `state`; return its status."""
        mine = driver.process.pid
        wait_until(
            lambda: self.status().get("pid") == mine and self.status().get("state") == state,
            f"{self.dataset} is {state}",
            driver,
            within,
        )
        return self.status()

    def assert_nothing_lost(self) -> None:
        """Assert a balanced audit, the rows that the sent records must give, and each commit once."""
        audit = audit_dataset(self.settings, self.dataset, partial(open_topic, self.bootstrap, jars=self.settings.jars))
        assert audit.balanced, [finding.sentence() for finding in audit.findings[:5]]
        wrong = wrong_rows(self.publication(), warehouse(self.settings), self.dataset, self.sent)
        assert not wrong, wrong
        assert not (wrong := repeated_commits(warehouse(self.settings) / self.dataset)), wrong

    def assert_ledger_right(self) -> None:
        """Assert that a rebuild of the ledger leaves this dataset's rows as they are.

        The state folder has datasets of other tests, ended at any step, or with other warehouses.
        """
        before = self.ledger_rows()
        rebuilt = self.command("ledger", "rebuild")
        assert rebuilt.returncode == 0, rebuilt.stderr
        assert before["batches"]
        assert self.ledger_rows() == before

    def ledger_rows(self) -> dict[str, set[tuple[Any, ...]]]:
        """Return the rows of the dataset in each table of the ledger that a rebuild must reproduce."""
        engine = open_engine(self.settings)
        try:
            with engine.connect() as connection:
                ours = {each.name: select(each).where(each.c.dataset == self.dataset) for each in FACTS}
                return {name: {tuple(row) for row in connection.execute(rows)} for name, rows in ours.items()}
        finally:
            engine.dispose()

    def kill_all(self) -> None:
        """Kill every driver of this site."""
        for driver in self.drivers:
            driver.kill()


def copy_dataset(template: Path, place: Path, name: str) -> None:
    """Copy a dataset's folder and replace its name by `name` in all files."""
    for path in sorted(p for p in template.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        copy = place / path.relative_to(template)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text("utf-8").replace(template.name, name), "utf-8")


def wait_until(holds: Callable[[], bool], what: str, driver: Driver | None = None, within: float = TIMEOUT) -> None:
    """Wait until `holds`; AssertionError with the driver's log if it ends before, or after `within` seconds."""
    end = time.monotonic() + within
    while not holds():
        gone = driver is not None and driver.process.poll() is not None
        late = time.monotonic() > end
        if (gone and not holds()) or late:
            log = driver.log_text()[-4000:] if driver else ""
            how = f"the driver ended with {driver.process.returncode}" if gone and driver else f"{within:.0f} s passed"
            raise AssertionError(f"{how} before {what}\n{log}")
        time.sleep(0.1)


def repeated_commits(tables: Path) -> str:
    """Return the first violation in the tables' logs, "" for none.

    Versions of an app id ascend strictly, epochs never descend, and batches have no gap.
    """
    for log in sorted({path.parent for path in tables.rglob("*.json") if path.parent.name == "_delta_log"}):
        versions: dict[str, int] = {}
        epoch, last = 0, -1
        for path in sorted(log.glob("*.json")):
            actions = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            known = [a["commitInfo"] for a in actions if "commitInfo" in a]
            metadata = json.loads(known[0].get("userMetadata") or "{}") if known else {}
            # A patch, or a refresh after an interval, belongs to no batch.
            metadata = {} if "plan" in metadata or "batches" not in metadata else metadata
            for transaction in (a["txn"] for a in actions if "txn" in a):
                if transaction["version"] <= versions.get(transaction["appId"], -1):
                    return f"{path}: {transaction} after version {versions[transaction['appId']]}"
                versions[transaction["appId"]] = transaction["version"]
            if metadata and metadata["epoch"] < epoch:
                return f"{path}: epoch {metadata['epoch']} after {epoch}"
            if metadata and metadata["batches"][0] != last + 1:
                return f"{path}: batches {metadata['batches']} after {last}"
            if metadata:
                epoch, last = metadata["epoch"], metadata["batches"][1]
    return ""


def open_broker(settings: Settings) -> None:
    """Start a broker in the state folder without a runner."""
    run = start_broker(settings)
    wait_until(lambda: answers(run), "the broker answers", within=90)


def close_broker(settings: Settings) -> None:
    """End the state folder's broker, and its runner, if one runs."""
    down(settings, lambda _: None)
