"""The tables of the pipeline that `spark_pipelines.py` runs, as Spark Declarative Pipelines have them.

Silver is a streaming table; gold a materialized view, which Spark computes from silver anew in each run. Spark calls
the function of a table where it is declared.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.peer_job import HORIZON_SECONDS, read_job
from benchmarks.peers.spark_events import campaigns, records, valid_events

JOB = read_job(os.environ["BENCH_PEER_JOB"])


@dp.table(name="silver")
def silver() -> DataFrame:
    """Return the valid events, each once within the horizon, with event time and campaign."""
    spark = SparkSession.active()
    timed = valid_events(records(spark, JOB.bootstrap, JOB.measured))
    known = timed.withWatermark("occurred_at", f"{HORIZON_SECONDS} seconds")
    events = known.dropDuplicatesWithinWatermark(["event_time"])
    return events.join(F.broadcast(campaigns(spark, JOB.ads)), "ad_id", "left")


@dp.materialized_view(name="gold")
def gold() -> DataFrame:
    """Return the views of each campaign and 10 seconds."""
    views = SparkSession.active().read.table("silver").where("event_type = 'view'")
    window = F.window("occurred_at", "10 seconds").start.alias("since")
    return views.groupBy("campaign_id", window).agg(F.count("*").alias("views"))
