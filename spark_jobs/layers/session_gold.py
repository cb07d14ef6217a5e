"""Sessions: rows of the same keys, each at most a gap after the one before (adr-0009).

A session of gold is an interval with the states of its measures. An interval of one row is a session as well, so the
same numbering finds the sessions of new rows, and those that new rows join together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as F

from include.catalog.gold_refresh import SessionClosing
from include.catalog.windows import MICROSECOND, Session
from spark_jobs.layers.gold_windows import is_before

NUMBER, OPEN_SINCE = "_session", "_open_since"


def numbered_sessions(session: Session, keys: Sequence[str], rows: DataFrame, start: str, end: str) -> DataFrame:
    """Return intervals [`start`, `end`] with the number of their session among those of the same keys."""
    # Equal starts are peers of a range, so that all of them get one number whatever their order.
    ordered = Window.partitionBy(*keys).orderBy(start)
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    reached = F.max(F.unix_micros(end)).over(before)
    begins = F.coalesce(F.unix_micros(start) > reached + session.gap // MICROSECOND, F.lit(True))
    flagged = rows.withColumn(NUMBER, begins.cast("int"))
    return flagged.withColumn(NUMBER, F.sum(NUMBER).over(ordered))


def rows_outside(session: Session, keys: Sequence[str], rows: DataFrame, sessions: DataFrame) -> DataFrame:
    """Return the rows of silver that lie in none of a table's sessions."""
    known = sessions.select(*keys, session.start, session.end).alias("_known")
    same = [F.col(f"_rows.`{key}`").eqNullSafe(F.col(f"_known.`{key}`")) for key in keys]
    start, end = F.col(f"_known.`{session.start}`"), F.col(f"_known.`{session.end}`")
    within = F.col(f"_rows.`{session.column}`").between(start, end)
    return rows.alias("_rows").join(known, reduce(and_, same, within), "left_anti")


def closed_sessions(closing: SessionClosing, sessions: DataFrame, opened: Observation) -> DataFrame:
    """Return the sessions that are closed; the least start of the others is observed as OPEN_SINCE."""
    is_closed = is_before(closing.closed.column, closing.closed.bound)
    start = F.min(F.when(~is_closed, F.col(closing.session.start))).alias(OPEN_SINCE)
    return sessions.observe(opened, start).where(is_closed)
