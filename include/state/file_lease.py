"""A lease as an OS lock on a file of the state folder: it ends with its process, and a stopped process keeps it.

The epoch in the file grows by one with each holder and is part of every commit, so that the log names the driver of
each commit.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from include.state.lease_errors import LeaseHeld

TRIES, PAUSE = 5, 0.05


@dataclass(frozen=True)
class FileLease:
    """A held lease: it ends with the process, or when `descriptor` is closed."""

    path: Path
    epoch: int
    descriptor: int

    @property
    def location(self) -> str:
        """The lease's file."""
        return str(self.path)

    def is_held(self) -> bool:
        """Whether the file at the lease's path is still the locked one; false after it was removed or replaced."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lease."""
        os.close(self.descriptor)

    def with_minimum_epoch(self, least: int) -> FileLease:
        """Return the lease with an epoch of at least `least`, since a lost lease file restarts at 1."""
        if self.epoch >= least:
            return self
        _write(self.descriptor, {**_read(self.descriptor), "epoch": least})
        return replace(self, epoch=least)


def take_file_lease(path: Path, owned: str, now: datetime) -> FileLease:
    """Take the lease with the next epoch. Raises LeaseHeld when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if not _locked(descriptor):
        holder = _read(descriptor)
        os.close(descriptor)
        raise LeaseHeld(owned, holder)
    before = _read(descriptor).get("epoch", 0)
    epoch = (before if isinstance(before, int) else 0) + 1
    _write(descriptor, {"pid": os.getpid(), "epoch": epoch, "since": now.isoformat()})
    return FileLease(path, epoch, descriptor)


def _locked(descriptor: int) -> bool:
    """Take the lock; a runner that tests whether it is free (`file_locks.is_free`) holds it for a moment."""
    for _ in range(TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(PAUSE)
    return False


def _read(descriptor: int) -> dict[str, object]:
    text = os.pread(descriptor, 4096, 0)
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write(descriptor: int, content: dict[str, object]) -> None:
    text = json.dumps(content).encode()
    # Write before truncating: on a full disk the old epoch stays readable.
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))
    os.fsync(descriptor)
