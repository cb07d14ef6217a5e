"""A table's Parquet files that this process writes from Arrow rows, one or more for each partition value."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.tables.data_files import HIVE_NULL, DataFile, ParquetFile, TableSpec
from spark_jobs.tables.delta_table import Table

MOST_OPEN = 64
"""Files that are open at once: a producer's times may be of any month."""


def write_partitioned(table: Table, batches: Iterable[pa.RecordBatch], folder: str) -> list[DataFile]:
    """Write rows with the table's columns, partition included, as `Table.write` does with Spark's; return the files."""
    target, schema = table.attempt_folder(folder), file_schema(table.spec)
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


def file_schema(spec: TableSpec) -> pa.Schema:
    """Return the columns of a table's files. All may have nulls, also in structs, as in the tasks' files."""
    schema: pa.Schema = to_arrow_schema(spec.data_schema.toNullable(), timezone="UTC")
    return schema


def _by_value(batch: pa.RecordBatch, column: str) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield each value of a column with its rows, in their order."""
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
