"""A DuckDB database of views over the published tables, for tools that open a file: BI tools, the DuckDB shell, JDBC.

*Reads:* publications, Delta logs. *Writes:* the named file.
*Guarantee:* all views are of one read of the publications: no two of them disagree. The file is complete or absent;
who has the earlier one open continues to read that. A view names the files of its version, which stay until the
retention of replaced files has passed, so write the database anew before then.
*After a crash:* run it again; a folder whose name begins with `.part-` may be left next to it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from include.ground.errors import Terminal
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.read.memory_database import memory_database
from include.read.parquet_rows import rows_sql
from include.read.published_tables import LAYERS, PinnedTables, layer_order


class CatalogRefused(Terminal):
    """The database cannot be written at `path`."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: {why}; nothing was written", "headrace tables --duckdb FILE   (in a writable folder)"
        )
        self.path = path


def write_catalog(reading: PinnedTables, path: Path) -> list[str]:
    """Write the database, in place of an earlier one; return the names of its views. Raises CatalogRefused."""
    names = sorted(reading.tables, key=layer_order)
    if not path.parent.is_dir():
        raise CatalogRefused(path, f"{path.parent} is not a folder")
    if path.exists() and not _is_database(path):
        raise CatalogRefused(path, "exists and is not a DuckDB database")
    try:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=path.parent) as folder:
            part = Path(folder, path.name)
            _write(reading, names, part)
            os.replace(part, path)
    except OSError as error:
        raise CatalogRefused(path, error.strerror or str(error)) from error
    return names


def _is_database(path: Path) -> bool:
    """Whether the file begins as DuckDB's do: its magic bytes follow a checksum of eight."""
    with path.open("rb") as file:
        return file.read(12)[8:] == b"DUCK"


def _write(reading: PinnedTables, names: list[str], path: Path) -> None:
    connection = memory_database()
    try:
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
    finally:
        connection.close()
