"""Records of ranges of offsets: as Spark's Kafka source reads them, or, with times that are none, by this process.

Spark's source fails on a time that has no microseconds, and gives times before 1582 another number (adr-0019).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from include.ground.errors import Transient
from include.ground.kafka_columns import SOURCE, PartitionReader
from include.ground.record_coordinates import AFTER, BEFORE, FIRST_MS, HEADER, LAST_MS
from spark_jobs.contract.java_function import new_instance

PREFIX = "kafka."
READ_RECORDS, READ_BYTES = 50_000, 8 << 20
WAIT_SECONDS = 120.0
"""How long Kafka may return nothing of a planned range, as by default Spark's source waits."""
Ranges = Mapping[int, tuple[int, int]]
"""Half-open ranges of offsets by partition."""
ArrowRecords = Callable[[Path], list[Path]]
"""Adds records to a folder as Arrow files with the columns of Spark's Kafka source; returns these files."""


@dataclass(frozen=True)
class KafkaRecords:
    """The records of a batch: `rows` are Spark's, `here` are read by this process, with any time."""

    rows: DataFrame
    here: ArrowRecords


def records_in(spark: SparkSession, topic: str, options: Mapping[str, str], ranges: Ranges) -> KafkaRecords:
    """Return the records of ranges of a topic."""
    chosen = {p: span for p, span in ranges.items() if span[0] < span[1]}
    bounds = {
        name: json.dumps({topic: {str(partition): span[at] for partition, span in chosen.items()}})
        for at, name in enumerate(("startingOffsets", "endingOffsets"))
    }
    assigned = {"assign": json.dumps({topic: list(chosen)}), **bounds}
    rows = spark.read.format("kafka").options(**{**options, **assigned}).load()
    return KafkaRecords(rows, partial(read_here, spark, topic, options, ranges))


def read_here(spark: SparkSession, topic: str, options: Mapping[str, str], ranges: Ranges, folder: Path) -> list[Path]:
    """Read ranges of a topic by a consumer in this process; return a file of each partition that has records."""
    address = {name[len(PREFIX) :]: value for name, value in options.items() if name.startswith(PREFIX)}
    folder.mkdir(parents=True, exist_ok=True)
    found = list[Path]()
    for partition, (start, end) in ranges.items():
        if start == end:
            continue
        with closing(new_instance(spark, SOURCE)) as java, TemporaryDirectory(dir=folder) as scratch:
            reader = PartitionReader(java, Path(scratch))
            reader.open(address, topic, partition, start)
            tables = _tables(reader, topic, partition, (start, end))
            if tables:
                found.append(folder / f"{partition:05d}-{start}.arrow")
                with pa.ipc.new_file(found[-1], tables[0].schema) as file:
                    for table in tables:
                        file.write_table(table)
    return found


def _tables(reader: PartitionReader, topic: str, partition: int, span: tuple[int, int]) -> Sequence[pa.Table]:
    (position, end), found = span, list[pa.Table]()
    waited_since = time.monotonic()
    while position < end:
        reached, records = reader.read(end, READ_RECORDS, READ_BYTES)
        if reached > position:
            position, waited_since = reached, time.monotonic()
        elif time.monotonic() - waited_since > WAIT_SECONDS:
            why = f"{topic}-{partition}: no records at offset {position} for {WAIT_SECONDS:.0f} s"
            raise Transient(f"{why}; the batch stays planned, and its offsets are read again", "headrace status")
        if len(records):
            found.append(as_source_gives(records, topic, partition))
    return found


def as_source_gives(records: pl.DataFrame, topic: str, partition: int) -> pa.Table:
    """Return records in the columns of Spark's source. A time outside the calendar is replaced and becomes a header."""
    at = pl.col("timestamp")
    number = pl.struct(pl.lit(HEADER).alias("key"), at.cast(pl.String).cast(pl.Binary).alias("value"))
    has_time = at.is_between(FIRST_MS, LAST_MS)
    micros = pl.when(at < FIRST_MS).then(BEFORE).when(at > LAST_MS).then(AFTER).otherwise(at * 1000)
    given = pl.when(pl.col("headers").list.len() > 0).then(pl.col("headers"))
    headers = pl.when(has_time).then(given).otherwise(pl.concat_list("headers", number))
    rows = records.select(
        "key",
        "value",
        pl.lit(topic).alias("topic"),
        pl.lit(partition, pl.Int32).alias("partition"),
        "offset",
        micros.cast(pl.Datetime("us", "UTC")).alias("timestamp"),
        pl.col("timestamp_type").alias("timestampType"),
        headers.alias("headers"),
    )
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())
