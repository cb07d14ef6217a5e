"""Processes: whether one has ended and how, in words; its session, its place, and the signals that ask it to stop."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import psutil


def kernel_kills() -> int:
    """Return how many processes this machine's kernel has killed for want of memory; 0 where it does not say."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/vmstat").read_text("ascii").splitlines()
        return int(next(line for line in lines if line.startswith("oom_kill ")).split()[1])
    return 0


KILLS_BEFORE = kernel_kills()


def any_thread_runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended yet. Raises psutil.NoSuchProcess.

    It is a zombie as soon as its first thread has ended; until its last one has, its ports and locks are not free.
    """
    return bool(process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)


def ended_how(code: int) -> str:
    """Return how a child of this process ended, by its exit code as `Popen` has it."""
    if code == -signal.SIGKILL and kernel_kills() > KILLS_BEFORE:
        return "was killed by SIGKILL, as the kernel does when memory runs out, which it did meanwhile"
    # A shell that waits for a process adds 128 to the signal.
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code if code < 0 else code - 128).name}"
    return f"ended with exit code {code}"


@lru_cache(maxsize=1)
def this_boot() -> str:
    """Return the kernel's id of its boot, the same in all containers of a machine; "" when the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def this_place() -> str:
    """Return `boot/pid namespace` of this process; "" when the system does not provide them."""
    try:
        return f"{this_boot()}/{os.stat('/proc/self/ns/pid').st_ino}" if this_boot() else ""
    except OSError:
        return ""


def boot_of(place: str) -> str:
    """Return the boot of a place."""
    return place.partition("/")[0]


def host_name() -> str:
    """Return the name of this host or container."""
    return socket.gethostname()


def process_label() -> str:
    """Return a readable name of this process: `pid 12 on runner`."""
    return f"pid {os.getpid()} on {host_name()}"


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


def stop_on(*numbers: int) -> threading.Event:
    """Return an event that is set once the process receives one of these signals.

    Call it in the main thread. A later call takes the signals over: the earlier event is not set any more. After the
    first signal the thread ends, and further signals do nothing.

    A thread sets it. A handler runs in the main thread, between any two of its instructions: if the event is being
    waited for there, the handler would wait for ever for the event's lock, which its own thread holds.
    """
    stop = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # Python's own handler writes the number of each signal; nothing else may be done at that moment.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)

    def follow() -> None:
        while os.read(reading, 1)[0] not in numbers:
            pass
        stop.set()

    threading.Thread(target=follow, name="stop-signals", daemon=True).start()
    return stop
