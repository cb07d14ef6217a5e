"""Make the archive of loaded classes with which drivers start in half the time (`make setup` calls it).

Reads: a file of events of `flights`, one a line. Writes: the archive at `sys.argv[2]`, by the JVM as it ends.
Guarantee: none is needed: a JVM that finds the archive absent, or made by another Java, loads its classes as ever.
After a crash: without an archive drivers start as they did; the next set-up tries again.
Does not: touch a state folder; it works in a temporary one.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.catalog.dataset import snapshot_dataset
from include.settings import Settings, load_settings
from spark_jobs.engine.refine import refine
from spark_jobs.engine.spark_session import open_session
from spark_jobs.layers.bronze_layer import BronzeBatch, bronze_spec, commit_bronze
from spark_jobs.layers.release_tables import open_release
from spark_jobs.storage.delta_table import Table

DATASET = "flights"
# The second batch meets rows that are there, which is other code than the first.
BATCHES = 2


def rehearse(settings: Settings, spark: SparkSession, events: Path) -> None:
    """Do once what a driver does with a batch, so that the classes of all of it are loaded."""
    dataset = snapshot_dataset(settings, DATASET)
    bronze = Table(bronze_spec(settings, DATASET))
    release = open_release(spark, settings, dataset, bronze)
    count = len(events.read_bytes().splitlines())
    for number in range(BATCHES):
        span = (number * count, (number + 1) * count)
        facts = {"dataset": DATASET, "topic": DATASET, "epoch": 1}
        records = kafka_records(spark.read.text(str(events)), span[0])
        commit_bronze(bronze, records, BronzeBatch(number, "rehearsal", number, {0: span}, facts))
        refine(settings, release, number, number, 1)


def kafka_records(lines: DataFrame, first: int) -> DataFrame:
    """Return lines of text (column `value`) as the Kafka source hands over records, from offset `first` on."""
    headers = "array<struct<key:string,value:binary>>"
    return lines.coalesce(1).select(
        F.lit(DATASET).alias("topic"),
        F.lit(0).alias("partition"),
        (F.monotonically_increasing_id() + first).alias("offset"),
        F.lit(datetime(2013, 1, 1, tzinfo=UTC)).alias("timestamp"),
        F.lit(0).alias("timestampType"),
        F.col("value").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        F.lit(None).cast(headers).alias("headers"),
    )


def main(events: Path, archive: Path) -> None:
    """Rehearse in a JVM that writes the archive as it ends."""
    with tempfile.TemporaryDirectory(prefix="headrace-archive-") as folder:
        flags = f"-XX:TieredStopAtLevel=1 '-XX:ArchiveClassesAtExit={archive}' -Xlog:cds*=off"
        settings = load_settings().model_copy(update={"state": Path(folder), "driver_jvm": flags})
        spark = open_session(settings, "rehearsal")
        rehearse(settings, spark, events)
        spark.stop()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        # The JVM ends when its input does, and writes the archive then.
        process = gateway.proc
        process.stdin.close()
        process.wait(300)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
