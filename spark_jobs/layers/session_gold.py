"""Sessions: rows of the same keys, each at most a gap after the one before (adr-0009).

A session of gold is an interval with the states of its measures. An interval of one row is a session as well, so the
same numbering finds the sessions of new rows, and those that new rows join together.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from include.catalog.windows import MICROSECOND, Session

NUMBER = "_session"


def numbered_sessions(session: Session, keys: Sequence[str], rows: DataFrame, start: str, end: str) -> DataFrame:
    """Return intervals [`start`, `end`] with the number of their session among those of the same keys."""
    # Equal starts are peers of a range, so that all of them get one number whatever their order.
    ordered = Window.partitionBy(*keys).orderBy(start)
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    reached = F.max(F.unix_micros(end)).over(before)
    begins = F.coalesce(F.unix_micros(start) > reached + session.gap // MICROSECOND, F.lit(True))
    flagged = rows.withColumn(NUMBER, begins.cast("int"))
    return flagged.withColumn(NUMBER, F.sum(NUMBER).over(ordered))
