"""`silver.customers`: an accepted change with its time."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    """Return the accepted changes with the time at which Debezium reported them."""
    return accepted.withColumn("changed_at", F.timestamp_millis("ts_ms"))
