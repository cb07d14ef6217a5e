"""The lease: one driver per dataset (DESIGN §4, step 1).

An OS lock on an open file: it cannot outlive its process, and a stopped process keeps it. The epoch in the file grows
by one with each holder and goes into every commit, so that the log tells which driver wrote what.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.errors import Terminal


class LeaseHeld(Terminal):
    """Another process owns the dataset's tables; `holder` is what it wrote into the lease."""

    def __init__(self, dataset: str, holder: dict[str, object]) -> None:
        who = f"process {holder.get('pid')} since {holder.get('since')} (epoch {holder.get('epoch')})"
        super().__init__(f"{dataset} is owned by {who}; this driver stops, nothing was touched", "headrace status")
        self.dataset = dataset
        self.holder = holder


@dataclass(frozen=True)
class Lease:
    """A held lease: it ends with the process, or when `descriptor` is closed."""

    epoch: int
    descriptor: int


def take_lease(path: Path, dataset: str, now: datetime) -> Lease:
    """Take the dataset's lease and the next epoch; LeaseHeld when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _read(descriptor)
        os.close(descriptor)
        raise LeaseHeld(dataset, holder) from error
    before = _read(descriptor).get("epoch", 0)
    epoch = (before if isinstance(before, int) else 0) + 1
    _write(descriptor, {"pid": os.getpid(), "epoch": epoch, "since": now.isoformat()})
    return Lease(epoch, descriptor)


def _read(descriptor: int) -> dict[str, object]:
    text = os.pread(descriptor, 4096, 0)
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write(descriptor: int, content: dict[str, object]) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(content).encode(), 0)
    os.fsync(descriptor)
