"""Bronze's files of one batch where tasks are threads of this process: Parquet from Arrow files (adr-0016, adr-0018).

Reads: Arrow files written by `kafka_ranges.py`, or by Spark's tasks if the batch is a DataFrame.
Writes: a folder of the table, invisible to readers until the commit.
After a crash: the Arrow files are in a folder of the dead process, which the next one removes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from include.ground.record_coordinates import FIRST_DATE, LAST_DATE
from spark_jobs.tables.arrow_files import read_arrow
from spark_jobs.tables.data_files import DataFile, write_parquet
from spark_jobs.tables.delta_table import Table

ArrowRecords = Callable[[Path], list[Path]]
"""Adds records to a folder as Arrow files with the columns of Spark's Kafka source; returns these files."""
DAY_US = 86_400_000_000
RENAMED = {"timestampType": "timestamp_type"}
"""Columns of the Kafka source that have another name in bronze."""


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
