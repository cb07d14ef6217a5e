"""The ledger's tables, and how its database is opened.

All columns are integers or text, times are UTC milliseconds of the commits themselves, and every primary key follows
from the commit, so that the same commits always make the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    inspect,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DatabaseError, DisconnectionError, InterfaceError, OperationalError

from include.ground.errors import Terminal, Transient
from include.ground.paths import ledger_url
from include.ground.settings import Settings

REBUILD = "headrace ledger rebuild"
DAMAGE = ("malformed", "not a database")


def ledger_behind(table: str, at: int | str) -> Transient:
    """Return that the ledger lacks commits of a table before a version or a batch."""
    what = f"ledger lacks commits of {table} before {at}; nothing was inserted"
    return Transient(what, REBUILD, code="ledger-behind", table=table, at=at)


def ledger_missing(url: str) -> Transient:
    """Return that no ledger exists yet; the first driver or a rebuild creates it."""
    return Transient(f"no ledger exists at {url}", f"headrace up   or   {REBUILD}", code="ledger-missing")


class LedgerDamaged(Terminal):
    """The file is not a readable SQLite database."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"ledger {url} is damaged ({why}); the Delta tables are complete without it", REBUILD)
        self.url = url


class LedgerMismatch(Terminal):
    """The ledger and `table` on disk differ: commits were replaced or are missing."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"ledger and table {table} disagree: {why}; nothing was written", REBUILD)
        self.table = table


@contextmanager
def translate_database_errors(url: URL) -> Iterator[None]:
    """Raise the database's errors as Transient (`ledger-unavailable`), or LedgerDamaged, which will not pass."""
    shown = url.render_as_string(hide_password=True)
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        what = f"ledger {shown} is unavailable ({_first_line(error)}); the Delta tables are complete without it"
        remedy = "nothing: missing commits are inserted once it is available"
        raise Transient(what, remedy, code="ledger-unavailable") from error
    except DatabaseError as error:
        why = _first_line(error)
        if any(word in why for word in DAMAGE):
            raise LedgerDamaged(shown, why) from error
        raise


def _first_line(error: DatabaseError | InterfaceError) -> str:
    return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__


SCHEMA_VERSION = "7"
# A driver waits this long for another writer, then continues without the ledger.
BUSY_SECONDS = 1
# Any number that no other user of the same PostgreSQL takes: ASCII "hdrc".
ADVISORY_LOCK = 0x68647263
CREATION_LOCK = ADVISORY_LOCK + 1
POSTGRES_SCHEMA = "headrace"

metadata = MetaData()


def _table(name: str, keys: str, integers: str, texts: str = "") -> Table:
    """Declare a table; `keys` are `name:int|text`, the rest is nullable because a row may be filled by two commits."""
    columns: list[Column[Any]] = []
    for key in keys.split():
        column, kind = key.split(":")
        columns.append(Column(column, BigInteger if kind == "int" else Text, primary_key=True, autoincrement=False))
    columns += [Column(column, BigInteger) for column in integers.split()]
    columns += [Column(column, Text) for column in texts.split()]
    return Table(name, metadata, *columns)


marks = _table("headrace_ledger", "name:text", "", "value")
"""One row `schema_version`: which code wrote this database."""

projected = _table("projected", "path:text", "version committed_at_ms")
"""Per table (path in the warehouse): the last version entered. No other table records the index's progress."""

batches = _table(
    "batches",
    "dataset:text batch:int generation:text",
    "epoch rows first_timestamp_ms last_timestamp_ms version committed_at_ms",
    "topic topic_id query_id code reference",
)
"""One row per bronze commit; timestamps are Kafka's; `reference`: JSON name → version that the batch is joined with."""

ranges = _table("ranges", "dataset:text batch:int generation:text partition:int", "start_offset end_offset rows")
"""Per batch and partition: offsets [start_offset, end_offset) and the rows in them (offsets may have legal holes)."""

runs = _table(
    "runs",
    "dataset:text release:text last_batch:int",
    "first_batch epoch rows_in accepted invalid duplicate silver_version silver_committed_at_ms rejected_version "
    "rejected_committed_at_ms",
    "event_time_max code",
)
"""One row per refine run, filled by its silver and its rejected commit; a half-filled row is a run in progress."""

reasons = _table("reasons", "dataset:text release:text last_batch:int reason:text", "rows")
"""Rejected records of a run by reason; an invalid record counts once under each of its reasons."""

gold_commits = _table(
    "gold_commits",
    "dataset:text release:text last_batch:int gold:text",
    "first_batch epoch version rows grains total committed_at_ms",
)
"""One row per commit of a gold table: rows written, grains inserted or changed, total rows after it."""

refreshes = _table(
    "refreshes",
    "dataset:text release:text gold:text batch:int",
    "epoch version rows grains total committed_at_ms",
)
"""One row per commit that brought a gold table up to a batch between two runs; counts as in `gold_commits`."""

publications = _table("publications", "dataset:text release:text batch:int", "published_at_ms", "tables")
"""One row per batch that all tables of a release hold and the publication has passed; `tables`: JSON name → version."""

corrections = _table(
    "corrections",
    "dataset:text release:text plan:text direction:int table:text",
    "batch epoch version committed_at_ms rows_removed rows_added grains total",
    "dispositions reasons",
)
"""One row per commit of a plan's patch; `direction` is its `PatchDirection`; `total`: rows of the table after it.

`dispositions` and `reasons` (rejected only): JSON name → change of the row count.
"""

verifications = _table("verifications", "dataset:text release:text plan:text", "batch since_ms until_ms verified_at_ms")
"""One row per backfill that found a range of event time [since, until) equal at `batch`."""

warnings = _table(
    "warnings",
    "dataset:text release:text last_batch:int rule:text",
    "validated violations first_partition first_offset",
)
"""One row per run and rule that only warns: records validated, violations, and the first of them (null: none)."""

expirations = _table(
    "expirations",
    "dataset:text release:text table:text before:int",
    "first version committed_at_ms rows total",
    "offsets dispositions reasons",
)
"""One row per commit that removed batches [first, before) of a table by age; `release` is empty for bronze.

`offsets`: JSON partition → [start, end); `total`: rows of the table after it; the rest: JSON name → rows that expired.
"""

totals = _table("totals", "dataset:text release:text kind:text name:text", "rows")
"""Sums over the rows above, kept by `ledger_rows.py` as commits are entered; `kind`: bronze, rows_in, accepted, …"""

FACTS = (
    batches,
    ranges,
    runs,
    reasons,
    warnings,
    gold_commits,
    refreshes,
    publications,
    corrections,
    expirations,
    verifications,
    totals,
)
"""The tables whose rows a rebuild must reproduce."""


def open_engine(settings: Settings) -> Engine:
    """Return an engine for the ledger that the settings name; nothing is opened or created yet."""
    url = make_url(ledger_url(settings))
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    return _server(url)


def sqlite_file(url: URL) -> Path | None:
    """Return the file of an SQLite URL, None for a database server."""
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def _sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
    file = sqlite_file(url)

    @event.listens_for(engine, "connect")
    def configure(raw: Any, record: Any) -> None:
        # sqlite3 would begin transactions by itself, late and not for DDL; SQLAlchemy's "begin" event does it instead.
        raw.isolation_level = None
        raw.execute("pragma journal_mode=wal")
        raw.execute("pragma synchronous=normal")
        record.info["inode"] = _inode(file)

    @event.listens_for(engine, "checkout")
    def refuse_replaced(raw: Any, record: Any, proxy: Any) -> None:
        # A connection to a file that was moved away or deleted would continue to write to a deleted file.
        if record.info["inode"] != _inode(file):
            raise DisconnectionError("the ledger's file was replaced")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(str(connection.get_execution_options().get("begin", "begin")))

    return engine


def _inode(file: Path | None) -> int | None:
    try:
        return os.stat(file).st_ino if file else None
    except FileNotFoundError:
        return None


def _server(url: URL) -> Engine:
    driver = "postgresql+psycopg" if url.drivername == "postgresql" else url.drivername
    engine = create_engine(url.set(drivername=driver), pool_pre_ping=True, connect_args={"connect_timeout": 5})

    @event.listens_for(engine, "connect")
    def configure(raw: Any, record: Any) -> None:
        # The ledger's tables live in a schema of their own: the database may have other users.
        with raw.cursor() as cursor:
            cursor.execute(f"set search_path to {POSTGRES_SCHEMA}")
            cursor.execute(f"set lock_timeout to '{BUSY_SECONDS}s'")
        raw.commit()

    return engine


def lock_for_writing(connection: Connection, *, alone: bool = False) -> None:
    """Lock the ledger until the transaction ends: shared by writers, exclusive (`alone`) for a rebuild.

    SQLite has one writer at a time anyway (`begin immediate`).
    """
    if connection.dialect.name == "postgresql":
        shared = "" if alone else "_shared"
        connection.execute(text(f"select pg_advisory_xact_lock{shared}({ADVISORY_LOCK})"))


def ensure_schema(connection: Connection) -> None:
    """Create the ledger's tables in an empty database. Raises Terminal for another version's."""
    if found_version(connection) is None:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"select pg_advisory_xact_lock({CREATION_LOCK})"))
            connection.execute(text(f"create schema if not exists {POSTGRES_SCHEMA}"))
        # Another writer may have created it while this one waited for the lock.
        if found_version(connection) is None:
            create_tables(connection)
    validate_schema(connection)


def create_tables(connection: Connection) -> None:
    """Create all tables, empty, and note the schema version."""
    metadata.create_all(connection)
    connection.execute(marks.insert().values(name="schema_version", value=SCHEMA_VERSION))


def drop_tables(connection: Connection) -> None:
    """Drop all tables of the ledger, of whatever schema version."""
    found = MetaData()
    found.reflect(connection)
    found.drop_all(connection)


def found_version(connection: Connection) -> str | None:
    """Return the schema version of the database, None when there is no ledger in it."""
    if not inspect(connection).has_table(marks.name):
        return None
    return str(connection.execute(marks.select().with_only_columns(marks.c.value)).scalar())


def validate_schema(connection: Connection) -> None:
    """Raise `ledger-missing` or `ledger-schema-mismatch` unless the database is a ledger of this version."""
    found = found_version(connection)
    shown = connection.engine.url.render_as_string(hide_password=True)
    if found is None:
        raise ledger_missing(shown)
    if found != SCHEMA_VERSION:
        what = f"ledger {shown} has schema {found}, this code needs {SCHEMA_VERSION}; nothing was written"
        raise Terminal(what, REBUILD, code="ledger-schema-mismatch", found=found, required=SCHEMA_VERSION)
