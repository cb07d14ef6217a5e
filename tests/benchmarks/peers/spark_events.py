"""The events of `ad_events` in Spark, as both peers with Spark read and validate them."""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.peer_job import FIELDS, LONGEST_ADDRESS, PATTERNS, VALUES, TopicSpan

BATCH = 1_000_000
"""Offsets of a batch: each batch has a fixed cost of seconds."""
SCHEMA = ", ".join(f"{name} string" for name in FIELDS)


def records(spark: SparkSession, bootstrap: str, span: TopicSpan) -> DataFrame:
    """Return the stream of Kafka's records from the start of a span."""
    starts = json.dumps({span.topic: {str(part): at for part, at in span.start.items()}})
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", span.topic)
        .option("startingOffsets", starts)
        .option("maxOffsetsPerTrigger", BATCH)
        .load()
    )


def valid_events(records: DataFrame) -> DataFrame:
    """Return the events that keep the contract, with `occurred_at`."""
    events = records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("event")).select("event.*")
    return events.where(is_valid()).withColumn("occurred_at", F.timestamp_millis(F.col("event_time").cast("long")))


def is_valid() -> Column:
    """Return whether an event keeps the contract."""
    valid = F.length("ip_address") <= LONGEST_ADDRESS
    for name, pattern in PATTERNS.items():
        valid &= F.col(name).rlike(pattern)
    for name, values in VALUES.items():
        valid &= F.col(name).isin(*values)
    return valid


def campaigns(spark: SparkSession, ads: str) -> DataFrame:
    """Return the campaign of each ad: `ad_id`, `campaign_id`."""
    return spark.read.csv(ads, header=True).select("ad_id", "campaign_id")
