"""Kafka Connect with Debezium's connector for PostgreSQL as one process: changes of tables become records of topics.

Reads: the log of a database. Writes: a topic for each table, `messages` for what tells how far it has read, and
the positions in its folder.
Guarantee: each change at least once; after a kill the last ones come again.
"""

from __future__ import annotations

import json
import os
import signal
import string
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from include.ground.errors import Transient
from include.ground.java import LOCK, find_java, read_jar_list
from include.ground.ports import LOOPBACK, free_ports
from include.ground.settings import Settings
from infra.jars.fetch import cache_folder, fetch
from infra.kafka.broker_process import JVM

HERE = Path(__file__).parent
HEAP = "256m"
READY_WITHIN = 120.0
STOP_WITHIN = 30.0


class ConnectorNotRunning(Transient):
    """Connect ended, or its connector does not run."""

    def __init__(self, log: Path, why: str) -> None:
        end = log.read_text("utf-8", "replace")[-2000:] if log.exists() else ""
        super().__init__(f"Kafka Connect: {why}\n{end}", f"look into {log}")


def fetch_connect(settings: Settings) -> None:
    """Fetch the jars of Connect and the connector, which set-up leaves out, or verify those that are there."""
    locked = [jar for jar in read_jar_list(LOCK, hashed=True) if jar.folder == "connect"]
    fetch(locked, settings.jars, cache_folder(os.environ))


@dataclass(frozen=True)
class Capture:
    """What a connector captures: tables (`public.accounts`) of a database, to topics `<prefix>.<schema>.<table>`.

    `topics`: other names for some of these.
    """

    host: str
    port: int
    user: str
    database: str
    prefix: str
    tables: Sequence[str]
    topics: Mapping[str, str]

    def properties(self) -> str:
        """Return the connector's properties."""
        template = string.Template((HERE / "debezium.properties").read_text("utf-8"))
        text = template.substitute(
            host=self.host,
            port=self.port,
            user=self.user,
            database=self.database,
            prefix=self.prefix,
            tables=",".join(self.tables),
            renamed=",".join(f"rename{n}" for n in range(len(self.topics))),
        )
        for n, (topic, name) in enumerate(self.topics.items()):
            text += f"transforms.rename{n}.type=org.apache.kafka.connect.transforms.RegexRouter\n"
            text += f"transforms.rename{n}.regex={topic.replace('.', '[.]')}\ntransforms.rename{n}.replacement={name}\n"
        return text


@dataclass
class ConnectWorker:
    """A worker by its process, with its files in `folder`."""

    folder: Path
    settings: Settings
    bootstrap: str
    capture: Capture
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def start(self) -> None:
        """Start the worker, also again from the positions in its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        worker = string.Template((HERE / "connect.properties").read_text("utf-8"))
        text = worker.substitute(bootstrap=self.bootstrap, address=LOOPBACK, port=self.port)
        (self.folder / "worker.properties").write_text(text, "utf-8")
        (self.folder / "connector.properties").write_text(self.capture.properties(), "utf-8")
        logging = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
        command = [str(find_java(os.environ).path), f"-Xmx{HEAP}", *JVM, logging]
        command += ["-cp", f"{self.settings.jars / 'connect'}/*", "org.apache.kafka.connect.cli.ConnectStandalone"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "worker.properties", "connector.properties"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def await_running(self) -> None:
        """Wait until the connector's task runs. Raises ConnectorNotRunning."""
        end = time.monotonic() + READY_WITHIN
        while (state := self.task_state()) != "RUNNING":
            if self.process is None or self.process.poll() is not None:
                raise ConnectorNotRunning(self.log, "it has ended")
            if state == "FAILED" or time.monotonic() > end:
                raise ConnectorNotRunning(self.log, f"its task is {state or 'not there'}")
            time.sleep(0.2)

    def task_state(self) -> str:
        """Return the state of the connector's task, "" while the worker does not answer."""
        with suppress(OSError, ValueError, LookupError):
            url = f"http://{LOOPBACK}:{self.port}/connectors/source/status"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(json.load(answer)["tasks"][0]["state"])
        return ""

    def kill(self) -> None:
        """Kill the worker."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the worker as an operator does."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            try:
                self.process.wait(STOP_WITHIN)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
