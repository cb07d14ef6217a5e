"""A batch of offsets, of Kafka or of files, read and committed to bronze by executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from include.declare.file_sets import FileSet
from include.ground.errors import HeadraceError
from include.ground.record_coordinates import AFTER, ROW_BITS, offset_in_set, place_in_set
from include.ground.settings import Settings
from include.read.record_stores import UNREAD
from spark_jobs.backends.backend import Transaction
from spark_jobs.backends.local.bronze import commit_bronze
from spark_jobs.backends.spark.figures import figures
from spark_jobs.backends.spark.spark_table import SparkTable
from spark_jobs.layers.bronze import (
    EPOCH,
    GREGORIAN,
    KAFKA_COLUMNS,
    MICROSECOND,
    OVERFLOW,
    RENAMED,
    SOURCE,
    ArrowRecords,
    BronzeBatch,
    KafkaRecords,
    LoadedRows,
    batch_metadata,
    bronze_date,
    file_records,
    refuse_changed,
    validate_ranges,
)
from spark_jobs.layers.row_provenance import batch_number
from spark_jobs.tables.data_files import Bound, DataFile
from spark_jobs.tables.failpoints import Step, pass_step


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


HELD_BYTES = 64 << 20
"""Bytes of files for each core that are read together; executors hold their records until bronze has them."""
Spans = dict[int, tuple[int, int]]


def loaded_rows(
    spark: SparkSession, settings: Settings, files: FileSet, start: int, bounds: tuple[int, int]
) -> Iterator[LoadedRows]:
    """Yield records of files, which executors read, each once, as a task; the driver gets figures. Bounds: by core."""
    cores = spark.sparkContext.defaultParallelism
    while start < files.end:
        number, begin = place_in_set(start)
        sizes = accumulate(file.size for file in files.files[number:])
        after = number + max(1, sum(size <= HELD_BYTES * cores for size in sizes))
        refuse_changed(settings, files, range(number, after))
        read = partial(_read, settings, files, start)
        held = spark.range(number, after, 1, after - number).mapInArrow(read, from_arrow_schema(SOURCE))
        held.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            batches = _batches(held, number, begin, [bound * cores for bound in bounds])
            # A file that was emptied meanwhile has no record that would tell.
            refuse_changed(settings, files, range(number, after))
            ends = [offset_in_set(max(spans), spans[max(spans)][1]) for spans in batches[:-1]]
            for spans, end in zip(batches, [*ends, offset_in_set(after)], strict=True):
                yield LoadedRows(files, start, end, spans, held.where(F.col("offset").between(start, end - 1)))
                start = end
        finally:
            held.unpersist()


def _read(settings: Settings, files: FileSet, start: int, tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's files. A file that cannot be read ends with a record whose key says why."""
    first, begin = place_in_set(start)
    for number in chain.from_iterable(task["id"].to_pylist() for task in tasks):
        try:
            yield from file_records(settings, files, number, begin if number == first else 0)
        except HeadraceError as error:
            code, why = (error.code, error.facts["why"]) if error.code in UNREAD else ("files-unreadable", error.what)
            key = f"{code} {why}".encode()
            unread = {"topic": files.files[number].address, "offset": offset_in_set(number), "key": key}
            yield pa.RecordBatch.from_pylist([unread], SOURCE)


def _batches(read: DataFrame, first: int, begin: int, bounds: Sequence[int]) -> list[Spans]:
    """Return what each batch has of these files, `first` from row `begin` on. Raises `files-unreadable`."""
    last, size = F.max("offset").alias("last"), F.sum(F.octet_length("value")).alias("bytes")
    why, address = F.max("key").alias("unread"), F.max("topic").alias("topic")
    found = sorted(figures(read.groupBy(F.shiftright("offset", ROW_BITS).alias("file")).agg(last, size, why, address)))
    for each in found:
        if each["unread"] is not None:
            code, _, reason = each["unread"].decode().partition(" ")
            raise UNREAD[code](each["topic"], reason)
    ends = {each["file"]: place_in_set(each["last"])[1] + 1 for each in found}
    spans = {file: (begin if file == first else 0, end) for file, end in ends.items()}
    rows, content = sum(end - row for row, end in spans.values()), sum(each["bytes"] for each in found)
    return _divided(spans, min(bounds[0], bounds[1] * rows // max(content, 1)))


def _divided(spans: Spans, most: int) -> list[Spans]:
    """Return rows [first, end) by file as batches of so many rows."""
    batches, room = [Spans()], max(most, 1)
    for file, (row, end) in spans.items():
        while row < end:
            if not room:
                batches, room = [*batches, Spans()], max(most, 1)
            taken = min(room, end - row)
            batches[-1][file] = row, row + taken
            row, room = row + taken, room - taken
    return batches
