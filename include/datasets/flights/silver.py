"""`silver.flights`: an accepted event with the stage of the journey that it reports."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

STAGES = {"scheduled": 0, "departed": 1, "arrived": 2, "cancelled": 3}


def silver(accepted: DataFrame) -> DataFrame:
    """Add `stage` (integer, 0 scheduled … 3 cancelled): the order of a flight's events at the same second."""
    pairs = [F.lit(value) for pair in STAGES.items() for value in pair]
    return accepted.withColumn("stage", F.create_map(*pairs)[F.col("kind")])
