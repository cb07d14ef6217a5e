"""Waits that continue while there is progress: a busy machine is slow, and a process that does nothing is stuck.

An answer ends a wait, or an error that the question raises, as when a process has died. Until then a wait continues as
long as its *signs* change (the size of a log, a status, processor time). It reports every 15 seconds for what and since
when it waits, and ends when the signs have been the same for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from include.ground.errors import Transient

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
