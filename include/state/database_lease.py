"""A lease as a row in PostgreSQL. A thread renews it; it ends for its holder before it ends for the server.

Guarantee: `is_held` uses only this host's time since boot, which no clock correction and no stop of the process
changes. It becomes False, for good, when HELD_SHARE of the lease's seconds have passed since the last renewal was
*sent*; the server counts all of them from the renewal's *arrival*.
After a crash: the lease expires. It is free at once when the next taker runs in the same place and finds its process
gone.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from include.ground.commit_guard import add_check, remove_check
from include.ground.durable_files import unique_suffix
from include.ground.paths import lease_domain_path, lease_url
from include.ground.process_place import host_name, this_place
from include.ground.settings import Settings
from include.state.heartbeats import seconds_since_boot
from include.state.lease_errors import LeaseHeld, LeaseLost, LeaseServerUnavailable
from include.state.lease_table import LeaseRow, LeaseTable
from include.state.run_files import identity_of

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
    """A lease that this process took; it may commit while the lease is held (`include/ground/commit_guard.py`)."""

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
