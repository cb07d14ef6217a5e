"""Shared job: the driver of several datasets, each a thread with its own lease, epoch and loop (stream/adr-0012).

A dataset is here while a process of its own (`include/run/member.py`) is connected, by which the runner supervises it
alone. SIGTERM drains all. After a crash each dataset goes on as after that of a driver of its own.

Usage: python -m spark_jobs.jobs.shared_job driver:NAME
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from include.ground.errors import HeadraceError, Terminal
from include.ground.paths import lease_path, log_path, run_path, status_path
from include.ground.processes import stop_on
from include.ground.settings import Settings, load_settings
from include.state.lease import LeaseRole, take_lease
from include.state.process_states import stream_name
from spark_jobs.backends.spark_session import activate, begin_session
from spark_jobs.jobs.bounded_job import DONE, FAILED, REFUSED, use_utc
from spark_jobs.jobs.drive_stream import drive
from spark_jobs.stream.pacing import DriverProcess, Tempo, shared_tempo
from spark_jobs.stream.progress import StatusReporter
from spark_jobs.tables.log_lines import error_reason, jvm_end, log_line, log_of_thread

LOOK_SECONDS = 1.0
HELLO_SECONDS = 5.0
ENDS_WITHIN = 75.0
"""A loop that has not ended so long after its process still owns its tables: then the driver ends with all datasets."""


@dataclass
class SharedDataset:
    """A dataset of this process, at the other end of `channel` its own process `pid`; `before`: its last thread."""

    name: str
    pid: int
    channel: socket.socket
    before: threading.Thread | None
    thread: threading.Thread = field(init=False)
    stop: threading.Event = field(default_factory=threading.Event)
    left: float = 0.0
    """When its process went, by the monotonic clock."""

    def begin(self, settings: Settings, session: SparkSession, tempo: Tempo) -> None:
        work = (settings, session, tempo)
        self.thread = threading.Thread(target=self._run, args=work, name=self.name, daemon=True)
        self.thread.start()

    def _run(self, settings: Settings, session: SparkSession, tempo: Tempo) -> None:
        if self.before is not None:
            self.before.join()
        code = FAILED
        with log_path(settings, stream_name(self.name)).open("a", buffering=1, encoding="utf-8") as log:
            log_of_thread.set(log)
            try:
                code = self._drive(settings, session, tempo)
            except HeadraceError as error:
                log_line(str(error))
                code = REFUSED
            except Exception as error:  # noqa: BLE001  (the other datasets go on)
                log_line(f"{self.name}: {error_reason(error)}; nothing was started", error)
            with suppress(OSError):
                self.channel.sendall(str(code).encode())

    def _drive(self, settings: Settings, session: SparkSession, tempo: Tempo) -> int:
        lease = take_lease(settings, lease_path(settings, self.name), self.name, datetime.now(UTC), LeaseRole.STREAM)
        try:
            # Views and settings of its own.
            mine = session.newSession()

            def opened() -> SparkSession:
                activate(mine)
                return mine

            return drive(settings, self.name, lease, DriverProcess(self.stop, opened, tempo, self.pid))
        finally:
            lease.release()
            # A drain mutes Spark's log.
            session.sparkContext.setLogLevel("WARN")


@dataclass
class SharedDriver:
    """The datasets of this process, by the name of each; `listener`: where their processes connect."""

    settings: Settings
    session: SparkSession
    listener: socket.socket
    reporter: StatusReporter
    tempo: Tempo = field(default_factory=shared_tempo)
    members: dict[str, SharedDataset] = field(default_factory=dict)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def serve(self, stop: threading.Event) -> int:
        """Run datasets until `stop` is set, then drain them; return the exit code."""
        self.selector.register(self.listener, selectors.EVENT_READ)
        while not stop.is_set() or self._running():
            self.reporter.report("draining" if stop.is_set() else "running", f"datasets: {', '.join(self._running())}")
            if why := jvm_end(RuntimeError()):
                log_line(f"{why.what}: {', '.join(self._running())}")
                return FAILED
            for key, _ in self.selector.select(LOOK_SECONDS):
                self._leave(key.data) if key.data else self._admit()
            for member in self.members.values():
                if stop.is_set():
                    member.stop.set()
                if member.thread.is_alive() and member.left and time.monotonic() - member.left > ENDS_WITHIN:
                    log_line(f"{member.name} has not ended after {ENDS_WITHIN:.0f} s; all start again")
                    return FAILED
        return DONE

    def _running(self) -> list[str]:
        return sorted(name for name, member in self.members.items() if member.thread.is_alive())

    def _admit(self) -> None:
        channel, _ = self.listener.accept()
        channel.settimeout(HELLO_SECONDS)
        with suppress(OSError, ValueError):
            pid, name = channel.recv(4096).decode().split()
            before = self.members.get(name)
            member = SharedDataset(name, int(pid), channel, before.thread if before else None)
            channel.settimeout(None)
            member.begin(self.settings, self.session, self.tempo)
            self.members[name] = member
            self.selector.register(channel, selectors.EVENT_READ, member)
            return
        channel.close()

    def _leave(self, member: SharedDataset) -> None:
        """Drain a dataset whose process was stopped, or is gone, or has read how the dataset ended."""
        member.left = time.monotonic()
        member.stop.set()
        self.selector.unregister(member.channel)


def listen(settings: Settings, name: str) -> socket.socket:
    """Return the socket to which the processes of datasets connect."""
    place = run_path(settings, name).with_suffix(".sock")
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    # The path of a socket has at most 107 bytes.
    with chdir(place.parent):
        listener.bind(place.name)
    listener.listen(128)
    return listener


def run(settings: Settings, name: str, reporter: StatusReporter, stop: threading.Event) -> int:
    """Open the session, run datasets until `stop` is set, and return the exit code."""
    try:
        session = begin_session(settings, f"headrace {name}")()
        code = SharedDriver(settings, session, listen(settings, name), reporter).serve(stop)
    except HeadraceError as error:
        log_line(str(error))
        reporter.finish("failed", error.what, terminal=isinstance(error, Terminal))
        return REFUSED
    except Exception as error:  # noqa: BLE001  (whatever it is, the final status must be written)
        log_line(f"{name} failed: {error_reason(error)}. Next: headrace status", error)
        reporter.finish("failed", error_reason(error))
        return FAILED
    if code == DONE:
        reporter.finish("stopped")
    return code


def main(arguments: Sequence[str]) -> int:
    """Run the datasets that come; return DONE drained, FAILED, or REFUSED."""
    (name,) = arguments
    use_utc()
    stop = stop_on(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = load_settings()
    reporter = StatusReporter(status_path(settings, name), lambda: True)
    reporter.start()
    return run(settings, name, reporter, stop)


if __name__ == "__main__":
    # A loop that does not end would hold the process.
    os._exit(main(sys.argv[1:]))
