"""The driver's status file: replaced about once a second, and at every change of state.

Reads: nothing. Writes: `run/stream-<dataset>.status.json`, only while this process holds the lease.
Guarantee: a status that cannot be written never ends the driver; on a full disk it overwrites the file in place.
After a crash: the file keeps the last status; its `pid` and `at` show that it is stale.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from include.state.driver_status import DriverStatus
from include.state.json_file import adapter
from include.state.run_files import identity_of
from spark_jobs.tables.log_lines import log_line


class StatusReporter:
    """Writes the driver's status while `owns` returns True; `refresh` updates progress before each periodic write."""

    def __init__(self, path: Path, owns: Callable[[], bool]) -> None:
        self.status = DriverStatus(pid=os.getpid(), identity=identity_of(os.getpid()))
        self.refresh: Callable[[], None] = lambda: None
        self.waiting_for: str | None = None
        """An outage outside this process: while it lasts, state `running` is reported as `waiting`."""
        self.ingest_idle: Callable[[], float] = lambda: 0.0
        """Seconds for which ingest has committed nothing although Kafka has records for it."""
        self._progress = time.monotonic()
        self._path = path
        self._owns = owns
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def start(self) -> None:
        """Write the status now, then once a second."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self.report(self.status.state)
        self._thread.start()

    def report(self, state: str, reason: str | None = None) -> None:
        """Change the state and write it at once."""
        self.note_progress()
        with self._lock:
            self.status.state, self.status.reason = state, reason
            self._write()

    def note_progress(self) -> None:
        """Note that the main loop has completed an iteration or a step, which this thread's reports do not show."""
        self._progress = time.monotonic()

    def finish(self, state: str, reason: str | None = None, *, terminal: bool = False) -> None:
        """Write the final status; nothing is written after it."""
        self._finished.set()
        self.status.terminal = terminal
        self.report(state, reason)

    def _run(self) -> None:
        while not self._finished.wait(1.0):
            try:
                self.refresh()
            except Exception as error:  # noqa: BLE001  (a failed refresh must not end the status thread)
                log_line("status not refreshed; next try in 1 s", error)
            with self._lock:
                if not self._finished.is_set():
                    self._write()

    def _write(self) -> None:
        self.status.at, status = datetime.now(UTC), self.status
        idle = max(time.monotonic() - self._progress, self.ingest_idle())
        status.progress_at = self.status.at - timedelta(seconds=idle)
        if self.waiting_for and status.state == "running":
            status = replace(status, state="waiting", reason=self.waiting_for)
        text = adapter(DriverStatus).dump_json(status)
        with suppress(OSError):
            if self._owns():
                self._replace(text)

    def _replace(self, text: bytes) -> None:
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            fresh.write_bytes(text)
            fresh.replace(self._path)
        except OSError:
            # A full disk has no blocks for a second file, but the existing file keeps its own.
            with self._path.open("r+b") as file:
                file.write(text.ljust(self._path.stat().st_size))
