"""The processes of a session: all descendants of its leader, also those that changed their process group.

PySpark's workers are in a process group of their own, so a signal to the leader's group does not reach them.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil

from include.ground.process_end import any_thread_runs


def session_processes(session: int) -> list[psutil.Process]:
    """Return the processes of a session, without this process and without those that have ended."""
    found = []
    for pid in psutil.pids():
        with suppress(psutil.Error, ProcessLookupError):
            if pid != os.getpid() and os.getsid(pid) == session:
                process = psutil.Process(pid)
                found += [process] if any_thread_runs(process) else []
    return found


def end_session(session: int, within: float) -> None:
    """Wait up to `within` seconds for the other processes of a session to exit, then kill them."""
    end = time.monotonic() + within
    while session_processes(session):
        if time.monotonic() >= end:
            for process in session_processes(session):
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
        time.sleep(0.05)
