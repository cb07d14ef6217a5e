"""The lease: one owner per dataset, per release (docs/architecture.md §4, step 1), and one runner per state folder.

It is a row in PostgreSQL, or an OS lock on a file, which ends with its process and which a stopped process keeps.
Guarantee of a row: `is_held` uses only this host's time since boot, which no clock correction and no stop of the
process changes. It becomes False, for good, when HELD_SHARE of the lease's seconds have passed since the last renewal
was *sent*; the server counts all of them from the renewal's *arrival*.
After a crash: the row expires. It is free at once when the next taker runs in the same place and finds the process
gone.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol, Self, TextIO

from include.ground.app_ids import add_check, remove_check
from include.ground.durable_files import unique_suffix
from include.ground.errors import Transient
from include.ground.paths import lease_domain_path, lease_url
from include.ground.processes import host_name, this_place
from include.ground.settings import Settings
from include.state.lease_table import LeaseHeld, LeaseLost, LeaseRow, LeaseServerUnavailable, LeaseTable
from include.state.run_files import identity_of, seconds_since_boot


class LockHeld(Transient):
    """Another process has the lock; `holder` is what it wrote into the file."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by {holder}; nothing was done", "wait for it, then try again")
        self.path, self.holder = path, holder


def take_lock(path: Path, holder: str) -> TextIO:
    """Take the lock until the file is closed, and write `holder` into it. Raises LockHeld when it is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise LockHeld(path, path.read_text().strip() or "an unknown process") from error
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
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def is_held(file: TextIO) -> bool:
    """Return whether the lock file still exists under its path; False if it was removed."""
    try:
        return os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


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


HELD_SHARE = 0.8
"""The rest is for the commit that follows the last check."""
RENEWALS = 5
"""Renewals within the seconds of a lease."""
RETRY_SECONDS = 0.5


class LeaseRole(StrEnum):
    """The kind of holder: a runner, a runner that stands by, a stream's driver, or a job."""

    RUNNER = "runner"
    STANDBY = "standby"
    STREAM = "stream"
    JOB = "job"


class DatabaseLease:
    """A lease that this process took; it may commit while the lease is held (`include/ground/app_ids.py`)."""

    def __init__(
        self,
        table: LeaseTable,
        name: str,
        owned: str,
        epoch: int,
        sent: float,
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self.epoch = epoch
        self.location = f"{name} of {table.domain[:8]} in PostgreSQL"
        self._table, self._name, self._owned, self._clock = table, name, owned, clock
        self._until = sent + HELD_SHARE * table.seconds
        self._ended = threading.Event()
        self._epoch_lock = threading.Lock()
        add_check(self.require)
        atexit.register(self.release)
        threading.Thread(target=self._renew_until_ended, name=f"lease {name}", daemon=True).start()

    def is_held(self) -> bool:
        """Whether this process may commit. Once False it stays so: another process may have held the lease since."""
        if self._clock() >= self._until:
            self._ended.set()
        return not self._ended.is_set()

    def require(self) -> None:
        """Raise LeaseLost unless the lease is held."""
        if not self.is_held():
            raise LeaseLost(self._owned, self.location, "could not be renewed in time, or another host took over")

    def release(self) -> None:
        """Release the lease; if the server does not answer, it expires."""
        remove_check(self.require)
        atexit.unregister(self.release)
        self._ended.set()
        with suppress(LeaseServerUnavailable):
            self._table.release(self._name, self.epoch)
        self._table.close()

    def with_minimum_epoch(self, least: int) -> DatabaseLease:
        """Return the lease with an epoch of at least `least`. Raises LeaseLost, LeaseServerUnavailable."""
        with self._epoch_lock:
            if self.epoch < least:
                if not self._table.raise_epoch(self._name, self.epoch, least):
                    self._ended.set()
                    self.require()
                self.epoch = least
        return self

    def _renew_until_ended(self) -> None:
        pause = self._table.seconds / RENEWALS
        while not self._ended.wait(pause):
            pause = self._table.seconds / RENEWALS
            try:
                self._renew()
            except LeaseServerUnavailable:
                pause = min(pause, RETRY_SECONDS)

    def _renew(self) -> None:
        with self._epoch_lock:
            sent = self._clock()
            if not self._table.renew(self._name, self.epoch):
                self._ended.set()
            elif self.is_held():
                self._until = sent + HELD_SHARE * self._table.seconds


def take_database_lease(
    settings: Settings, name: str, owned: str, role: LeaseRole, clock: Callable[[], float] = seconds_since_boot
) -> DatabaseLease:
    """Take a lease with the next epoch. Raises LeaseHeld, LeaseServerUnavailable, PasswordUnreadable."""
    table, pid = lease_table(settings), os.getpid()
    holder = {"role": role, "pid": pid, "identity": identity_of(pid), "place": this_place(), "host": host_name()}
    try:
        found = next((row for row in table.rows() if row.name == name), None)
        sent = clock()
        epoch = table.take(name, holder, found.epoch if found and is_gone(found) else None)
        if epoch is None:
            held = next((row for row in table.rows() if row.name == name), found)
            raise LeaseHeld(owned, _facts(held) if held else {})
    except BaseException:
        table.close()
        raise
    return DatabaseLease(table, name, owned, epoch, sent, clock)


def is_gone(row: LeaseRow) -> bool:
    """Return whether the holder was a process of this place and has ended."""
    return row.place == this_place() != "" and identity_of(row.pid) != row.identity


def _facts(row: LeaseRow) -> dict[str, object]:
    return {"pid": row.pid, "host": row.host, "since": f"{row.since:%FT%TZ}", "epoch": row.epoch, "role": row.role}


def held_leases(settings: Settings) -> list[LeaseRow]:
    """Return the leases that are held now; none without HEADRACE_LEASE_URL. Raises LeaseServerUnavailable."""
    if not settings.lease_url:
        return []
    table = lease_table(settings)
    try:
        return table.rows()
    finally:
        table.close()


def revoke_streams_elsewhere(settings: Settings) -> None:
    """Let the leases of drivers on other hosts expire, because their runner no longer supervises."""
    table = lease_table(settings)
    try:
        table.revoke(LeaseRole.STREAM, this_place())
    finally:
        table.close()


def lease_table(settings: Settings) -> LeaseTable:
    """Return the lease table of the state folder, without a connection. Raises PasswordUnreadable."""
    return LeaseTable(lease_url(settings), lease_domain(settings), settings.lease_seconds)


def lease_domain(settings: Settings) -> str:
    """Return the random name of this state folder, unique among those with leases in the same database."""
    path = lease_domain_path(settings)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{unique_suffix()}")
        fresh.write_text(os.urandom(16).hex())
        # Unlike a rename, a link does not replace the file of a process that was faster.
        with suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
    return Path(path).read_text()


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
        return take_database_lease(settings, lease_name(path), owned, role)
    return take_file_lease(path, owned, now)


def lease_name(path: Path) -> str:
    """Return the name of a lease in a database: folder and file, without the ending."""
    return f"{path.parent.name}/{path.stem}"


def is_lease_free(settings: Settings, path: Path) -> bool:
    """Return whether no process holds the lease of `path`. Raises LeaseServerUnavailable."""
    if settings.lease_url:
        return not any(row.name == lease_name(path) and not is_gone(row) for row in held_leases(settings))
    return is_free(path)
