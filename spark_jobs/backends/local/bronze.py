"""Bronze's files of one batch: Parquet from Arrow files, which threads of this process write (adr-0016, adr-0018).

The Arrow files are in a folder of this process, which the next one removes after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from os import getpid
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from include.ground.record_coordinates import FIRST_DATE, LAST_DATE
from include.ground.stored_path import StoredPath, remove_tree
from include.read.memory_database import spill_folder
from spark_jobs.backends.local.arrow_files import read_arrow, write_arrow
from spark_jobs.backends.local.prepared_query import ScratchFolder
from spark_jobs.layers.bronze import RENAMED, ArrowRecords, BronzeBatch, KafkaRecords, commit_batch
from spark_jobs.tables.data_files import DataFile, write_parquet
from spark_jobs.tables.delta_table import Table


def commit_bronze(
    table: Table,
    records: DataFrame | ArrowRecords | KafkaRecords,
    batch: BronzeBatch,
    validate_source: Callable[[], object] = lambda: None,
) -> list[DataFile]:
    """Write and commit one batch of records, with the columns of Spark's Kafka source; return its files."""
    here = records.here if isinstance(records, KafkaRecords) else records
    arriving = partial(write_arrow, here) if isinstance(here, DataFrame) else here

    def write() -> list[DataFile]:
        return write_bronze(table, arriving, batch.number, f"b{batch.number:08d}", _arriving(table.spec.path).path)

    return commit_batch(table, batch, write, validate_source)


@cache
def _arriving(path: Path) -> ScratchFolder:
    local = spill_folder(getpid()) if isinstance(path, StoredPath) else path.parent
    return ScratchFolder(local / "_arriving")


def write_bronze(table: Table, records: ArrowRecords, batch: int, folder: str, scratch: Path) -> list[DataFile]:
    """Write the records of a batch into `folder` of the table, each Arrow file as one file for each date.

    `scratch`: folder for the Arrow files. Columns are renamed and added here: Spark would plan a query for that in each
    batch.
    """
    target = table.attempt_folder(folder)
    remove_tree(target)
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
    return table.written_files(target) if target.is_dir() else []


def rows_by_date(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each date of the column `timestamp` (UTC), from FIRST_DATE to LAST_DATE, with its rows in order."""
    bounds = np.array([FIRST_DATE, LAST_DATE], "datetime64[D]").astype(np.int64)
    days = np.clip(rows["timestamp"].cast(pa.int64()).to_numpy() // DAY_US, *bounds)
    distinct = np.unique(days).tolist()
    for day in distinct:
        yield str(np.datetime64(day, "D")), rows if len(distinct) == 1 else rows.filter(pa.array(days == day))


DAY_US = 86_400_000_000
