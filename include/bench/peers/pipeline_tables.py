"""The tables of the pipeline that `spark_pipelines.py` runs, as Spark Declarative Pipelines have them.

Silver is a streaming table; gold a materialized view, which Spark computes from silver anew in each run. Spark calls
the function of a table where it is declared.
"""

from __future__ import annotations

import json
import os

from pyspark import pipelines as dp
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from include.bench.peers.peer_job import (
    FIELDS,
    HORIZON_SECONDS,
    LONGEST_ADDRESS,
    PATTERNS,
    VALUES,
    read_job,
)

BATCH = 1_000_000
SCHEMA = ", ".join(f"{name} string" for name in FIELDS)
JOB = read_job(os.environ["BENCH_PEER_JOB"])


def is_valid() -> Column:
    """Return whether an event keeps the contract."""
    valid = F.length("ip_address") <= LONGEST_ADDRESS
    for name, pattern in PATTERNS.items():
        valid &= F.col(name).rlike(pattern)
    for name, values in VALUES.items():
        valid &= F.col(name).isin(*values)
    return valid


@dp.table(name="silver")
def silver() -> DataFrame:
    """Return the valid events, each once within the horizon, with event time and campaign."""
    spark, span = SparkSession.active(), JOB.measured
    starts = json.dumps({span.topic: {str(part): at for part, at in span.start.items()}})
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", JOB.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", span.topic)
        .option("startingOffsets", starts)
        .option("maxOffsetsPerTrigger", BATCH)
        .load()
    )
    events = source.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("event")).select("event.*")
    timed = events.where(is_valid()).withColumn("occurred_at", F.timestamp_millis(F.col("event_time").cast("long")))
    known = timed.withWatermark("occurred_at", f"{HORIZON_SECONDS} seconds")
    ads = spark.read.csv(JOB.ads, header=True).select("ad_id", "campaign_id")
    return known.dropDuplicatesWithinWatermark(["event_time"]).join(F.broadcast(ads), "ad_id", "left")


@dp.materialized_view(name="gold")
def gold() -> DataFrame:
    """Return the views of each campaign and 10 seconds."""
    views = SparkSession.active().read.table("silver").where("event_type = 'view'")
    window = F.window("occurred_at", "10 seconds").start.alias("since")
    return views.groupBy("campaign_id", window).agg(F.count("*").alias("views"))
