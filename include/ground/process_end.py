"""Whether a process has ended, and how, in words: its exit code, the signal, or the kernel for want of memory."""

from __future__ import annotations

import signal
from contextlib import suppress
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
