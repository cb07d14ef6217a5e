"""The leases of a state folder in PostgreSQL: a row for each, with holder, epoch, and expiry by the server's clock.

Guarantee: each change is one statement. A client that stops between statements holds no lock, and only one of two
clients that take a free lease at the same time gets it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from include.ground.errors import Transient, mask_secrets


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


# Advisory lock: two clients may create the table at the same time.
CREATION_LOCK = 0x68647266
CREATE = """
create schema if not exists headrace;
create table if not exists headrace.leases (
  domain text, name text, epoch bigint not null, role text, pid bigint, identity text, place text, host text,
  since timestamptz, expires_at timestamptz not null, is_released boolean not null, is_revoked boolean not null,
  primary key (domain, name))"""
KNOWN = """
insert into headrace.leases (domain, name, epoch, expires_at, is_released, is_revoked)
values (%(domain)s, %(name)s, 0, '-infinity', true, false) on conflict do nothing"""
TAKE = """
update headrace.leases set epoch = epoch + 1, role = %(role)s, pid = %(pid)s, identity = %(identity)s,
  place = %(place)s, host = %(host)s, since = clock_timestamp(), is_released = false, is_revoked = false,
  expires_at = clock_timestamp() + %(seconds)s * interval '1 second'
where domain = %(domain)s and name = %(name)s and (expires_at <= clock_timestamp() or epoch = %(ended)s)
returning epoch"""
RENEW = """
update headrace.leases set expires_at = clock_timestamp() + %(seconds)s * interval '1 second'
where domain = %(domain)s and name = %(name)s and epoch = %(epoch)s and not is_released and not is_revoked
returning epoch"""
RAISE = """
update headrace.leases set epoch = %(least)s
where domain = %(domain)s and name = %(name)s and epoch = %(epoch)s and not is_released returning epoch"""
RELEASE = """
update headrace.leases set is_released = true, expires_at = '-infinity'
where domain = %(domain)s and name = %(name)s and epoch = %(epoch)s"""
REVOKE = """
update headrace.leases set is_revoked = true
where domain = %(domain)s and role = %(role)s and place <> %(place)s and not is_released"""
ROWS = """
select name, epoch, role, pid, identity, place, host, since, is_revoked,
       extract(epoch from expires_at - clock_timestamp())::float8 as seconds_left
from headrace.leases where domain = %(domain)s and expires_at > clock_timestamp() order by name"""


@dataclass(frozen=True)
class LeaseRow:
    """A lease that is held now, with the holder's process and the seconds until it expires.

    `is_revoked`: another host supervises now, and the holder cannot renew it.
    """

    name: str
    epoch: int
    role: str
    pid: int
    identity: str
    place: str
    host: str
    since: datetime
    is_revoked: bool
    seconds_left: float


@dataclass
class LeaseTable:
    """The leases of one state folder (`domain`). One connection is used, and reopened after an error.

    A lease lasts `seconds` from each renewal; a request takes at most a quarter of them.
    """

    url: str
    domain: str
    seconds: float
    _connection: psycopg.Connection[Any] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, name: str, holder: Mapping[str, object], ended: int | None) -> int | None:
        """Take a lease that is free, expired, or of epoch `ended`, whose holder is known to be gone.

        Return its new epoch, or None when another process holds it.
        """
        self._execute(KNOWN, name=name)
        taken = self._execute(TAKE, name=name, ended=ended, **holder)
        return int(taken[0]["epoch"]) if taken else None

    def renew(self, name: str, epoch: int) -> bool:
        """Renew a lease; return False when it was revoked or another holder has it."""
        return bool(self._execute(RENEW, name=name, epoch=epoch))

    def raise_epoch(self, name: str, epoch: int, least: int) -> bool:
        """Set a greater epoch of a held lease; return False when another holder has it."""
        return bool(self._execute(RAISE, name=name, epoch=epoch, least=least))

    def release(self, name: str, epoch: int) -> None:
        """Release a lease; no effect when another holder has it."""
        self._execute(RELEASE, name=name, epoch=epoch)

    def revoke(self, role: str, place: str) -> None:
        """Forbid renewal of a role's leases that are held outside of `place`, so that they expire."""
        self._execute(REVOKE, role=role, place=place)

    def rows(self) -> list[LeaseRow]:
        """Return the leases that are held now, by name."""
        return [LeaseRow(**row) for row in self._execute(ROWS)]

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _execute(self, query: str, **given: object) -> list[dict[str, Any]]:
        """Execute one statement in a transaction of its own; return its rows. Raises LeaseServerUnavailable."""
        parameters = {"domain": self.domain, "seconds": self.seconds, **given}
        with self._lock:
            try:
                connection = self._connected()
                cursor = connection.execute(query, parameters)
                return cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                self._drop()
                raise LeaseServerUnavailable(mask_secrets(self.url), mask_secrets(_first_line(error))) from None

    def _connected(self) -> psycopg.Connection[dict[str, Any]]:
        if self._connection is None:
            within = max(1, int(self.seconds * 250))
            options = f"-c statement_timeout={within} -c lock_timeout={within}"
            self._connection = psycopg.connect(
                self.url,
                autocommit=True,
                row_factory=dict_row,
                connect_timeout=max(2, within // 1000),
                tcp_user_timeout=within,
                options=options,
                application_name="headrace leases",
            )
            with self._connection.transaction():
                self._connection.execute("select pg_advisory_xact_lock(%s)", [CREATION_LOCK])
                self._connection.execute(CREATE)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
