"""Starts processes that outlive the command that started them, and returns their exit codes.

A process is its run file: pid and start time. A pid alone is never trusted: the system reuses pids.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from include.ground.paths import log_path
from include.ground.settings import Settings
from include.state.run_files import RunFile, started_at, write_run_file


def spawn(
    settings: Settings,
    name: str,
    argv: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str],
    extra: Mapping[str, Any] | None = None,
) -> RunFile:
    """Start a process and write its run file; it is killed when that cannot be written (OSError)."""
    with deferred_interrupts():
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
    """Start a process in a new session, output appended to its log. Writes no run file."""
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
            umask=0o077,
        )


def tethered(argv: Sequence[str]) -> list[str]:
    """Return the command wrapped so that the kernel kills it when this process dies."""
    return [sys.executable, "-m", "include.ground.process_tether", str(os.getpid()), *argv]


# The kernel reports a child's exit code to its parent only.
_children: dict[int, subprocess.Popen[bytes]] = {}


def exit_code(run: RunFile) -> int | None:
    """Return the exit code of a child (negative: the signal), once; None while it runs or if it is not our child.

    The rest of its session, such as a driver's JVM, is killed first.
    """
    child = _children.get(run.pid)
    if child is None or os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    # Until it is waited for, its pid is not reused, neither for a process nor for a group.
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    return _children.pop(run.pid).wait()


def end_children(within: float) -> None:
    """End the processes that this one started: SIGTERM, after `within` seconds SIGKILL. No run file is touched."""
    for child in _children.values():
        child.terminate()
    end = time.monotonic() + within
    for pid, child in list(_children.items()):
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, end - time.monotonic()))
        # The rest of its session, such as a driver's JVM; a child that is not waited for keeps its number.
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        child.wait()
        del _children[pid]


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM: a process must not exist without its run file."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _frame: received.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for signum in received:
        signal.raise_signal(signum)
