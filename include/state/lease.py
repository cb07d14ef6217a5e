"""The lease: one owner per dataset, per release (docs/architecture.md §4, step 1), and one runner per state folder."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Protocol, Self

from include.ground.settings import Settings
from include.state.database_lease import LeaseRole, held_leases, is_gone, take_database_lease
from include.state.file_lease import take_file_lease
from include.state.file_locks import is_free


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
