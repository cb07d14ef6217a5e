"""A batch of offsets read from Kafka and committed to bronze by executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from include.ground.record_coordinates import AFTER
from spark_jobs.backends.backend import Transaction
from spark_jobs.backends.local.bronze import commit_bronze
from spark_jobs.backends.spark.figures import figures
from spark_jobs.backends.spark.spark_table import SparkTable
from spark_jobs.layers.bronze import (
    GREGORIAN,
    KAFKA_COLUMNS,
    OVERFLOW,
    RENAMED,
    ArrowRecords,
    BronzeBatch,
    KafkaRecords,
    batch_metadata,
    bronze_date,
    validate_ranges,
)
from spark_jobs.layers.row_provenance import batch_number
from spark_jobs.tables.data_files import Bound, DataFile
from spark_jobs.tables.failpoints import Step, pass_step

EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


class TimesUnreadable(Exception):
    """A record has a time that Spark's Kafka source does not give as Kafka has it."""


def ingest(
    table: SparkTable,
    records: DataFrame | ArrowRecords | KafkaRecords,
    batch: BronzeBatch,
    validate_source: Callable[[], object],
) -> Sequence[DataFile]:
    """Commit a batch, unless it is committed. What Spark's source cannot read, this process does."""
    if table.committed(batch.app_id) >= batch.transaction:
        return table.batch_files(batch.number, batch.number)
    if isinstance(records, DataFrame):
        return _ingest(table, records, batch, validate_source)
    if isinstance(records, KafkaRecords):
        try:
            return _ingest(table, records.rows, batch, validate_source)
        except TimesUnreadable:
            records = records.here
    return commit_bronze(table, records, batch, validate_source)


def _ingest(
    table: SparkTable, records: DataFrame, batch: BronzeBatch, validate_source: Callable[[], object]
) -> Sequence[DataFile]:
    """Read the records once: the commit's metadata has their counts, which are known before it."""
    pass_step(Step.BRONZE_STARTED, batch.number)
    rows = records.withColumnsRenamed(RENAMED).select(*KAFKA_COLUMNS)
    rows = rows.withColumns({"_date": bronze_date(), "_batch_id": batch_number(batch.number, "partition")})
    held = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        read = _counted(held)
        validate_ranges(table.spec.name, read, batch)
        validate_source()
        pass_step(Step.BRONZE_WRITTEN, batch.number)
        table.append(held, Transaction(batch.app_id, batch.transaction), batch_metadata(table, read, batch))
    finally:
        held.unpersist()
    pass_step(Step.BRONZE_COMMITTED, batch.number)
    return table.batch_files(batch.number, batch.number)


def _counted(rows: DataFrame) -> list[DataFile]:
    """Return the rows of each partition as a file would say them, with their bounds. Raises TimesUnreadable."""
    named = {"partition": F.col("partition"), "offset": F.col("offset"), "timestamp": F.unix_micros("timestamp")}
    lows = [F.min(each).alias(f"low_{name}") for name, each in named.items()]
    highs = [F.max(each).alias(f"high_{name}") for name, each in named.items()]
    try:
        found = figures(rows.groupBy("partition").agg(F.count(F.lit(1)).alias("rows"), *lows, *highs))
    except (Py4JJavaError, PySparkException) as error:
        if OVERFLOW in str(error):
            raise TimesUnreadable from error
        raise
    least = (GREGORIAN - EPOCH) // MICROSECOND
    if any(each["low_timestamp"] < least or each["high_timestamp"] >= AFTER for each in found):
        raise TimesUnreadable
    return [DataFile("", "", each["rows"], 0, _bounds(each, "low"), _bounds(each, "high")) for each in found]


def _bounds(found: Row, end: str) -> dict[str, Bound]:
    time = EPOCH + found[f"{end}_timestamp"] * MICROSECOND
    return {"partition": found[f"{end}_partition"], "offset": found[f"{end}_offset"], "timestamp": time}
