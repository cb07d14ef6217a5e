"""A place to be struck: a state folder with a real broker, and drivers as processes that are ended in any case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import psutil
from readings import Sent, readings, wrong_rows

from include.audit.audit_run import audit_dataset
from include.audit.kafka_records import open_topic
from include.clients.kafka import ensure_topic, log_end_offsets
from include.paths import log_path, publication_path, run_path, status_path, warehouse
from include.process_control.driver_process import driver_command
from include.process_control.kafka_broker import answers, start_broker
from include.process_control.start_stop import down
from include.producers.kafka_producer import produce
from include.settings import CLONE, Settings
from include.state.broker_address import bootstrap_servers
from include.state.process_logs import log_size
from include.state.process_states import stream_name
from include.state.run_files import RunFile, write_run_file

TEMPLATE = Path(__file__).parent / "datasets" / "meter"
# A driver of these tests lives for seconds: the optimising compiler costs it more than it gains.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"
AT_MOST = 300.0


@dataclass
class Driver:
    """A driver's process, a session of its own together with its JVM; `since`: the size of its log before it."""

    process: subprocess.Popen[bytes]
    log: Path
    since: int

    def ended(self, within: float = AT_MOST) -> int:
        """Return the exit code (negative: the signal), waiting for it."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end within {within:.0f} s\n{self.said()[-4000:]}") from None

    def said(self) -> str:
        """Return what this driver wrote into its log."""
        with self.log.open("rb") as file:
            file.seek(self.since)
            return file.read().decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the Python process."""
        self.process.send_signal(number)

    def is_stopped(self) -> bool:
        """Whether the Python process holds still."""
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def end(self) -> None:
        """End process and JVM, in whatever state they are."""
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
    numbered: int = 0

    def prepare(self) -> None:
        """Make the dataset's folder and its topic."""
        copy_dataset(TEMPLATE, self.settings.datasets / self.dataset, self.dataset)
        ensure_topic(self.bootstrap, self.dataset, 2)

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
            "HEADRACE_DRIVER_JVM": SHORT_LIVED,
            "HEADRACE_TRIGGER_SECONDS": "0.25",
            "PYTHONUNBUFFERED": "1",
        }
        return plain | mine | dict(more)

    def drive(self, failpoint: str = "", **more: str) -> Driver:
        """Start a driver, as `headrace up` would; `failpoint` is HEADRACE_FAILPOINT in its environment alone."""
        name = stream_name(self.dataset)
        since, log = log_size(self.settings, name), log_path(self.settings, name)
        log.parent.mkdir(parents=True, exist_ok=True)
        wishes = {"HEADRACE_FAILPOINT": failpoint} if failpoint else {}
        argv = driver_command(self.dataset)
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                cwd=CLONE,
                env=self.environment(wishes | more),
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

    def second_driver(self) -> Driver:
        """Start another driver by hand: the run file stays the first one's."""
        path = run_path(self.settings, stream_name(self.dataset))
        mine = path.read_bytes()
        second = self.drive()
        path.write_bytes(mine)
        return second

    def send(self, count: int = 200) -> None:
        """Send the next `count` readings, with the duplicates and broken records that go with them."""
        fresh = readings(self.numbered, count)
        rows = [(item.key.encode(), item.value.encode(), None) for item in fresh]
        schema = {"key": pl.Binary, "value": pl.Binary, "fault": pl.String}
        produce(self.bootstrap, self.dataset, pl.DataFrame(rows, schema=schema, orient="row"))
        self.numbered += count
        self.sent += fresh

    def command(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `headrace …` and return how it ended."""
        return subprocess.run(
            [sys.executable, "-m", "include.cli.main", *words],
            cwd=CLONE,
            env=self.environment(more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=AT_MOST,
            check=False,
        )

    def word(self) -> dict[str, Any]:
        """Return what the driver said last of itself."""
        try:
            said = json.loads(status_path(self.settings, stream_name(self.dataset)).read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        assert isinstance(said, dict)
        return said

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

    def await_published(self, driver: Driver, within: float = AT_MOST) -> None:
        """Wait until everything in the topic is published by `driver`."""
        await_that(self.is_published, f"{self.dataset} is published", driver, within)

    def await_state(self, state: str, driver: Driver, within: float = AT_MOST) -> dict[str, Any]:
        """Wait until `driver` says that it is in `state`; return all it said."""
        mine = driver.process.pid
        await_that(
            lambda: self.word().get("pid") == mine and self.word().get("state") == state,
            f"{self.dataset} is {state}",
            driver,
            within,
        )
        return self.word()

    def refuse_any_loss(self) -> None:
        """The audit is balanced, the rows are those that must come of what was sent, each commit was made once."""
        audit = audit_dataset(self.settings, self.dataset, partial(open_topic, self.bootstrap))
        assert audit.balanced, [finding.sentence() for finding in audit.findings[:5]]
        assert not (wrong := wrong_rows(warehouse(self.settings), self.dataset, self.sent)), wrong
        assert not (wrong := repeated_commits(warehouse(self.settings) / self.dataset)), wrong

    def end(self) -> None:
        """End every driver that was started here."""
        for driver in self.drivers:
            driver.end()


def copy_dataset(template: Path, place: Path, name: str) -> None:
    """Copy a dataset's folder; its own name, wherever it stands, becomes `name`."""
    for path in sorted(p for p in template.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        copy = place / path.relative_to(template)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text("utf-8").replace(template.name, name), "utf-8")


def await_that(holds: Callable[[], bool], what: str, driver: Driver | None = None, within: float = AT_MOST) -> None:
    """Wait until `holds`; AssertionError with the driver's log when it ends before, or after `within` seconds."""
    end = time.monotonic() + within
    while not holds():
        gone = driver is not None and driver.process.poll() is not None
        late = time.monotonic() > end
        if (gone and not holds()) or late:
            said = driver.said()[-4000:] if driver else ""
            how = f"the driver ended with {driver.process.returncode}" if gone and driver else f"{within:.0f} s passed"
            raise AssertionError(f"{how} before {what}\n{said}")
        time.sleep(0.1)


def repeated_commits(tables: Path) -> str:
    """Look through every table's log: versions of an app id strictly ascend, epochs never descend, batches follow
    each other without a gap; return the first line that is wrong, "" for none."""
    for log in sorted(tables.rglob("_delta_log")):
        versions: dict[str, int] = {}
        epoch, last = 0, -1
        for path in sorted(log.glob("*.json")):
            actions = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            known = [a["commitInfo"] for a in actions if "commitInfo" in a]
            said = json.loads(known[0].get("userMetadata") or "{}") if known else {}
            # A plan's correction belongs to no batch.
            said = {} if "plan" in said else said
            for transaction in (a["txn"] for a in actions if "txn" in a):
                if transaction["version"] <= versions.get(transaction["appId"], -1):
                    return f"{path}: {transaction} after version {versions[transaction['appId']]}"
                versions[transaction["appId"]] = transaction["version"]
            if said and said["epoch"] < epoch:
                return f"{path}: epoch {said['epoch']} after {epoch}"
            if said and said["batches"][0] != last + 1:
                return f"{path}: batches {said['batches']} after {last}"
            if said:
                epoch, last = said["epoch"], said["batches"][1]
    return ""


def open_broker(settings: Settings) -> None:
    """Start a broker in the state folder, by hand, without a runner."""
    run = start_broker(settings)
    await_that(lambda: answers(run), "the broker answers", within=90)


def close_broker(settings: Settings) -> None:
    """End the state folder's broker, and its runner, if one runs."""
    down(settings, lambda _: None)
