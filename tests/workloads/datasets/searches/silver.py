"""`silver.searches`: an accepted search with its hour, and the prefixes by which its term is completed."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

LONGEST_PREFIX = 3


def silver(accepted: DataFrame) -> DataFrame:
    """Add `hour` (timestamp), `hour_of_week` (0: Monday's first) and `prefixes` (array of 1 to 3 first characters)."""
    weekday = F.weekday("searched_at")
    prefixes = F.array_distinct(F.array(*(F.substring("term", 1, length) for length in range(1, LONGEST_PREFIX + 1))))
    return (
        accepted.withColumn("hour", F.date_trunc("hour", "searched_at"))
        .withColumn("hour_of_week", (weekday * 24 + F.hour("searched_at")).try_cast("int"))
        .withColumn("prefixes", prefixes)
    )
