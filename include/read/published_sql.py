"""SQL over published tables: DuckDB in memory, reading only, every table pinned by one read of the publications."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from include.ground.errors import Refused, Terminal
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.ground.stored_path import StoredPath
from include.read.memory_database import MEMORY, memory_database, rows_sql
from include.read.published_tables import LAYERS, PinnedTables, layer_order

TABLE_NAME = re.compile(rf'\b({"|".join(LAYERS)})"?\s*\.\s*"?(\w+)', re.IGNORECASE)
ROWS_AT_A_TIME = 10_000
COMMENT = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
# With options in parentheses, what follows the word is no statement, so that it is refused.
EXPLAIN = re.compile(rf"{COMMENT}*explain(?:{COMMENT}+analy[sz]e)?\b", re.IGNORECASE | re.DOTALL)
WORD = re.compile(r"\w+")
WRITING = {"copy", "insert", "update", "delete", "merge", "create", "attach", "export"}
# They run a text that is not part of the statement's own tree.
RUNNING_TEXT = {"query", "json_execute_serialized_sql"}
PARSED = "select tree::text, tree ->> 'error' from (select json_serialize_sql(?) as tree)"
# Members of the tree's objects: within a JSON text every quote of a value follows a backslash.
NODE = re.compile(r'(?<=[{,])"type":"(\w+_NODE)"')
FUNCTION = re.compile(r'(?<=[{,])"function_name":"(\w+)"')
READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
# DuckDB has only the published tables that a text names, so for a misspelt one it suggests a table of its own.
SUGGESTION = re.compile(r'(Table with name \S+ does not exist!)\nDid you mean "[^"]*"\?')


class QueryRefused(Terminal):
    """The text is not exactly one statement that only reads."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the query was refused: {why}", 'headrace query "SELECT …"   (one statement that reads)')
        self.reason = why


class QueryFailed(Terminal):
    """DuckDB could not run the statement; `reason` is its message."""

    def __init__(self, reason: str, known: list[str]) -> None:
        tables, self.reason = ", ".join(known) or "none yet: headrace up", SUGGESTION.sub(r"\1", reason)
        super().__init__(f"the query failed: {self.reason}", f"published tables: {tables}")


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
        connection = database_of(reading, tables_mentioned(sql, known))
        return connection, connection.sql(sql).to_arrow_reader(ROWS_AT_A_TIME)
    except duckdb.Error as error:
        raise QueryFailed(str(error), known) from error


def validate_reading(sql: str) -> None:
    """Raise QueryRefused unless the text is exactly one statement that reads, in each of its parts."""
    kind, read = _only_statement(sql), sql
    if kind.name != "SELECT" and (match := EXPLAIN.match(sql)):
        read = sql[match.end() :]
        kind = _only_statement(read)
    # A PIVOT whose columns depend on the rows is MULTI to DuckDB.
    if kind.name not in ("SELECT", "MULTI"):
        raise QueryRefused(f"{kind.name} does not read, and published tables are read-only")
    if writing := _writing_part(read):
        raise QueryRefused(f"it contains {writing}, which does not read, and published tables are read-only")


def _only_statement(sql: str) -> Any:
    import duckdb

    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise QueryRefused(f"it holds {len(statements)} statements, not one")
    return statements[0].type


def _writing_part(sql: str) -> str:
    """Return what a part of the statement would write, such as a COPY in its WITH; "" when all parts read."""
    with memory_database(spills=False) as database:
        ((tree, error),) = database.execute(PARSED, [sql]).fetchall()
    if error == "true":
        # A PIVOT of this kind has no tree.
        return next((word.upper() for word in WORD.findall(sql) if word.lower() in WRITING | RUNNING_TEXT), "")
    # Python's own reader of JSON refuses a tree as deep as DuckDB allows.
    nodes = (kind for kind in NODE.findall(tree) if kind not in READING_NODES)
    functions = (f"the function {name}" for name in FUNCTION.findall(tree) if name.lower() in RUNNING_TEXT)
    return next(chain(nodes, functions), "")


def database_of(
    reading: PinnedTables, names: list[str], *, memory: str = MEMORY, threads: int = 0, spills: bool = True
) -> Any:
    """Return a database that has these tables as views and reads nothing else; `threads` 0: one for each core."""
    connection = memory_database(memory, spills=spills)
    if threads:
        connection.execute(f"set threads = {threads}")
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


def write_catalog(reading: PinnedTables, path: Path) -> list[str]:
    """Write a DuckDB file of views over the published tables, for tools that open one; return the names of its views.

    The file is complete or absent; who has an earlier one open continues to read that. A view names the files of its
    version, which stay until the retention of replaced files has passed. Raises Refused (no-catalog).
    """
    names = sorted(reading.tables, key=layer_order)
    if stored := next((each.path for each in reading.tables.values() if isinstance(each.path, StoredPath)), None):
        raise _no_catalog(
            path, f"its views would name files, and {stored} lies in an object store (headrace query reads it)"
        )
    if not path.parent.is_dir():
        raise _no_catalog(path, f"{path.parent} is not a folder")
    if path.exists() and not _is_database(path):
        raise _no_catalog(path, "exists and is not a DuckDB database")
    try:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=path.parent) as folder:
            part = Path(folder, path.name)
            _write(reading, names, part)
            os.replace(part, path)
    except OSError as error:
        raise _no_catalog(path, error.strerror or str(error)) from error
    return names


def _no_catalog(path: Path, why: str) -> Refused:
    what, remedy = f"{path}: {why}; nothing was written", "headrace tables --duckdb FILE   (in a writable folder)"
    return Refused(what, remedy, code="no-catalog", path=path)


def _is_database(path: Path) -> bool:
    """Whether the file begins as DuckDB's do: its magic bytes follow a checksum of eight."""
    with path.open("rb") as file:
        return file.read(12)[8:] == b"DUCK"


def _write(reading: PinnedTables, names: list[str], path: Path) -> None:
    with memory_database() as connection:
        # Tools embed DuckDB of many versions; this format is read by all since 1.0.
        connection.execute(f"attach {sql_literal(str(path))} as catalog (storage_version 'v1.0.0')")
        for layer in LAYERS:
            connection.execute(f"create schema catalog.{layer}")
        for name in names:
            layer, table = name.split(".", 1)
            rows = rows_sql(connection, reading.table(name).path, reading.arrow(name))
            connection.execute(f"create view catalog.{layer}.{sql_identifier(table)} as {rows}")
        # DuckDB's log of changes becomes a part of the file.
        connection.execute("detach catalog")
