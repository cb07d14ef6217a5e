"""Processes: whether and how one has ended, its session, its place, the signals that ask it to stop, and waits.

A wait ends with an answer, or with an error that the question raises, as when a process has died. Until then it
continues as long as its *signs* change (the size of a log, a status, processor time): a busy machine is slow, and a
process that does nothing is stuck. It reports every 15 seconds what it waits for and since when, and ends when the
signs have been the same for a while.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import psutil

from include.ground.errors import Transient


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


IDLE = 120.0
"""Seconds without a sign of progress after which a wait ends."""
LONGEST = 1_800.0
"""Seconds after which it ends in any case: processes that restart for ever show progress too."""
REPORT_EVERY = 15.0
LOOK_EVERY = 1.0
"""Signs of processes are not free: while something starts, it needs the processors."""
CPU_STEP = 4.0
"""Processor seconds that count as progress: a process on a crowded processor gets them in time, an idle one not."""
Answer = TypeVar("Answer")


class NoProgress(Transient):
    """What was waited for did not come, and nothing moved any more."""

    def __init__(self, what: str, seconds: float, idle: float) -> None:
        self.why = (
            f"made no progress for {idle:.0f} s" if seconds < LONGEST else f"was not done after {seconds / 60:.0f} min"
        )
        super().__init__(f"{what}: {self.why}", "headrace status")
        self.what, self.seconds = what, seconds


@dataclass(frozen=True)
class Waiting:
    """A wait for `what`; `signs` returns anything that is different when there was progress."""

    what: str
    signs: Callable[[], object]
    report: Callable[[str], object] = lambda _: None
    idle: float = IDLE

    def until(self, ask: Callable[[], Answer | None], pause: float = 0.1) -> Answer:
        """Ask until there is an answer, and return it. Raises NoProgress, and what `ask` raises."""
        began = moved = reported = time.monotonic()
        before, looked = self.signs(), began
        while (answer := ask()) is None:
            now = time.monotonic()
            if now - looked >= LOOK_EVERY:
                looked, signs = now, self.signs()
                before, moved = signs, moved if signs == before else now
            if now - moved >= self.idle or now - began >= LONGEST:
                raise NoProgress(self.what, now - began, now - moved)
            if now - reported >= REPORT_EVERY:
                reported = now
                self.report(f"{self.what}: waiting for {now - began:.0f} s{_still(now - moved)}")
            time.sleep(pause)
        return answer

    def holds(self, ask: Callable[[], bool], pause: float = 0.1) -> None:
        """Wait until `ask` returns true. Raises NoProgress, and what `ask` raises."""
        self.until(lambda: ask() or None, pause)


def _still(idle: float) -> str:
    return f", no progress for {idle:.0f} s" if idle >= REPORT_EVERY else ""


def cpu_steps(pids: Iterable[int | None]) -> int:
    """Return the processor time of these processes and their children, in steps that count as progress."""
    return int(sum(_cpu_seconds(pid) for pid in pids if pid) // CPU_STEP)


def _cpu_seconds(pid: int) -> float:
    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                times = each.cpu_times()
                total += times.user + times.system
    return total


def file_size(path: Path) -> int:
    """Return the size of a log; 0 without one."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
