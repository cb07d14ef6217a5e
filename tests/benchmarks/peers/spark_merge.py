"""The peer that most teams would write: Structured Streaming with `foreachBatch`, `from_json`, and Delta's `MERGE`.

Exactly once: both merges are idempotent. Silver inserts what it does not hold, gold gets the counts of the touched
windows, from silver.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.peer_job import FIELDS, HORIZON_SECONDS, PeerJob, TopicSpan, drain_twice, read_job
from benchmarks.peers.spark_events import SCHEMA, campaigns, records, valid_events

CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
TUNED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # One task for each core; the default of 200 is for clusters.
    "spark.sql.shuffle.partitions": "2",
    # Delta reads its log with 50 tasks by default.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A checkpoint of the query without Hadoop's FileContext, which starts processes.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem",
    # A merge that only inserts needs no shuffle for the rows that it keeps.
    "spark.databricks.delta.merge.optimizeInsertOnlyMerge.enabled": "true",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -Duser.timezone=UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def open_session(job: PeerJob) -> SparkSession:
    """Return a session for this machine."""
    # PySpark returns timestamps in the time zone of the process.
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
    time.tzset()
    jars = os.pathsep.join(str(jar) for jar in sorted(Path(job.jars).glob("*.jar")))
    own = {"spark.driver.memory": job.memory, "spark.driver.extraClassPath": jars, "spark.local.dir": job.folder}
    builder = SparkSession.Builder().appName("peer").master(f"local[{job.cores}]")
    for key, value in (TUNED | own).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def drain(spark: SparkSession, job: PeerJob, span: TopicSpan, folder: Path) -> None:
    """Read the span to its end into the tables of the folder."""
    ads = campaigns(spark, job.ads).cache()
    create_tables(spark, folder)
    query = (
        records(spark, job.bootstrap, span)
        .writeStream.foreachBatch(lambda batch, _: upsert(batch, ads, folder))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def create_tables(spark: SparkSession, folder: Path) -> None:
    """Create the tables unless they exist."""
    silver = f"{SCHEMA}, occurred_at timestamp, campaign_id string"
    for name, columns in {"silver": silver, "gold": "campaign_id string, since timestamp, views long"}.items():
        spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{folder / name}` ({columns}) USING delta")


def upsert(batch: DataFrame, ads: DataFrame, folder: Path) -> None:
    """Merge a batch into silver, then the counts of its windows into gold."""
    events = parsed(batch, ads).persist()
    span = events.agg(F.min("occurred_at"), F.max("occurred_at")).first()
    if span is not None and span[0] is not None:
        merge_silver(events, folder / "silver", span[0])
        merge_gold(events.sparkSession, folder, *span)
    events.unpersist()


def parsed(batch: DataFrame, ads: DataFrame) -> DataFrame:
    """Return the valid events, each once within the batch, with event time and campaign."""
    return (
        valid_events(batch)
        .dropDuplicates(["event_time"])
        .join(F.broadcast(ads), "ad_id", "left")
        .select(*FIELDS, "occurred_at", "campaign_id")
    )


def merge_silver(events: DataFrame, path: Path, first: datetime) -> None:
    """Insert the events that silver does not hold; literal bounds let Delta skip the files of older events."""
    oldest = first - timedelta(seconds=HORIZON_SECONDS)
    silver = DeltaTable.forPath(events.sparkSession, str(path)).alias("t")
    condition = f"t.event_time = s.event_time AND t.occurred_at >= timestamp'{oldest.isoformat()}'"
    silver.merge(events.alias("s"), condition).whenNotMatchedInsertAll().execute()


def merge_gold(spark: SparkSession, folder: Path, first: datetime, last: datetime) -> None:
    """Count the views of the windows between two event times again, from silver, and merge them into gold."""
    window = F.window("occurred_at", "10 seconds")
    start, end = (at.replace(second=at.second // 10 * 10, microsecond=0) for at in (first, last))
    inside = f"occurred_at >= timestamp'{start}' AND occurred_at < timestamp'{end + timedelta(seconds=10)}'"
    silver = spark.read.format("delta").load(str(folder / "silver")).where(inside).where("event_type = 'view'")
    views = silver.groupBy("campaign_id", window.start.alias("since")).agg(F.count("*").alias("views"))
    condition = f"t.since >= timestamp'{start}' AND t.since = s.since AND t.campaign_id <=> s.campaign_id"
    gold = DeltaTable.forPath(spark, str(folder / "gold")).alias("t").merge(views.alias("s"), condition)
    gold.whenMatchedUpdateAll("t.views <> s.views").whenNotMatchedInsertAll().execute()


def main() -> None:
    """Run the job that is the argument."""
    job = read_job(sys.argv[1])
    spark = open_session(job)
    drain_twice(job, lambda span, folder: drain(spark, job, span, folder))


if __name__ == "__main__":
    main()
