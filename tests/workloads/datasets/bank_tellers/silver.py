"""`silver.bank_tellers`: a change of a row of `pgbench_tellers` as it came."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    """Add when it was committed, and whether it came after the snapshot: one that was open then has a smaller LSN."""
    timed = accepted.withColumn("committed_at", F.timestamp_millis("committed_ms"))
    return timed.withColumn("streamed", F.when(F.col("op") == "r", 0).otherwise(1))
