"""`silver.orders`: an accepted order with its date as a date."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    """Convert `o_orderdate` (date), null for a day that no calendar has."""
    return accepted.withColumn("o_orderdate", F.col("o_orderdate").try_cast("date"))
