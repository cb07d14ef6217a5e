"""Python values as Spark literals. PySpark's own way for times and dates shifts those before 1582-10-15 by days."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def literal(value: Any) -> Column:
    """Return a value as a column of the type that Spark gives it; a time must have a zone."""
    if isinstance(value, datetime):
        return F.timestamp_micros(F.lit((value - EPOCH) // timedelta(microseconds=1)))
    if isinstance(value, date):
        return F.date_from_unix_date(F.lit((value - EPOCH.date()).days))
    return F.lit(value)
