"""Processes that outlive the command that started them: started, recognised, stopped.

A process is its run file: pid and start time. A pid alone is never trusted, the system hands pids out again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from include.errors import Terminal
from include.places import log_path, run_path
from include.settings import Settings

# The start time is counted from the boot time, which the kernel corrects by parts of a second when the clock is set.
SAME_START = 2.0


class RunFileUnreadable(Terminal):
    """A run file is not the JSON we write."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} cannot be read: {why}; it may belong to a running process",
            f'look at the processes, end what is left over, then rm "{path}"',
        )
        self.path = path


@dataclass(frozen=True)
class RunFile:
    """Record of a started process. `started` is psutil's create_time (epoch seconds); `extra` is the process's own."""

    name: str
    pid: int
    started: float
    argv: list[str]
    extra: dict[str, Any] = field(default_factory=dict)


def read_run_file(settings: Settings, name: str) -> RunFile | None:
    """Return the record of a process, None when there is none; RunFileUnreadable."""
    path = run_path(settings, name)
    try:
        raw = json.loads(path.read_text())
        known = {key: raw.pop(key) for key in ("name", "pid", "started", "argv")}
        return RunFile(**known, extra=raw)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise RunFileUnreadable(path, repr(error)) from error


def write_run_file(settings: Settings, run: RunFile) -> None:
    """Write the record, whole or not at all."""
    record = {"name": run.name, "pid": run.pid, "started": run.started, "argv": run.argv, **run.extra}
    write_atomically(run_path(settings, run.name), json.dumps(record, indent=1))


def write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a small file so that a reader sees the old or the new text; when `durable`, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(part, path)


def remove_run_file(settings: Settings, name: str) -> None:
    """Forget a process: it was stopped as wanted."""
    run_path(settings, name).unlink(missing_ok=True)


def is_alive(run: RunFile) -> bool:
    """Tell whether this very process still runs; a zombie and a stranger with its pid do not count."""
    try:
        process = psutil.Process(run.pid)
        same = abs(process.create_time() - run.started) < SAME_START
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_suspended(run: RunFile) -> bool:
    """Tell whether the process is there but stopped by a signal (SIGSTOP)."""
    try:
        return is_alive(run) and psutil.Process(run.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def spawn(
    settings: Settings,
    name: str,
    argv: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str],
    extra: Mapping[str, Any] | None = None,
) -> RunFile:
    """Start a process and write its run file; it does not run on when that cannot be written (OSError)."""
    with interrupts_held_back():
        child = launch(settings, name, argv, cwd, environ)
        run = RunFile(name, child.pid, started_at(child.pid), list(argv), dict(extra or {}))
        try:
            write_run_file(settings, run)
        except OSError:
            child.kill()
            child.wait()
            raise
        _children[child.pid] = child
    return run


def launch(
    settings: Settings, name: str, argv: Sequence[str], cwd: Path, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, output appended to its log; it writes its run file itself."""
    log = log_path(settings, name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def tethered(argv: Sequence[str]) -> list[str]:
    """Return the command so that the kernel ends it with this process, whatever that dies of."""
    return [sys.executable, "-m", "include.supervision.tether", str(os.getpid()), *argv]


# The system keeps how a child ended for the process that started it, and for nobody else.
_children: dict[int, subprocess.Popen[bytes]] = {}


def exit_code(run: RunFile) -> int | None:
    """Return how a child of this process ended (negative: the signal), once; None when it runs or is not our child.

    What is left of its session, such as a driver's JVM, is ended first.
    """
    child = _children.get(run.pid)
    if child is None or os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    # Until it is waited for, its number is nobody else's, neither as a process nor as a group.
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    return _children.pop(run.pid).wait()


def started_at(pid: int) -> float:
    """Start time of a child of ours, epoch seconds (a child that died at once is a zombie and still has one)."""
    return float(psutil.Process(pid).create_time())


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM: between a process and its run file there must be no gap to die in."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _frame: came.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for caught in came:
        signal.raise_signal(caught)


def terminate(run: RunFile) -> None:
    """Ask a process to end (SIGTERM); nothing happens when it is gone."""
    send(run, signal.SIGTERM)


def send(run: RunFile, number: signal.Signals) -> None:
    """Send a signal to exactly this process."""
    try:
        if is_alive(run):
            os.kill(run.pid, number)
    except ProcessLookupError:
        return


def wait_gone(run: RunFile, timeout: float) -> bool:
    """Wait until the process is gone, at most `timeout` seconds; tell whether it is."""
    end = time.monotonic() + timeout
    while is_alive(run):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def log_size(settings: Settings, name: str) -> int:
    """Bytes in the process's log now; 0 without one."""
    path = log_path(settings, name)
    return path.stat().st_size if path.exists() else 0


def log_tail(settings: Settings, name: str, since: int = 0, lines: int = 12) -> str:
    """The last lines of the process's log written after byte `since`."""
    path = log_path(settings, name)
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(since, path.stat().st_size - 64_000))
        text = file.read().decode(errors="replace")
    return "\n".join(f"  | {line[:300]}" for line in text.splitlines()[-lines:])


def last_line(settings: Settings, name: str, since: int) -> str:
    """The last line that the process wrote into its log after byte `since` and that begins one; "" without any."""
    lines = [line.removeprefix("  | ") for line in log_tail(settings, name, since, lines=40).splitlines()]
    return next((line for line in reversed(lines) if line and not line[0].isspace()), "")
