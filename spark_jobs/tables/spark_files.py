"""Files that Spark writes into a folder: executors of a cluster write them on other hosts, so they are counted.

Files of a *stage* are read by this process alone, never by Spark: Arrow where tasks are threads of this process
(`arrow_files.py`), else Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from include.ground.errors import Transient
from spark_jobs.tables.arrow_files import SUFFIX, arrow_rows, read_arrow, write_arrow
from spark_jobs.tables.data_files import ROWS_PER_GROUP

UNFINISHED = "_temporary"
"""Spark's folder for what tasks have not committed; a task that lost its driver may leave files there."""
WRITTEN = "rows"


class WrittenRowsMissing(Transient):
    """Executors wrote other rows than this host finds, whose folder may show them late; nothing was committed."""

    def __init__(self, folder: Path, written: int, found: int) -> None:
        super().__init__(
            f"{folder}: the executors wrote {written} rows, this host finds {found}; nothing was committed",
            "mount the state folder on every worker at the same path, without a cache of folders"
            " (docs/tasks/run-on-a-cluster.md)",
        )
        self.written, self.found = written, found


def computes_here(spark: SparkSession) -> bool:
    """Whether Spark's tasks are threads of this process, which see its files as they are now."""
    return bool(spark.sparkContext._jsc.sc().isLocal())


def write_files(
    rows: DataFrame, folder: Path, mode: str, partition: str | None = None, options: Mapping[str, str] | None = None
) -> None:
    """Write rows into a folder with Spark, by `partition` if given; raises WrittenRowsMissing."""
    if computes_here(rows.sparkSession):
        _write(rows, folder, mode, partition, options)
        return
    before = set(finished_files(folder)) if mode == "append" else set()
    observed = Observation()
    _write(rows.observe(observed, F.count(F.lit(1)).alias(WRITTEN)), folder, mode, partition, options)
    written = int(observed.get[WRITTEN])
    found = rows_in_files(file for file in finished_files(folder) if file not in before)
    if written != found:
        raise WrittenRowsMissing(folder, written, found)


def write_stage(rows: DataFrame, folder: Path, parquet_options: Mapping[str, str]) -> None:
    """Add rows to a folder that only this process reads, through `stage_files`; raises WrittenRowsMissing."""
    if computes_here(rows.sparkSession):
        write_arrow(rows, folder)
    else:
        write_files(rows, folder, "append", options=parquet_options)


def stage_files(folder: Path) -> list[Path]:
    """Return the files of a folder that `write_stage` wrote."""
    return sorted([*folder.glob("*.parquet"), *folder.glob(f"*{SUFFIX}")])


def batches_in_files(files: Sequence[Path], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files of a stage, in order, with these columns; those of Arrow files stay there."""
    for file in files:
        if file.suffix == SUFFIX:
            yield from read_arrow([file], names).to_batches()
        else:
            with pq.ParquetFile(file) as source:
                # By row group, whose bytes are bounded: a batch over several may have all rows of a file.
                for group in range(source.num_row_groups):
                    yield from source.iter_batches(ROWS_PER_GROUP, row_groups=[group], columns=list(names))


def no_rows_of_file(file: Path, names: Sequence[str]) -> pa.RecordBatch:
    """Return no rows, with these columns as a file of a stage has them."""
    schema = read_arrow([file], names).schema if file.suffix == SUFFIX else pq.read_schema(file)
    return pa.RecordBatch.from_pylist([], pa.schema([schema.field(name) for name in names]))


def rows_in_files(files: Iterable[Path]) -> int:
    """Return the row count of files, from the footers."""
    return sum(arrow_rows(file) if file.suffix == SUFFIX else pq.read_metadata(file).num_rows for file in files)


def finished_files(folder: Path) -> list[Path]:
    """Return the Parquet files below a folder, without those of tasks that did not complete."""
    return sorted(path for path in folder.rglob("*.parquet") if UNFINISHED not in path.relative_to(folder).parts)


def _write(rows: DataFrame, folder: Path, mode: str, partition: str | None, options: Mapping[str, str] | None) -> None:
    writer = rows.write.options(**(options or {})).mode(mode)
    (writer.partitionBy(partition) if partition else writer).parquet(str(folder))
