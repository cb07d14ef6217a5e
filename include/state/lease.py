"""The lease: one owner per dataset, per release (docs/architecture.md §4, step 1), and one runner per state folder.

On one host it is an OS lock on a file, which ends with its process and which a stopped process keeps; for several hosts
a row in PostgreSQL (`lease_table.py`).
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol, Self, TextIO

from include.ground.errors import Transient
from include.ground.settings import Settings


class LeaseHeld(Transient):
    """Another process holds the lease of what is `owned`; `holder` has its pid, epoch, start, and host if known."""

    def __init__(self, owned: str, holder: Mapping[str, object]) -> None:
        host = f" on {holder['host']}" if holder.get("host") else ""
        who = f"process {holder.get('pid')}{host} since {holder.get('since')} (epoch {holder.get('epoch')})"
        super().__init__(f"{owned} is owned by {who}; nothing was touched", "headrace status")
        self.owned = owned
        self.holder = holder


class LeaseLost(Transient):
    """The lease ended while this process worked under it: another process may own the tables."""

    def __init__(self, owned: str, location: str, why: str = "was removed or replaced") -> None:
        super().__init__(
            f"{owned}: the lease {location} {why}; this process commits nothing any more, nothing is lost",
            "headrace status, then headrace up",
        )
        self.owned, self.location = owned, location


class LeaseServerUnavailable(Transient):
    """The database of the leases does not answer or refuses: until it answers, no lease can be taken or renewed."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__(
            f"the leases' database {server} does not answer: {why}",
            "start it, or correct HEADRACE_LEASE_URL; leases are then acquired again automatically",
        )
        self.server = server


class LeaseRole(StrEnum):
    """The kind of holder: a runner, a runner that stands by, a stream's driver, or a job."""

    RUNNER = "runner"
    STANDBY = "standby"
    STREAM = "stream"
    JOB = "job"


class LockHeld(Transient):
    """Another process has the lock; `holder` is what it wrote into the file."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by {holder}; nothing was done", "wait for it, then try again")
        self.path, self.holder = path, holder


def take_lock(path: Path, holder: str, within: float = 0.0) -> TextIO:
    """Take the lock until the file is closed, and write `holder` into it.

    Raises LockHeld when it is not free within `within` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file, end = path.open("a+"), time.monotonic() + within
    while not _locked(file.fileno(), 1):
        if time.monotonic() >= end:
            file.close()
            raise LockHeld(path, path.read_text().strip() or "an unknown process")
        time.sleep(LOCK_PAUSE)
    file.truncate(0)
    file.write(holder)
    file.flush()
    return file


@contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Hold a shared lock; waits while a process has it exclusively."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_free(path: Path) -> bool:
    """Return whether no process holds the lock of a file."""
    if not path.exists():
        return True
    with path.open("a+") as file:
        return _locked(file.fileno(), 1)


def is_held(file: TextIO) -> bool:
    """Return whether the lock file still exists under its path; False if it was removed."""
    return _is_at(Path(file.name), file.fileno())


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


TRIES, PAUSE = 5, 0.05
LOCK_PAUSE = 0.2


@dataclass(frozen=True)
class FileLease:
    """A held lease: it ends with the process, or when `descriptor` is closed."""

    path: Path
    epoch: int
    descriptor: int

    @property
    def location(self) -> str:
        return str(self.path)

    def is_held(self) -> bool:
        """Whether the file at the lease's path is still the locked one; false after it was removed or replaced."""
        return _is_at(self.path, self.descriptor)

    def release(self) -> None:
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


def _locked(descriptor: int, tries: int = TRIES) -> bool:
    """Take the lock; a runner that tests whether it is free (`is_free`) holds it for a moment."""
    for number in range(tries):
        time.sleep(PAUSE if number else 0)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
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


class Lease(Protocol):
    """A held lease."""

    @property
    def epoch(self) -> int:
        """Grows with each holder; part of every commit."""

    @property
    def location(self) -> str:
        """The file or row of the lease, for messages."""

    def is_held(self) -> bool:
        """Whether the lease is still this process's."""

    def release(self) -> None:
        """Release the lease."""

    def with_minimum_epoch(self, least: int) -> Self:
        """Return the lease with an epoch of at least `least`."""


def take_lease(settings: Settings, path: Path, owned: str, now: datetime, role: LeaseRole = LeaseRole.JOB) -> Lease:
    """Take the lease of `path` with the next epoch: in PostgreSQL by its name, or the OS lock of the file.

    Raises LeaseHeld when another process has it, LeaseServerUnavailable.
    """
    if settings.lease_url:
        # Imported late: on one host nothing needs a database.
        from include.state.lease_table import take_database_lease

        return take_database_lease(settings, lease_name(path), owned, role)
    return take_file_lease(path, owned, now)


def lease_name(path: Path) -> str:
    """Return the name of a lease in a database: folder and file, without the ending."""
    return f"{path.parent.name}/{path.stem}"


def is_lease_free(settings: Settings, path: Path) -> bool:
    """Return whether no process holds the lease of `path`. Raises LeaseServerUnavailable."""
    if settings.lease_url:
        from include.state.lease_table import held_leases

        return not any(row.name == lease_name(path) and not row.is_gone for row in held_leases(settings))
    return is_free(path)
