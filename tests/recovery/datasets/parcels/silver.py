"""`silver.parcels`: a parcel with the city of its sender."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    """Add the sender's city; an unknown one is `?`."""
    return accepted.withColumn("city", F.coalesce(F.col("sender.address.city"), F.lit("?")))
