"""What a driver says of itself: one small file, replaced about once a second, and lines in its log; what a job tells.

Neither may end the driver: on a full disk it goes on, unheard.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake.exceptions import DeltaError

from include.errors import HeadraceError

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CAUSE = "Caused by: "
PR_SET_PDEATHSIG = 1


@dataclass
class DriverStatus:
    """The driver's status: state and reason, batches, rates (rows/s), seconds of the last run's steps, lag.

    `terminal`: it failed, and trying again cannot help.
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
    """Releases that are kept up beside the published one."""


def log_line(line: str, error: BaseException | None = None) -> None:
    """Write a line with the time (UTC) into the driver's log, and the last calls of the error that it is about."""
    with suppress(OSError):
        print(f"{datetime.now(UTC).isoformat()} {line}", file=sys.stderr)
        if error is not None:
            traceback.print_exception(error, limit=-3, file=sys.stderr)


def report(**facts: Any) -> None:
    """Say something to the plan's command that started this job: one JSON object a line."""
    print(json.dumps(facts), flush=True)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the plan's command is gone: nobody would hear what this job says (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def error_reason(error: BaseException) -> str:
    """Return why something failed in one line of at most 300 characters: what failed, and its deepest cause."""
    if isinstance(error, HeadraceError):
        return error.what.strip().splitlines()[0][:300]
    text = COLOUR.sub("", str(error)).strip() or type(error).__name__
    lines = [line.strip(" \t↳") for line in text.splitlines()]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    deepest = causes[-1] if causes else lines[-1] if isinstance(error, OSError | DeltaError) else ""
    parts = [lines[0], deepest] if deepest and deepest not in lines[0] else [lines[0]]
    return ": ".join(part[:145] if len(parts) > 1 else part[:300] for part in parts)


class StatusReporter:
    """Writes the driver's word as long as `owns` says that it is the owner's.

    `refresh` fills in what changes without anybody saying so.
    """

    def __init__(self, path: Path, owns: Callable[[], bool]) -> None:
        self.status = DriverStatus(pid=os.getpid())
        self.refresh: Callable[[DriverStatus], None] = lambda word: None
        self.waiting_for: str | None = None
        """What of the outside is not there now: while the driver would say `running`, it says `waiting` for this."""
        self._path = path
        self._owns = owns
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)

    def start(self) -> None:
        """Begin to write once a second."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self.report(self.status.state)
        self._thread.start()

    def report(self, state: str, reason: str | None = None) -> None:
        """Say a new state at once."""
        with self._lock:
            self.status.state, self.status.reason = state, reason
            self._write()

    def finish(self, state: str, reason: str | None = None, *, terminal: bool = False) -> None:
        """Say the last word."""
        self._end.set()
        self.status.terminal = terminal
        self.report(state, reason)

    def _run(self) -> None:
        while not self._end.wait(1.0):
            try:
                self.refresh(self.status)
            except Exception as error:  # noqa: BLE001  (a driver that works must not fall silent)
                log_line("the status could not be brought up to date", error)
            with self._lock:
                if not self._end.is_set():
                    self._write()

    def _write(self) -> None:
        self.status.at = datetime.now(UTC).isoformat()
        said = asdict(self.status)
        if self.waiting_for and self.status.state == "running":
            said |= {"state": "waiting", "reason": self.waiting_for}
        text = json.dumps(said).encode()
        with suppress(OSError):
            if self._owns():
                self._replace(text)

    def _replace(self, text: bytes) -> None:
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            fresh.write_bytes(text)
            fresh.replace(self._path)
        except OSError:
            # A full disk has no room for a second file; the blocks of the first one are there.
            with self._path.open("r+b") as file:
                file.write(text.ljust(self._path.stat().st_size))
