"""Bronze's files of one batch: Parquet from Arrow files where tasks are threads of this process (adr-0016, adr-0018).

The Arrow files are in a folder of this process, which the next one removes after a crash. On a cluster executors write
the files; a batch that Spark's source cannot hold is read by this process (layers/adr-0019).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from include.ground.record_coordinates import AFTER, FIRST_DATE, LAST_DATE
from spark_jobs.backends.local.arrow_files import read_arrow, write_arrow
from spark_jobs.backends.local.prepared_query import ScratchFolder
from spark_jobs.layers.bronze import (
    GREGORIAN,
    KAFKA_COLUMNS,
    OVERFLOW,
    RENAMED,
    ArrowRecords,
    BronzeBatch,
    KafkaRecords,
    bronze_date,
    commit_batch,
    micros,
)
from spark_jobs.layers.row_provenance import batch_number
from spark_jobs.tables.data_files import DataFile, write_parquet
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.spark_files import computes_here


def commit_bronze(
    table: Table,
    records: DataFrame | ArrowRecords | KafkaRecords,
    batch: BronzeBatch,
    validate_source: Callable[[], object] = lambda: None,
) -> list[DataFile]:
    """Write and commit one batch of records, with the columns of Spark's Kafka source; return its files."""
    return commit_batch(table, batch, partial(written_files, table, records, batch.number), validate_source)


def written_files(table: Table, records: DataFrame | ArrowRecords | KafkaRecords, number: int) -> list[DataFile]:
    """Write a batch's files: Spark's executors do on a cluster, else this process."""
    folder = f"b{number:08d}"
    if isinstance(records, KafkaRecords):
        if computes_here(records.rows.sparkSession):
            return written_files(table, records.here, number)
        files = _exact_files(table, records.rows, number)
        return written_files(table, records.here, number) if files is None else files
    if not isinstance(records, DataFrame):
        return write_bronze(table, records, number, folder, _arriving(table.spec.path).path)
    if computes_here(records.sparkSession):
        return written_files(table, partial(write_arrow, records), number)
    rows = records.withColumnsRenamed(RENAMED).select(*KAFKA_COLUMNS)
    # A batch has one date, at midnight two: a task has a file of each open, instead of sorting its records by date.
    records.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", "2")
    return table.write(
        rows.withColumns({"_date": bronze_date(), "_batch_id": batch_number(number, "partition")}), folder
    )


def _exact_files(table: Table, rows: DataFrame, number: int) -> list[DataFile] | None:
    """Return the files that executors write; None if some record has a time that Spark's source does not give."""
    try:
        files = written_files(table, rows, number)
    except (Py4JJavaError, PySparkException) as error:
        if OVERFLOW in str(error):
            return None
        raise
    return files if all(_has_kafka_times(file) for file in files) else None


@cache
def _arriving(path: Path) -> ScratchFolder:
    """Return the folder for a table's records between Kafka and the table's files."""
    return ScratchFolder(path.with_name("_arriving"))


def _has_kafka_times(file: DataFile) -> bool:
    """Return whether all times of a file of Spark's are Kafka's own; unknown bounds are beyond the calendar."""
    low, high = file.low.get("timestamp"), file.high.get("timestamp")
    if not (isinstance(low, datetime) and isinstance(high, datetime)):
        return False
    return low >= GREGORIAN and micros(high) < AFTER


def write_bronze(table: Table, records: ArrowRecords, batch: int, folder: str, scratch: Path) -> list[DataFile]:
    """Write the records of a batch into `folder` of the table, each Arrow file as one file for each date.

    `scratch`: folder for the Arrow files. Columns are renamed and added here: Spark would plan a query for that in each
    batch.
    """
    target = table.attempt_folder(folder)
    shutil.rmtree(target, ignore_errors=True)
    schema = to_arrow_schema(table.spec.data_schema, timezone="UTC")
    files = records(scratch)
    try:
        for number, file in enumerate(files):
            rows = read_arrow([file]).rename_columns(RENAMED)
            numbered = rows.append_column("_batch_id", pa.repeat(pa.scalar(batch, pa.int64()), len(rows)))
            for day, dated in rows_by_date(numbered.select(schema.names).cast(schema)):
                part = target / f"{table.spec.partition}={day}"
                part.mkdir(parents=True, exist_ok=True)
                write_parquet(dated.to_batches(), schema, part / f"part-{number:05d}.parquet", table.spec.writing)
    finally:
        # Also if the disk is full: each attempt would take more of it.
        for file in files:
            file.unlink()
    return table.written_files(target) if target.exists() else []


def rows_by_date(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each date of the column `timestamp` (UTC), from FIRST_DATE to LAST_DATE, with its rows in order."""
    bounds = np.array([FIRST_DATE, LAST_DATE], "datetime64[D]").astype(np.int64)
    days = np.clip(rows["timestamp"].cast(pa.int64()).to_numpy() // DAY_US, *bounds)
    distinct = np.unique(days).tolist()
    for day in distinct:
        yield str(np.datetime64(day, "D")), rows if len(distinct) == 1 else rows.filter(pa.array(days == day))


DAY_US = 86_400_000_000
