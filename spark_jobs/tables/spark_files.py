"""Files that Spark writes into a folder: executors of a cluster write them on other hosts, so they are counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.ground.errors import Transient
from include.ground.stored_path import arrow_source

UNFINISHED = "_temporary"
"""Spark's folder for what tasks have not committed; a task that lost its driver may leave files there."""
WRITTEN = "rows"


class WrittenRowsMissing(Transient):
    """Executors wrote other rows than this host finds, whose folder may show them late; nothing was committed."""

    def __init__(self, folder: Path, written: int, found: int) -> None:
        super().__init__(
            f"{folder}: the executors wrote {written} rows, this host finds {found}; nothing was committed",
            "mount the state folder on every worker at the same path, without a cache of folders"
            " (docs/how-to/run-on-a-cluster.md)",
        )
        self.written, self.found = written, found


def write_files(
    rows: DataFrame, folder: Path, mode: str, partition: str | None = None, options: Mapping[str, str] | None = None
) -> None:
    """Write rows into a folder with Spark, by `partition` if given; raises WrittenRowsMissing."""
    before = set(finished_files(folder)) if mode == "append" else set()
    observed = Observation()
    _write(rows.observe(observed, F.count(F.lit(1)).alias(WRITTEN)), folder, mode, partition, options)
    written = int(observed.get[WRITTEN])
    found = parquet_rows(file for file in finished_files(folder) if file not in before)
    if written != found:
        raise WrittenRowsMissing(folder, written, found)


def finished_files(folder: Path) -> list[Path]:
    """Return the Parquet files below a folder, without those of tasks that did not complete."""
    return sorted(path for path in folder.rglob("*.parquet") if UNFINISHED not in path.relative_to(folder).parts)


def _write(rows: DataFrame, folder: Path, mode: str, partition: str | None, options: Mapping[str, str] | None) -> None:
    writer = rows.write.options(**(options or {})).mode(mode)
    (writer.partitionBy(partition) if partition else writer).parquet(str(folder))


def parquet_rows(files: Iterable[Path]) -> int:
    """Return the row count of Parquet files, from the footers."""
    return sum(int(pq.read_metadata(arrow_source(file)).num_rows) for file in files)


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder."""
    return sorted(folder.glob("*.parquet"))


def read_folder(spark: SparkSession, folder: Path, schema: StructType) -> DataFrame:
    """Return the rows of a folder of Parquet files."""
    return read_files(spark, schema, parquet_files(folder))


def write_folder(rows: DataFrame, folder: Path) -> None:
    """Write rows into a folder, replacing its content."""
    write_files(rows, folder, "overwrite")


def read_files(spark: SparkSession, schema: StructType, paths: Sequence[Path]) -> DataFrame:
    """Return the rows of exactly these Parquet files; without files, no rows."""
    if not paths:
        return no_rows(spark, schema)
    return spark.read.schema(schema).parquet(*[str(path) for path in paths])


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty frame with these columns. PySpark would start Python workers for an empty list."""
    session = spark._jsparkSession
    return DataFrame(session.createDataFrame([], session.parseDataType(schema.json())), spark)
