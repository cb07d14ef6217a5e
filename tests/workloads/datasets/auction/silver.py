"""`silver.auction`: an accepted event with `party`, the person that it is about."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    """Add `party` (long): a person's id, the seller of an auction, the bidder of a bid."""
    return accepted.withColumn("party", F.coalesce("person", "seller", "bidder"))
