"""The one place where Spark's backend brings rows to the driver: figures of groups, never records."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row


def figures(grouped: DataFrame) -> list[Row]:
    """Return the rows of an aggregate: one for each partition or set of reasons, or the place of a single record."""
    return grouped.collect()
