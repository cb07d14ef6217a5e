"""Run a command that ends with its parent, without leaving processes behind.

    python -m include.ground.job_guard tether PARENT COMMAND ...

The kernel kills the command when PARENT, which started this, ends: that is the end of the thread that started it, so a
runner starts its drivers from its main thread. A driver's JVM ends with the driver: its standard input is a pipe that
no process holds any more.

    python -m include.ground.job_guard guard PARENT LIMIT GRACE RECORD COMMAND ...

Start it as the leader of a session. When the parent dies, on SIGTERM and after LIMIT seconds, the command gets SIGTERM;
after GRACE seconds every process of the session is killed. The kernel kills the command if this process is killed.

On macOS the kernel sends no signal with a parent's death: both look for their parent ten times a second, and what a
killed guard ran goes on to its end.

Each second it touches RECORD, the run file, as a heartbeat for other containers and hosts, and looks for the file
by which they request the end of the job: RECORD with the ending `.end` (include/state/adr-0002).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from include.ground.processes import end_session

KERNEL_SIGNALS = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
PARENT_GONE = 3


def signal_with_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Have the kernel send a signal to this process when its parent dies; inherited by exec, not by fork.

    With `parent`, exit at once when that process has died already: the kernel would send nothing.
    """
    if KERNEL_SIGNALS:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os._exit(PARENT_GONE)


def tether(parent: str, *command: str) -> int:
    """Tie this process to its parent, then execute the command in it; return 3 when the parent is gone already."""
    signal_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        return PARENT_GONE
    if KERNEL_SIGNALS:
        os.execv(command[0], command)
    return watched(int(parent), command)


LOOK_EVERY = 0.1


def watched(parent: int, command: Sequence[str]) -> int:
    """Run the command and pass SIGTERM on to it; kill it when the parent is gone."""
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while child.poll() is None:
        if os.getppid() != parent:
            child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_EVERY)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


TIMED_OUT = 124
SIGN_EVERY = 1.0
AWAITED = {signal.SIGTERM, signal.SIGCHLD}


def start_command(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the command so that the kernel kills it when this process dies."""

    this = os.getpid()

    def prepare() -> None:
        signal_with_parent(signal.SIGKILL, this)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)

    return subprocess.Popen(command, preexec_fn=prepare)


def received_signal(within: float) -> int | None:
    """Wait for one of AWAITED, which are blocked; return it, None if none came in time."""
    if sys.platform == "linux":
        received = signal.sigtimedwait(AWAITED, within)
        return None if received is None else received.si_signo
    time.sleep(min(within, LOOK_EVERY))
    pending = signal.sigpending() & AWAITED
    return signal.sigwait(pending) if pending else None


def await_end(job: subprocess.Popen[bytes], limit: float, record: Path, parent: int) -> bool:
    """Wait until the job exits, its end is requested or the parent is gone; return False if the limit passed first."""
    end = time.monotonic() + limit
    while job.poll() is None and os.getppid() == parent:
        with suppress(OSError):
            os.utime(record)
        received = received_signal(min(SIGN_EVERY, max(0.0, end - time.monotonic())))
        if received is None and time.monotonic() >= end:
            return False
        if received == signal.SIGTERM or record.with_suffix(".end").exists():
            break
    return True


def end_command(job: subprocess.Popen[bytes], grace: float) -> None:
    """Terminate the job; after `grace` seconds kill it and the rest of its session."""
    with suppress(ProcessLookupError):
        job.terminate()
    with suppress(subprocess.TimeoutExpired):
        job.wait(grace)
    end_session(os.getpid(), 0.0 if job.poll() is None else grace)


def guard(parent: str, limit: str, grace: str, record: str, *command: str) -> int:
    """Run the command; return its exit code, or TIMED_OUT. A signal that killed it kills this process too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal_with_parent(signal.SIGTERM)
    if os.getppid() != int(parent):
        return PARENT_GONE
    job = start_command(command)
    in_time = await_end(job, float(limit), Path(record), int(parent))
    end_command(job, float(grace))
    code = job.wait()
    if not in_time:
        return TIMED_OUT
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        os.kill(os.getpid(), -code)
    return code


COMMANDS: dict[str, Callable[..., int]] = {"tether": tether, "guard": guard}

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]](*sys.argv[2:]))
