"""Opens DuckDB, for all modules: in memory, with a memory limit, spilling into a folder of this process.

A query that needs more memory than its limit spills to `spill/<process>/` in the state folder; after a crash the next
process that opens a database removes the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from os import getpid
from pathlib import Path
from typing import Any
from uuid import uuid4

from include.ground.durable_files import new_process_folder
from include.ground.paths import spill_path
from include.ground.settings import load_settings
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.ground.stored_path import StoredPath, arrow_files

MEMORY = "2GB"


def memory_database(memory: str = MEMORY, *, spills: bool = True) -> Any:
    """Return a DuckDB connection in memory, in UTC, that never loads anything and sees no Python variable.

    Beyond `memory` it spills to the disk, if it may; what cannot be spilled fails the query.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    # Global: its cursors have these two as well.
    connection.execute("set global TimeZone = 'UTC'; set global python_enable_replacements = false")
    connection.execute("set memory_limit = ?", [memory])
    # Two connections that spill into one folder take and remove each other's files.
    folder = str(spill_folder(getpid()) / uuid4().hex[:8]) if spills else ""
    connection.execute("set temp_directory = ?", [folder])
    connection.execute("set autoinstall_known_extensions = false; set autoload_known_extensions = false")
    # It never forgets a file that was read, some 800 bytes each, and keeps no content of local files.
    connection.execute("set enable_external_file_cache = false")
    return connection


def view_rows(database: Any, name: str, rows: Any) -> None:
    """Make `name` a view of Arrow rows, also where other rows or an SQL view have the name."""
    database.execute(f"drop view if exists {name}")
    database.register(name, rows)


@cache
def spill_folder(process: int) -> Path:
    """Return this process's folder for temporary files; one that cannot be made fails the query that needs it."""
    spills = spill_path(load_settings(), "any").parent
    if spills.parent.is_dir():
        with suppress(OSError):
            return new_process_folder(spills)
    return spills / str(process)


def view_table(database: Any, name: str, folder: Path, dataset: Any, where: str = "true") -> None:
    """Make `name` a view of those rows of a table that satisfy a condition, also where other rows have the name.

    `dataset` is an Arrow dataset of the table's files in `folder`.
    """
    database.execute(f"drop view if exists {name}")
    database.execute(f"create temp view {name} as select * from ({rows_sql(database, folder, dataset)}) where {where}")


def rows_sql(connection: Any, folder: Path, dataset: Any) -> str:
    """Return SQL for the rows of a table's files; a file from before a column was added has nulls in it."""
    connection.register("_empty", dataset.schema.empty_table())
    types = connection.execute("describe select * from _empty").fetchall()
    connection.unregister("_empty")
    typed = ", ".join(f"cast(null as {kind}) as {sql_identifier(name)}" for name, kind, *_ in types)
    nothing = f"select {typed} where false"
    if not dataset.files:
        return nothing
    if isinstance(folder, StoredPath):
        return f"select * from {_registered(connection, dataset)}"
    files = ", ".join(sql_literal(str(folder / file)) for file in dataset.files)
    # The partition column is in the paths only.
    read = f"read_parquet([{files}], union_by_name = true, hive_partitioning = true, hive_types_autocast = false)"
    # The table's type, where a file has a narrower or wider one.
    own = ", ".join(
        f"cast({column} as {kind}) as {column}" for name, kind, *_ in types for column in [sql_identifier(name)]
    )
    return f"select {own} from ({nothing} union all by name select * from {read})"


def files_sql(connection: Any, folder: Path, files: Sequence[str]) -> str:
    """Return the SQL source of one or more Parquet files of a table as they are; a column that one lacks is null."""
    if not isinstance(folder, StoredPath):
        names = ", ".join(sql_literal(str(folder / file)) for file in files)
        return f"read_parquet([{names}], hive_partitioning = false, union_by_name = true)"
    import pyarrow as pa
    import pyarrow.dataset as pd

    opened = pd.dataset(list(files), format="parquet", filesystem=arrow_files(folder))
    schemas = [fragment.physical_schema for fragment in opened.get_fragments()]
    return _registered(connection, opened.replace_schema(pa.unify_schemas(schemas, promote_options="permissive")))


def _registered(connection: Any, dataset: Any) -> str:
    """Return the name by which a connection knows an Arrow dataset."""
    connection.register(name := f"stored_{uuid4().hex}", dataset)
    return name
