"""Creates the archive of loaded classes that halves a driver's start (`make setup` runs it).

The JVM writes the archive when it ends. Without one, drivers start slowly; a JVM ignores an archive of another Java.

Usage: python -m spark_jobs.jobs.class_archive EVENTS ARCHIVE. EVENTS: a file of `flights` events, one per line.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from include.declare.dataset import snapshot_dataset
from include.ground.settings import Settings, load_settings
from spark_jobs.backends.local.bronze import commit_bronze
from spark_jobs.backends.release import open_release
from spark_jobs.backends.spark_session import open_session
from spark_jobs.jobs.tried_sample import sample_records
from spark_jobs.layers.bronze import BronzeBatch, bronze_spec
from spark_jobs.stream.refine import refine
from spark_jobs.tables.delta_table import Table

DATASET = "flights"
# The second batch finds rows in the tables, which loads other classes than the first.
BATCHES = 2


def rehearse(settings: Settings, spark: SparkSession, events: Path) -> None:
    """Process batches as a driver does, so that the JVM loads the same classes."""
    dataset = snapshot_dataset(settings, DATASET)
    bronze = Table(bronze_spec(settings, DATASET))
    release = open_release(spark, settings, dataset, bronze)
    lines = events.read_bytes().splitlines()
    for number in range(BATCHES):
        span = (number * len(lines), (number + 1) * len(lines))
        facts = {"dataset": DATASET, "topic": DATASET, "epoch": 1}
        records = sample_records(spark, dataset, dict(enumerate(lines, span[0])), datetime(2013, 1, 1, tzinfo=UTC))
        commit_bronze(bronze, records, BronzeBatch(number, "rehearsal", number, {0: span}, facts))
        refine(settings, release, number, number, 1)


def main(events: Path, archive: Path) -> None:
    """Rehearse in a JVM that writes the archive when it ends."""
    with tempfile.TemporaryDirectory(prefix="headrace-archive-") as folder:
        flags = f"-XX:TieredStopAtLevel=1 '-XX:ArchiveClassesAtExit={archive}' -Xlog:cds*=off"
        settings = load_settings().model_copy(update={"state": Path(folder), "spark_master": "", "driver_jvm": flags})
        spark = open_session(settings, "rehearsal")
        rehearse(settings, spark, events)
        spark.stop()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        # Closing its input ends the JVM, which then writes the archive.
        process = gateway.proc
        process.stdin.close()
        process.wait(300)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
