"""Run files: a process is its pid and start time. A pid alone is never trusted, since the system reuses pids."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from include.host.process_session import session_processes
from include.paths import run_path
from include.settings import Settings
from include.state.json_file import JsonFile
from include.state.process_states import job_name

# The start time is counted from the boot time, which the kernel corrects by parts of a second when the clock is set.
SAME_START = 2.0


@dataclass(frozen=True)
class RunFile:
    """Record of a started process. `started` is psutil's create_time (epoch seconds); `extra` is the process's own.

    `identity` does not depend on the clock; run files of earlier versions have none.
    """

    name: str
    pid: int
    started: float
    argv: list[str]
    extra: dict[str, Any] = field(default_factory=dict)
    identity: str = field(default="", compare=False)


def run_file(path: Path) -> JsonFile[RunFile]:
    """Return the run file at `path`."""
    return JsonFile(
        path,
        RunFile,
        remedy=f'headrace status; end the process if it still runs, then rm "{path}"',
        consequence="it may belong to a running process, which was left alone",
        upgrade=_nested_extra,
    )


def read_run_file(settings: Settings, name: str) -> RunFile | None:
    """Return the record of a process, None if there is none. Raises StateFileUnreadable."""
    return run_file(run_path(settings, name)).read()


def write_run_file(settings: Settings, run: RunFile) -> None:
    """Write the record of a process. Raises OSError; no partial file is left."""
    run_file(run_path(settings, run.name)).write(replace(run, identity=identity_of(run.pid)))


def _nested_extra(content: dict[str, Any]) -> dict[str, Any]:
    """Earlier versions wrote the extra facts next to the others."""
    known = ("name", "pid", "started", "argv", "identity")
    extra = {key: value for key, value in content.items() if key not in (*known, "extra")}
    return {**{key: content[key] for key in known if key in content}, "extra": {**content.get("extra", {}), **extra}}


def remove_run_file(settings: Settings, name: str) -> None:
    """Remove the record of a process that was stopped on request."""
    run_path(settings, name).unlink(missing_ok=True)


def is_alive(run: RunFile) -> bool:
    """Return whether this process still runs; a zombie or another process with the same pid does not count."""
    try:
        process = psutil.Process(run.pid)
        return _is_same(run, process) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_same(run: RunFile, process: psutil.Process) -> bool:
    if run.identity:
        return run.identity == identity_of(run.pid)
    return bool(abs(process.create_time() - run.started) < SAME_START)


def identity_of(pid: int) -> str:
    """Return boot and start of a process in clock ticks since then, which no change of the clock moves; "" if gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{fields[19]}"
    except OSError:
        return ""


def is_suspended(run: RunFile) -> bool:
    """Return whether the process is suspended (SIGSTOP)."""
    try:
        return is_alive(run) and psutil.Process(run.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def job_run_files(settings: Settings) -> list[RunFile]:
    """Return the run files of bounded jobs, sorted by name; unreadable ones are left out."""
    found = (run_file(path).read_if_valid() for path in run_path(settings, job_name("")).parent.glob("plan-*.json"))
    return sorted((run for run in found if run is not None), key=lambda run: run.name)


def job_processes(run: RunFile) -> list[psutil.Process]:
    """Return the running processes of a job, which is the leader of a session; also those that outlived the leader."""
    with suppress(psutil.NoSuchProcess):
        if not _is_same(run, psutil.Process(run.pid)):
            return []
    return session_processes(run.pid)


def started_at(pid: int) -> float:
    """Return the start time of a child process, epoch seconds (one that died at once is a zombie and has one)."""
    return float(psutil.Process(pid).create_time())


def terminate(run: RunFile) -> None:
    """Send SIGTERM; no effect if the process is gone."""
    send(run, signal.SIGTERM)


def send(run: RunFile, number: signal.Signals) -> None:
    """Send a signal to exactly this process."""
    try:
        if is_alive(run):
            os.kill(run.pid, number)
    except ProcessLookupError:
        return


def wait_gone(run: RunFile, timeout: float) -> bool:
    """Wait up to `timeout` seconds for the process to exit; return whether it did."""
    end = time.monotonic() + timeout
    while is_alive(run):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
