"""The driver's status file: replaced about once a second, and at every change of state.

Reads: nothing. Writes: `run/stream-<dataset>.status.json`, only while this process holds the lease.
Guarantee: a status that cannot be written never ends the driver; on a full disk it overwrites the file in place.
After a crash: the file keeps the last status; its `pid` and `at` show that it is stale.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from spark_jobs.engine.log_lines import log_line


@dataclass
class DriverStatus:
    """State, reason and progress of a driver.

    `terminal`: the driver failed, and a restart cannot help. `rates`: rows per second of the last batch and run.
    `last_batch`: rows, seconds, and seconds per step of the last run. `lag_seconds`: age of the oldest unpublished
    record. `ingested` and `log_end`: next offset per partition in bronze and in Kafka. `shadows`: shadow releases.
    """

    state: str = "starting"
    reason: str | None = None
    terminal: bool = False
    release: str = ""
    epoch: int = 0
    pid: int = 0
    at: str = ""
    ingested_batch: int = -1
    refined_batch: int = -1
    rates: dict[str, float] = field(default_factory=dict)
    last_batch: dict[str, object] = field(default_factory=dict)
    log_end: dict[str, int] = field(default_factory=dict)
    ingested: dict[str, int] = field(default_factory=dict)
    lag_seconds: float | None = None
    shadows: list[str] = field(default_factory=list)


class StatusReporter:
    """Writes the driver's status while `owns` returns True; `refresh` updates progress before each periodic write."""

    def __init__(self, path: Path, owns: Callable[[], bool]) -> None:
        self.status = DriverStatus(pid=os.getpid())
        self.refresh: Callable[[], None] = lambda: None
        self.waiting_for: str | None = None
        """An outage outside this process: while it lasts, state `running` is reported as `waiting`."""
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
        with self._lock:
            self.status.state, self.status.reason = state, reason
            self._write()

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
        self.status.at = datetime.now(UTC).isoformat()
        content = asdict(self.status)
        if self.waiting_for and self.status.state == "running":
            content |= {"state": "waiting", "reason": self.waiting_for}
        text = json.dumps(content).encode()
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
