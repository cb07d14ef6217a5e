"""Bronze's files of one batch: Parquet from Arrow files, which threads of this process write (adr-0016, adr-0018).

The Arrow files are in a folder of this process, which the next one removes after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from os import getpid
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from include.declare.file_sets import FileSet
from include.ground.record_coordinates import FIRST_DATE, LAST_DATE, place_in_set
from include.ground.settings import Settings
from include.ground.stored_path import StoredPath, remove_tree
from include.read.memory_database import spill_folder
from spark_jobs.backends.local.arrow_files import SUFFIX, read_arrow, write_arrow
from spark_jobs.backends.local.prepared_query import ScratchFolder
from spark_jobs.layers.bronze import (
    RENAMED,
    SOURCE,
    ArrowRecords,
    BronzeBatch,
    KafkaRecords,
    LoadedRows,
    commit_batch,
    file_records,
    refuse_changed,
)
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


def loaded_rows(settings: Settings, files: FileSet, start: int, bounds: tuple[int, int]) -> Iterator[LoadedRows]:
    """Yield the records of a set of files from an offset on, which are in memory, batch by batch."""
    taken, (rows, size), (number, begin) = list[pa.RecordBatch](), bounds, place_in_set(start)
    for file in range(number, len(files.files)):
        refuse_changed(settings, files, [file])
        for batch in file_records(settings, files, file, begin if file == number else 0):
            rest = batch
            while rest.num_rows:
                taken.append(rest.slice(0, rows))
                rest = rest.slice(rows)
                rows, size = rows - taken[-1].num_rows, size - taken[-1]["value"].nbytes
                if rows <= 0 or size <= 0:
                    yield _loaded(files, start, end := taken[-1]["offset"][-1].as_py() + 1, taken)
                    start, taken, (rows, size) = end, [], bounds
        # A file that was replaced while it was read is found before its last rows are committed.
        refuse_changed(settings, files, [file])
    yield _loaded(files, start, files.end, taken)


def _loaded(files: FileSet, start: int, end: int, taken: Sequence[pa.RecordBatch]) -> LoadedRows:
    spans: dict[int, tuple[int, int]] = {}
    for rows in taken:
        (file, first), (_, last) = (place_in_set(rows["offset"][at].as_py()) for at in (0, -1))
        spans[file] = spans.get(file, (first, 0))[0], last + 1
    return LoadedRows(files, start, end, spans, partial(_write_records, taken))


def _write_records(rows: Sequence[pa.RecordBatch], folder: Path) -> list[Path]:
    if not rows:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{uuid4().hex}{SUFFIX}"
    with pa.ipc.new_file(str(path), SOURCE) as writer:
        for batch in rows:
            writer.write_batch(batch)
    return [path]


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
