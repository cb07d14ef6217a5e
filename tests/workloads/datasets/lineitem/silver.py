"""`silver.lineitem`: an accepted line with its dates as dates."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

DATES = ("l_shipdate", "l_commitdate", "l_receiptdate")


def silver(accepted: DataFrame) -> DataFrame:
    """Convert DATES (date), null for a day that no calendar has."""
    return accepted.withColumns({name: F.col(name).try_cast("date") for name in DATES})
