"""DuckDB sessions over files that Spark wrote: queries and writes in this process, without a Spark job.

Only for queries without a dataset's own code (layers/adr-0002). Folders hold one or more files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from warnings import filterwarnings

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from include.ground.sql_quoting import sql_literal, sql_names
from include.read.memory_database import memory_database
from include.read.rejected_records import Position
from spark_jobs.backends.local.arrow_files import SUFFIX, read_arrow, stage_files
from spark_jobs.tables.data_files import HIVE_NULL, ROWS_PER_GROUP, DataFile, ParquetFile, ParquetWriting, write_parquet
from spark_jobs.tables.delta_table import Table

# Of each of the two databases for runs, in addition to the JVM's heap; DuckDB spills beyond it what it can. Small runs
# have no lower limit, since few rows may be large.
MEMORY = "2GB"
# Of the background sessions, apart from those above; none before the first large group is compacted.
BACKGROUND_MEMORY = "1GB"
SMALL_RUN = 20_000
# DuckDB's threads write row groups side by side. Compressed by zstd once, a file needs not be written again when it is
# compacted.
STAYING = f"format parquet, compression zstd, row_group_size {ROWS_PER_GROUP}"
# DuckDB's own writer makes row groups of at least a vector's rows: 600 MB if a record has 300 KB.
VECTOR = 2_048


class DuckSession:
    """A DuckDB connection with its views."""

    def __init__(self, database: Any, is_small: bool = False) -> None:
        self._database = database.cursor()
        self._is_small = is_small

    def view_files(self, name: str, files: Sequence[Path], schema: StructType) -> None:
        if not files:
            self._database.register(name, to_arrow_schema(schema, timezone="UTC").empty_table())
            return
        self.view_columns(name, files, schema.fieldNames())

    def view_columns(self, name: str, files: Sequence[Path], names: Sequence[str]) -> None:
        """Create a view of these columns of one or more files, Parquet or Arrow."""
        columns, sources = sql_names(names), list[str]()
        if parquet := [sql_literal(str(path)) for path in files if path.suffix != SUFFIX]:
            sources.append(f"read_parquet([{', '.join(parquet)}], hive_partitioning = false, union_by_name = true)")
        if arrow := [path for path in files if path.suffix == SUFFIX]:
            self.view_arrow(f"{name}_in_arrow", read_arrow(arrow, names))
            sources.append(f'"{name}_in_arrow"')
        self.view_query(name, " union all ".join(f"select {columns} from {source}" for source in sources))

    def view_folder(self, name: str, folder: Path, schema: StructType) -> None:
        self.view_files(name, stage_files(folder), schema)

    def view_table(self, name: str, table: Table, files: Sequence[DataFile]) -> None:
        self.view_files(name, [table.spec.path / file.path for file in files], table.spec.data_schema)

    def view_places(self, name: str, places: Sequence[Position]) -> None:
        partitions, offsets = zip(*places, strict=True) if places else ((), ())
        columns = {"partition": pa.array(partitions, pa.int32()), "offset": pa.array(offsets, pa.int64())}
        self.view_arrow(name, pa.table(columns))

    def view_arrow(self, name: str, rows: pa.Table) -> None:
        self._database.register(name, rows)

    def arrays(self, sql: str) -> dict[str, Any]:
        """Return the columns of a query without nulls as numpy arrays."""
        found: dict[str, Any] = self._database.execute(sql).fetchnumpy()
        return found

    def save(self, sql: str, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._database.execute(f"copy ({sql}) to {sql_literal(f'{folder}/part-0.parquet')} (format parquet)")

    def save_records(self, sql: str, folder: Path) -> None:
        """As `save`, for records with payloads: Spark holds a row group in memory, so each has about GROUP_BYTES."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        rows = self._database.sql(sql).to_arrow_reader(VECTOR)
        write_parquet(rows, rows.schema, folder / "part-0.parquet", ParquetWriting(distinct=tuple(rows.schema.names)))

    def save_file(self, sql: str, path: Path) -> None:
        """Write the rows of a query into one new file, compressed for rows that stay."""
        self._database.execute(f"copy ({sql}) to {sql_literal(str(path))} ({STAYING})")

    def write(self, sql: str, table: Table, folder: str) -> list[DataFile]:
        """Write the rows of a query with the table's columns, as `Table.write` does with Spark's; return the files."""
        path, parted = table.attempt_folder(folder), table.spec.partition
        shutil.rmtree(path, ignore_errors=True)
        columns = sql_names(table.spec.data_schema.fieldNames())
        values = self.rows(f'select distinct "{parted}" from ({sql}) limit 2')
        if len(values) == 1 and values[0][0]:
            # To divide the rows takes half as much again as to write them.
            part = path / f"{parted}={quote(values[0][0], safe='')}"
            part.mkdir(parents=True)
            self.save_file(f"select {columns} from ({sql})", part / "part-0.parquet")
        else:
            form = f'{STAYING}, partition_by ("{parted}")'
            self._database.execute(
                f'copy (select {columns}, "{parted}" from ({sql})) to {sql_literal(str(path))} ({form})'
            )
        return table.written_files(path)

    def view_query(self, name: str, sql: str) -> None:
        self._database.execute(f'create temp view "{name}" as {sql}')

    def create_table(self, name: str, sql: str) -> None:
        self._database.execute(f'create temp table "{name}" as {sql}')

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._database.execute(sql).fetchall()
        return found

    def columns(self, view: str) -> list[str]:
        return [name for name, _ in self.column_types(view)]

    def column_types(self, view: str) -> list[tuple[str, str]]:
        """Return the columns of a view or table, each with its type in DuckDB's SQL."""
        return [(str(name), str(kind)) for name, kind, *_ in self.rows(f'describe "{view}"')]

    def arrow(self, sql: str) -> pa.Table:
        if self._is_small:
            # `sql` plans a query once for its columns and again for its rows; a copy of few rows takes less.
            return self._database.execute(sql).to_arrow_table()
        return self._database.sql(sql).to_arrow_table()

    def count(self, sql: str) -> int:
        return int(self.rows(f"select count(*) from ({sql})")[0][0])

    def close(self) -> None:
        self._database.close()


@cache
def database_of_many_rows() -> Any:
    """Return the database for many rows. Opening one takes longer than most queries of a run; views are per session."""
    return memory_database(MEMORY)


@cache
def _single_threaded(memory: str) -> Any:
    """Return a database whose queries use the calling thread only: over few rows a second one costs more CPU than it
    saves (layers/adr-0012).
    """
    filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)
    database = memory_database(memory)
    database.execute("set threads = 1")
    return database


@contextmanager
def duckdb_session() -> Iterator[DuckSession]:
    """Open a session and close it at exit."""
    with closing(DuckSession(database_of_many_rows())) as duck:
        yield duck


@contextmanager
def session_for(rows: int) -> Iterator[DuckSession]:
    """Open a session for queries over a run of this many rows, and close it at exit."""
    is_small = rows <= SMALL_RUN
    with closing(DuckSession(_single_threaded(MEMORY) if is_small else database_of_many_rows(), is_small)) as duck:
        yield duck


@contextmanager
def background_session() -> Iterator[DuckSession]:
    """Open a session for work that no run waits for, and close it at exit."""
    with closing(DuckSession(_single_threaded(BACKGROUND_MEMORY))) as duck:
        yield duck


MOST_OPEN = 64
"""Files that are open at once: a producer's times may be of any month."""


def write_partitioned(table: Table, batches: Iterable[pa.RecordBatch], folder: str) -> list[DataFile]:
    """Write rows with the table's columns, partition included, as `Table.write` does with Spark's; return the files."""
    # All columns may have nulls, also in structs, as in the tasks' files.
    target, schema = table.attempt_folder(folder), to_arrow_schema(table.spec.data_schema.toNullable(), timezone="UTC")
    shutil.rmtree(target, ignore_errors=True)
    with ExitStack() as opened:
        files: dict[str | None, ParquetFile] = {}
        for batch in filter(len, batches):
            for value, rows in _by_value(batch, table.spec.partition):
                if value not in files:
                    if len(files) == MOST_OPEN:
                        opened.close()
                        files.clear()
                    path = _new_path(target, table.spec.partition, value)
                    files[value] = opened.enter_context(closing(ParquetFile(path, schema, table.spec.writing)))
                files[value].add(rows.select(schema.names).cast(schema))
    return table.written_files(target) if target.exists() else []


def _by_value(batch: pa.RecordBatch, column: str) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    values = pc.unique(batch[column]).to_pylist()
    if len(values) == 1:
        yield values[0], batch
        return
    for value in values:
        is_equal = pc.is_null(batch[column]) if value is None else pc.equal(batch[column], value)
        yield value, batch.filter(is_equal)


def _new_path(folder: Path, partition: str, value: str | None) -> Path:
    path = folder / f"{partition}={quote(value, safe='') if value else HIVE_NULL}"
    path.mkdir(parents=True, exist_ok=True)
    return path / f"part-{len(list(path.iterdir()))}.parquet"
