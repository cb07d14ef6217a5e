"""SQL over published tables: DuckDB in memory, reading only, every table pinned by one read of the publications."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from include.errors import Terminal
from include.reading.memory_database import MEMORY, memory_database
from include.reading.published_tables import LAYERS, PinnedTables

TABLE_NAME = re.compile(rf'\b({"|".join(LAYERS)})"?\s*\.\s*"?(\w+)', re.IGNORECASE)
ROWS_AT_A_TIME = 10_000
# DuckDB has only the published tables that a text names, so for a misspelt one it suggests a table of its own.
SUGGESTION = re.compile(r'(Table with name \S+ does not exist!)\nDid you mean "[^"]*"\?')


class QueryRefused(Terminal):
    """The text is not exactly one statement that only reads."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the query was refused: {why}", 'headrace query "SELECT …"   (one statement that reads)')


class QueryFailed(Terminal):
    """DuckDB could not run the statement; `reason` is its message."""

    def __init__(self, reason: str, known: list[str]) -> None:
        tables, self.reason = ", ".join(known) or "none yet: headrace up", SUGGESTION.sub(r"\1", reason)
        super().__init__(f"the query failed: {self.reason}", f"published tables: {tables}")


class QueryTimedOut(Terminal):
    """The statement ran longer than its limit and was ended."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the query ran longer than {seconds:g} s and was ended", "headrace query has no time limit")
        self.seconds = seconds


@dataclass(frozen=True)
class QueryLimits:
    """What a statement of another user may use: seconds, memory and temporary files (DuckDB's notation), threads."""

    seconds: float
    memory: str = "512MB"
    spill: str = "1GB"
    threads: int = 1


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query, streamed: `columns` are its names, `types` the Arrow types, `rows` tuples of Python values."""

    columns: tuple[str, ...]
    types: tuple[Any, ...]
    rows: Iterator[tuple[Any, ...]]


def tables_mentioned(sql: str, known: list[str]) -> list[str]:
    """Return the published tables that the text names, so that only those are opened."""
    mentioned = {f"{layer}.{table}".lower() for layer, table in TABLE_NAME.findall(sql)}
    return [name for name in known if name.lower() in mentioned]


def run_query(reading: PinnedTables, sql: str) -> QueryResult:
    """Run one reading statement over schemas bronze, silver, rejected, gold and analysis and return its rows, streamed.

    Raises as `open_query`. The statement can read no file and no network address.
    """
    connection, reader = open_query(reading, sql)
    schema = reader.schema
    return QueryResult(tuple(schema.names), tuple(schema.types), _rows(connection, reader, sorted(reading.tables)))


def open_query(reading: PinnedTables, sql: str) -> tuple[Any, Any]:
    """Return the connection that runs a statement, and its result as an Arrow reader.

    Raises QueryRefused for anything but one SELECT (or EXPLAIN), QueryFailed with DuckDB's message and the tables
    that exist.
    """
    import duckdb

    known = sorted(reading.tables)
    try:
        validate_reading(sql)
        connection = _database_of(reading, tables_mentioned(sql, known))
        return connection, connection.sql(sql).to_arrow_reader(ROWS_AT_A_TIME)
    except duckdb.Error as error:
        raise QueryFailed(str(error), known) from error


@contextmanager
def limited_query(reading: PinnedTables, sql: str, limits: QueryLimits) -> Iterator[QueryResult]:
    """Run one reading statement within limits; the rows are gone after the context.

    Raises as `open_query`, and QueryTimedOut, also while rows are read.
    """
    import duckdb

    known, connection, ended = sorted(reading.tables), None, threading.Event()
    try:
        validate_reading(sql)
        connection = _database_of(reading, tables_mentioned(sql, known), limits)
        with _ended_after(limits.seconds, connection, ended):
            reader = connection.sql(sql).to_arrow_reader(ROWS_AT_A_TIME)
            schema = reader.schema
            yield QueryResult(tuple(schema.names), tuple(schema.types), _rows(connection, reader, known))
    except (duckdb.Error, QueryFailed, RuntimeError) as error:
        if ended.is_set():
            raise QueryTimedOut(limits.seconds) from error
        raise error if isinstance(error, QueryFailed) else QueryFailed(str(error), known) from error
    finally:
        if connection is not None:
            connection.close()


@contextmanager
def _ended_after(seconds: float, connection: Any, ended: threading.Event) -> Iterator[None]:
    def end() -> None:
        ended.set()
        connection.interrupt()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def validate_reading(sql: str) -> None:
    """Raise QueryRefused unless the text is exactly one statement that reads."""
    import duckdb

    kinds = duckdb.StatementType
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise QueryRefused(f"it holds {len(statements)} statements, not one")
    # A PIVOT is MULTI to DuckDB. EXPLAIN ANALYZE of a write would change this connection's memory and nothing else.
    if statements[0].type not in (kinds.SELECT, kinds.EXPLAIN, kinds.MULTI):
        raise QueryRefused(f"{statements[0].type.name} does not read, and published tables are read-only")


def _database_of(reading: PinnedTables, names: list[str], limits: QueryLimits | None = None) -> Any:
    connection = memory_database(limits.memory if limits else MEMORY)
    if limits is not None:
        connection.execute(f"set threads = {limits.threads}")
        connection.execute("set max_temp_directory_size = ?", [limits.spill])
    for layer in LAYERS:
        connection.execute(f"create schema {layer}")
    for number, name in enumerate(names):
        layer, table = name.split(".", 1)
        connection.register(f"_arrow_{number}", reading.arrow(name))
        connection.execute(f'create view {layer}."{table}" as select * from _arrow_{number}')
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    return connection


def _rows(connection: Any, reader: Any, known: list[str]) -> Iterator[tuple[Any, ...]]:
    import duckdb
    import pyarrow as pa

    try:
        for batch in reader:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
    except (duckdb.Error, pa.ArrowException, OSError, OverflowError) as error:
        raise QueryFailed(str(error), known) from error
    finally:
        connection.close()
