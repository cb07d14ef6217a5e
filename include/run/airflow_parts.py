"""The parts of Airflow under one process: those of `airflow standalone`, each restarted when it dies (adr-0002).

Guarantee: SIGTERM ends every process of this session; a part does not outlive this process.
After a crash: the kernel sends SIGTERM to the parts; `headrace up --airflow` starts them again.

Usage: python -m include.run.airflow_parts
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

import psutil

from include.ground.job_guard import signal_with_parent
from include.ground.paths import run_path
from include.ground.processes import session_processes, stop_on
from include.ground.settings import load_settings
from include.state.process_states import AIRFLOW
from include.state.run_files import beat

PARTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    # Logs are files on this machine, so neither needs to serve its own on a port.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
PAUSE, LONGEST_PAUSE = 0.5, 30.0
HEALTHY_AFTER = 60.0
LOOK_EVERY = 1.0
TERMINATE_WITHIN = 15.0
ORPHAN_GRACE = 10.0
SQLITE = "sqlite:///"
WORKER, IDLE = "airflow worker -- LocalExecutor:", "<idle>"


@dataclass
class Part:
    """A part of Airflow: its process, its start, and the pause after its next exit (seconds)."""

    name: str
    process: subprocess.Popen[bytes]
    since: float
    pause: float = PAUSE


def airflow(*arguments: str) -> list[str]:
    """Return the command line of an Airflow command."""
    return [sys.executable, "-m", "airflow", *arguments]


def start_part(name: str) -> Part:
    """Start a part; the kernel sends it SIGTERM when this process exits."""
    log_line(f"{name}: starting")
    tie = partial(signal_with_parent, signal.SIGTERM, os.getpid())
    process = subprocess.Popen(airflow(*PARTS[name]), stdin=subprocess.DEVNULL, preexec_fn=tie)
    return Part(name, process, time.monotonic())


def restart_if_exited(part: Part, stop: threading.Event) -> Part:
    """Return the part, restarted if it exited, after a pause that doubles while it exits early."""
    code = part.process.poll()
    if code is None:
        return part
    pause = PAUSE if time.monotonic() - part.since > HEALTHY_AFTER else part.pause
    log_line(f"{part.name}: exited with {code}, restarting in {pause:.1f} s")
    if stop.wait(pause):
        return part
    again = start_part(part.name)
    again.pause = min(2 * pause, LONGEST_PAUSE)
    return again


class OrphanWatch:
    """Ends the children of a part that died: SIGTERM once, and SIGKILL to those that ignore it for ORPHAN_GRACE.

    A worker with a task finishes the task first.
    """

    def __init__(self) -> None:
        self._terminated_at: dict[psutil.Process, float] = {}

    def step(self, now: float) -> None:
        """Look once; `now` in seconds of a monotonic clock."""
        orphans = list(find_orphans())
        self._terminated_at = {process: at for process, at in self._terminated_at.items() if process in orphans}
        for process in orphans:
            with suppress(psutil.Error):
                if process not in self._terminated_at:
                    log_line(f"pid {process.pid}: orphan, terminated: {' '.join(process.cmdline())[:100]}")
                    self._terminated_at[process] = now
                    process.terminate()
                elif now - self._terminated_at[process] > ORPHAN_GRACE:
                    log_line(f"pid {process.pid}: orphan, still running after {ORPHAN_GRACE:.0f} s, killed")
                    # Once more after another grace, if even that should fail.
                    self._terminated_at[process] = now
                    process.kill()


def find_orphans() -> Iterator[psutil.Process]:
    """Yield the processes of this session whose part has died, except workers with a task."""
    for process in session_processes(os.getsid(0)):
        with suppress(psutil.Error, ProcessLookupError):
            parent, line = process.parent(), " ".join(process.cmdline())
            is_orphan = parent is None or os.getsid(parent.pid) != os.getsid(0)
            if is_orphan and process.pid != os.getpid() and not (WORKER in line and IDLE not in line):
                yield process


def terminate_all() -> None:
    """Send SIGTERM to every process of the session; after TERMINATE_WITHIN seconds, SIGKILL."""
    processes = session_processes(os.getsid(0))
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(processes, TERMINATE_WITHIN)
    for process in session_processes(os.getsid(0)):
        with suppress(psutil.Error):
            log_line(f"pid {process.pid}: still running after {TERMINATE_WITHIN:.0f} s, killed")
            process.kill()


def use_write_ahead_log(database: str) -> None:
    """Switch an SQLite file to WAL, so that readers do not wait for its writer: triggers would end with HTTP 500."""
    if database.startswith(SQLITE):
        with closing(sqlite3.connect(database.removeprefix(SQLITE), timeout=TERMINATE_WITHIN)) as connection:
            connection.execute("pragma journal_mode = wal")


def log_line(line: str) -> None:
    """Write a line into the log."""
    print(f"headrace: {line}", flush=True)


def main() -> int:
    """Run the parts until SIGTERM; return 0, or 1 when the database could not be prepared."""
    stop = stop_on(signal.SIGTERM, signal.SIGINT)
    migration = subprocess.run(airflow("db", "migrate"), stdin=subprocess.DEVNULL, check=False)
    if migration.returncode != 0:
        log_line("the database could not be prepared")
        return 1
    use_write_ahead_log(os.environ.get("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", ""))
    parts = [start_part(name) for name in PARTS]
    record = run_path(load_settings(), AIRFLOW)
    orphans = OrphanWatch()
    while not stop.wait(LOOK_EVERY):
        beat(record)
        parts = [restart_if_exited(part, stop) for part in parts]
        orphans.step(time.monotonic())
    log_line("stopping")
    terminate_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
