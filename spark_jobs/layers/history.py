"""`_first_batch, _last_batch, _revision`: which batches made a gold row, and how often it was made anew."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

HISTORY = ("_first_batch", "_last_batch", "_revision")


def first_history(batch: int) -> list[Column]:
    """Return the history of a row that `batch` made."""
    number = F.lit(batch).cast("long")
    return [number.alias("_first_batch"), number.alias("_last_batch"), F.lit(1).cast("long").alias("_revision")]


def merged_history() -> list[Column]:
    """Return the aggregates that make one history of several."""
    return [
        F.min("_first_batch").alias("_first_batch"),
        F.max("_last_batch").alias("_last_batch"),
        F.sum("_revision").alias("_revision"),
    ]
