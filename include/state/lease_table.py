"""Leases in PostgreSQL, for several hosts: a row each, with holder, epoch, and expiry by the server's clock (adr-0001).

Guarantee: each change is one statement. A client that stops between statements holds no lock, and only one of two
clients that take a free lease at the same time gets it. `is_held` uses only this host's time since boot, which no clock
correction and no stop of the process changes. It becomes False, for good, when HELD_SHARE of the lease's seconds have
passed since the last renewal was *sent*; the server counts all of them from the renewal's *arrival*.
After a crash: the row expires. It is free at once when the next taker runs in the same place and finds the process
gone.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Double,
    Engine,
    Executable,
    MetaData,
    Row,
    Table,
    Text,
    create_engine,
    extract,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from include.ground.app_ids import add_check, remove_check
from include.ground.durable_files import unique_suffix
from include.ground.errors import mask_secrets
from include.ground.paths import lease_domain_path, lease_url
from include.ground.processes import host_name, this_place
from include.ground.settings import Settings
from include.state.lease import LeaseHeld, LeaseLost, LeaseRole, LeaseServerUnavailable
from include.state.run_files import identity_of, seconds_since_boot

# Advisory lock: two clients may create the table at the same time.
CREATION_LOCK = 0x68647266
HELD_SHARE = 0.8
"""The rest is for the commit that follows the last check."""
RENEWALS = 5
"""Renewals within the seconds of a lease."""
RETRY_SECONDS = 0.5
NOW: ColumnElement[datetime] = func.clock_timestamp(type_=DateTime(timezone=True))

leases = Table(
    "leases",
    MetaData(schema="headrace"),
    Column("domain", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("role", Text),
    Column("pid", BigInteger),
    Column("identity", Text),
    Column("place", Text),
    Column("host", Text),
    Column("since", DateTime(timezone=True)),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("is_released", Boolean, nullable=False),
    Column("is_revoked", Boolean, nullable=False),
)


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

    @property
    def is_gone(self) -> bool:
        """Whether the holder was a process of this place and has ended."""
        return self.place == this_place() != "" and identity_of(self.pid) != self.identity

    @property
    def facts(self) -> dict[str, object]:
        return {"pid": self.pid, "host": self.host, "since": f"{self.since:%FT%TZ}", "epoch": self.epoch}


@dataclass
class LeaseTable:
    """The leases of one state folder, or of those that share a name (`domain`).

    One connection is used, and reopened after an error. A lease lasts `seconds` from each renewal; a request takes at
    most a quarter of them.
    """

    url: str
    domain: str
    seconds: float

    def take(self, name: str, holder: Mapping[str, object], ended: int | None) -> int | None:
        """Take a lease that is free, expired, or of epoch `ended`, whose holder is known to be gone.

        Return its new epoch, or None when another process holds it.
        """
        taken = {**holder, "since": NOW, "is_released": False, "is_revoked": False, "expires_at": self._expiry}
        first = insert(leases).values(domain=self.domain, name=name, epoch=1, **taken)
        again = first.on_conflict_do_update(
            index_elements=[leases.c.domain, leases.c.name],
            set_={**taken, "epoch": leases.c.epoch + 1},
            where=(leases.c.expires_at <= NOW) | (leases.c.epoch == ended),
        )
        found = self._rows(again.returning(leases.c.epoch))
        return int(found[0].epoch) if found else None

    def renew(self, name: str, epoch: int) -> bool:
        """Renew a lease; return False when it was revoked or another holder has it."""
        return self._change(self._held(name, epoch) & ~leases.c.is_revoked, expires_at=self._expiry)

    def raise_epoch(self, name: str, epoch: int, least: int) -> bool:
        """Set a greater epoch of a held lease; return False when another holder has it."""
        return self._change(self._held(name, epoch), epoch=least)

    def release(self, name: str, epoch: int) -> None:
        """Release a lease; no effect when another holder has it."""
        self._change(self._held(name, epoch), is_released=True, expires_at=NOW)

    def revoke(self, role: str, place: str) -> None:
        """Forbid renewal of a role's leases that are held outside of `place`, so that they expire."""
        c = leases.c
        elsewhere = (c.domain == self.domain) & (c.role == role) & (c.place != place) & ~c.is_released
        self._change(elsewhere, is_revoked=True)

    def rows(self) -> list[LeaseRow]:
        c = leases.c
        columns = (c.name, c.epoch, c.role, c.pid, c.identity, c.place, c.host, c.since, c.is_revoked)
        left = extract("epoch", c.expires_at - NOW).cast(Double)
        query = select(*columns, left).where(c.domain == self.domain, c.expires_at > NOW).order_by(c.name)
        return [LeaseRow(*row) for row in self._rows(query)]

    def close(self) -> None:
        self._engine.dispose()

    @property
    def _expiry(self) -> ColumnElement[datetime]:
        return NOW + timedelta(seconds=self.seconds)

    def _held(self, name: str, epoch: int) -> ColumnElement[bool]:
        c = leases.c
        return (c.domain == self.domain) & (c.name == name) & (c.epoch == epoch) & ~c.is_released

    def _change(self, which: ColumnElement[bool], **values: Any) -> bool:
        return bool(self._rows(update(leases).where(which).values(**values).returning(leases.c.epoch)))

    def _rows(self, statement: Executable) -> list[Row[Any]]:
        """Execute one statement in a transaction of its own. Raises LeaseServerUnavailable."""
        try:
            with self._ready_engine.connect() as connection:
                return list(connection.execute(statement).all())
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise LeaseServerUnavailable(mask_secrets(self.url), mask_secrets(_first_line(error))) from None

    @cached_property
    def _engine(self) -> Engine:
        within = max(1, int(self.seconds * 250))
        options = {
            "connect_timeout": max(2, within // 1000),
            "tcp_user_timeout": within,
            "options": f"-c statement_timeout={within} -c lock_timeout={within}",
            "application_name": "headrace leases",
        }
        url = make_url(self.url).set(drivername="postgresql+psycopg")
        return create_engine(url, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=0, connect_args=options)

    @cached_property
    def _ready_engine(self) -> Engine:
        """The engine, once the table exists."""
        with self._engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            connection.execute(select(func.pg_advisory_xact_lock(CREATION_LOCK)))
            connection.execute(CreateSchema("headrace", if_not_exists=True))
            leases.create(connection, checkfirst=True)
        return self._engine


def _first_line(error: SQLAlchemyError) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().partition("\n")[0] or type(cause).__name__


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
    pid, table = os.getpid(), _table(settings)
    holder = {"role": role, "pid": pid, "identity": identity_of(pid), "place": this_place(), "host": host_name()}
    try:
        found = next((row for row in table.rows() if row.name == name), None)
        sent = clock()
        epoch = table.take(name, holder, found.epoch if found and found.is_gone else None)
        if epoch is None:
            held = next((row for row in table.rows() if row.name == name), found)
            raise LeaseHeld(owned, held.facts if held else {})
    except BaseException:
        table.close()
        raise
    return DatabaseLease(table, name, owned, epoch, sent, clock)


def held_leases(settings: Settings) -> list[LeaseRow]:
    """Return the leases that are held now; none without HEADRACE_LEASE_URL. Raises LeaseServerUnavailable."""
    if not settings.lease_url:
        return []
    with closing(_table(settings)) as table:
        return table.rows()


def revoke_streams_elsewhere(settings: Settings) -> None:
    """Let the leases of drivers on other hosts expire, because their runner no longer supervises."""
    with closing(_table(settings)) as table:
        table.revoke(LeaseRole.STREAM, this_place())


def _table(settings: Settings) -> LeaseTable:
    """Return the lease table of the state folder, without a connection. Raises PasswordUnreadable."""
    return LeaseTable(lease_url(settings), lease_domain(settings), settings.lease_seconds)


def lease_domain(settings: Settings) -> str:
    """Return what state folders of a warehouse share, or the random name of this one, unique in its database."""
    if settings.lease_domain:
        return f"{settings.lease_domain} {settings.warehouse}"
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
