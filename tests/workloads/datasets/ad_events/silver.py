"""`silver.ad_events`: an accepted event with its time as a timestamp, and the campaign of its ad."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame, ads: DataFrame) -> DataFrame:
    """Add `occurred_at` (timestamp) and `campaign_id`, null for an unknown ad."""
    timed = accepted.withColumn("occurred_at", F.timestamp_millis(F.col("event_time").try_cast("long")))
    known = timed.join(F.broadcast(ads.select("ad_id", "campaign_id")), "ad_id", "left")
    return known.select(*accepted.columns, "occurred_at", "campaign_id")
