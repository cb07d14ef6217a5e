"""`silver.flights`: an accepted event, the stage of the journey that it reports, and what the reference tables know."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

STAGES = {"scheduled": 0, "departed": 1, "arrived": 2, "cancelled": 3}


def silver(accepted: DataFrame, airlines: DataFrame, airports: DataFrame, planes: DataFrame) -> DataFrame:
    """Add `stage` (integer, 0 scheduled … 3 cancelled: the order of a flight's events at the same second), the names
    `airline` and `destination`, and of the plane `plane_year` and `seats`; null where the reference tables lack them.
    """
    pairs = [F.lit(value) for pair in STAGES.items() for value in pair]
    names = airlines.select("carrier", F.col("name").alias("airline"))
    places = airports.select(F.col("faa").alias("dest"), F.col("name").alias("destination"))
    built = planes.select("tailnum", F.col("year").alias("plane_year"), "seats")
    known = (
        accepted.withColumn("stage", F.create_map(*pairs)[F.col("kind")])
        .join(F.broadcast(names), "carrier", "left")
        .join(F.broadcast(places), "dest", "left")
        .join(F.broadcast(built), "tailnum", "left")
    )
    return known.select(*accepted.columns, "stage", "airline", "destination", "plane_year", "seats")
