"""Run a command that ends with its parent and within a time limit, without leaving processes behind (Linux).

    python -m include.ground.job_guard PARENT LIMIT GRACE RECORD COMMAND ...

Start it as the leader of a session. When the parent dies, on SIGTERM and after LIMIT seconds, the command gets SIGTERM;
after GRACE seconds every process of the session is killed. The kernel kills the command if this process is killed.

Each second it touches RECORD, the run file, as a heartbeat for other containers and hosts, and looks for the file
by which they request the end of the job: RECORD with the ending `.end` (include/state/adr-0002).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from include.ground.process_tether import PARENT_GONE, signal_with_parent
from include.ground.processes import end_session

TIMED_OUT = 124
SIGN_EVERY = 1.0
AWAITED = {signal.SIGTERM, signal.SIGCHLD}


def start_command(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the command so that the kernel kills it when this process dies."""

    guard = os.getpid()

    def prepare() -> None:
        signal_with_parent(signal.SIGKILL, guard)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)

    return subprocess.Popen(command, preexec_fn=prepare)


def await_end(job: subprocess.Popen[bytes], limit: float, record: Path) -> bool:
    """Wait until the job exits or its end is requested; return False when the limit passed first."""
    end = time.monotonic() + limit
    while job.poll() is None:
        with suppress(OSError):
            os.utime(record)
        received = signal.sigtimedwait(AWAITED, min(SIGN_EVERY, max(0.0, end - time.monotonic())))
        if received is None and time.monotonic() >= end:
            return False
        if (received is not None and received.si_signo == signal.SIGTERM) or record.with_suffix(".end").exists():
            break
    return True


def end_command(job: subprocess.Popen[bytes], grace: float) -> None:
    """Terminate the job; after `grace` seconds kill it and the rest of its session."""
    with suppress(ProcessLookupError):
        job.terminate()
    with suppress(subprocess.TimeoutExpired):
        job.wait(grace)
    end_session(os.getpid(), 0.0 if job.poll() is None else grace)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code, or TIMED_OUT. A signal that killed it kills this process too."""
    parent, limit, grace, record, *command = arguments
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal_with_parent(signal.SIGTERM)
    if os.getppid() != int(parent):
        return PARENT_GONE
    job = start_command(command)
    in_time = await_end(job, float(limit), Path(record))
    end_command(job, float(grace))
    code = job.wait()
    if not in_time:
        return TIMED_OUT
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
