"""Windows and sessions of gold as Spark columns: the arithmetic of `include/declare/windows.py`.

Sessions are rows of the same keys, each at most a gap after the one before (adr-0009). A session of gold is an interval
with the states of its measures. An interval of one row is a session as well, so the same numbering finds the sessions
of new rows, and those that new rows join together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import Window as RowWindow
from pyspark.sql import functions as F

from include.declare.time_zones import SPARK, local_sql
from include.declare.windows import DAY, FIRST_POSITION, MICROSECOND, Closing, Session, Start, Window
from spark_jobs.contract.literals import literal
from spark_jobs.layers.row_provenance import unfolded


def windowed(window: Window | None, rows: DataFrame) -> DataFrame:
    """Return the rows with the start of their window; once for each window that a row lies in when windows slide."""
    if window is None:
        return rows
    if window.slide is None:
        return rows.withColumn(window.name, _start(window, _newest(window)))
    newest = _newest(window)
    span = F.lit((window.count - 1) * window.step)
    starts = F.sequence(newest - span, newest, F.lit(window.step).cast(_kind(window)))
    kept = F.filter(starts, lambda start: start >= FIRST_POSITION[window.size.domain])
    return rows.withColumn(window.name, F.explode(F.transform(kept, lambda start: _start(window, start))))


def is_before(column: str, start: Start | None) -> Column:
    """Return the condition that a window's start or a time lies before another; without one none does."""
    if start is None:
        return F.lit(False)
    return F.col(column) < unfolded(literal(start), column)


def _newest(window: Window) -> Column:
    position = _position(window)
    start = position - F.pmod(position - window.positions.origin(window), F.lit(window.step))
    if window.slide is None:
        start = F.greatest(start, F.lit(FIRST_POSITION[window.size.domain]))
    return start.cast(_kind(window))


def _kind(window: Window) -> str:
    return "long" if window.size.domain == "time" else "int"


def _position(window: Window) -> Column:
    if window.size.domain == "time":
        return F.unix_micros(window.column)
    # Java's own rules of time zones, which `from_utc_timestamp` follows, are of another version.
    moment, less = f"unix_micros({_quoted(window.column)})", window.offset // MICROSECOND
    wall = F.timestamp_micros(F.expr(local_sql(window.time_zone.by_moment, moment, SPARK, less)))
    if window.size.domain == "day":
        return F.unix_date(F.to_date(wall))
    return (F.year(wall) - 1970) * 12 + F.month(wall) - 1


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _start(window: Window, position: Column) -> Column:
    if window.size.domain == "time":
        return F.timestamp_micros(position)
    if window.size.domain == "day":
        return F.date_from_unix_date(position + window.offset // DAY)
    month = F.add_months(F.expr("date'1970-01-01'"), position)
    return F.date_add(month, window.offset // DAY) if window.offset >= DAY else month


NUMBER, OPEN_SINCE = "_session", "_open_since"
FROM, UNTIL = "_from", "_until"
"""The first and the last moment of a reach: a span of some rows, and of the sessions that these may touch."""


@dataclass(frozen=True)
class SessionClosing:
    """Which sessions of a table with `on_close` are closed."""

    session: Session
    closed: Closing


def numbered_sessions(session: Session, keys: Sequence[str], rows: DataFrame, start: str, end: str) -> DataFrame:
    """Return intervals [`start`, `end`] with the number of their session among those of the same keys."""
    # Equal starts are peers of a range, so that all of them get one number whatever their order.
    ordered = RowWindow.partitionBy(*keys).orderBy(start)
    before = ordered.rowsBetween(RowWindow.unboundedPreceding, -1)
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


def reach_of(session: Session, keys: Sequence[str], spans: DataFrame, sessions: DataFrame) -> DataFrame:
    """Return by keys one span [FROM, UNTIL] around all of `spans` and the sessions at most a gap before or after it.

    Sessions outside it cannot change: no row of `spans` is within a gap of them.
    """
    around = spans.groupBy(*keys).agg(F.min(FROM).alias(FROM), F.max(UNTIL).alias(UNTIL))
    known = sessions.select(*keys, session.start, session.end).alias("_rows")
    near = (_micros(session.end) >= _begin(session)) & (_micros(session.start) <= _end(session))
    joined = around.alias("_reach").join(known, reduce(and_, _same_keys(keys), near), "left")
    begin, end = F.least(F.min(FROM), F.min(session.start)), F.greatest(F.max(UNTIL), F.max(session.end))
    reached = joined.groupBy(*(F.col(f"_reach.`{key}`") for key in keys))
    return reached.agg(begin.alias(FROM), end.alias(UNTIL))


def in_reach(
    keys: Sequence[str], rows: DataFrame, times: tuple[str, str], reach: DataFrame, *, others: bool
) -> DataFrame:
    """Return the rows of `times` (first, last) in the reach of their keys, or the others."""
    start, end = (F.col(f"_rows.`{name}`") for name in times)
    inside = (start >= F.col(f"_reach.{FROM}")) & (end <= F.col(f"_reach.{UNTIL}"))
    return _joined(keys, rows, reach, inside, "left_anti" if others else "left_semi")


def adjacent_to_reach(session: Session, keys: Sequence[str], rows: DataFrame, reach: DataFrame) -> DataFrame:
    """Return the rows of silver at most a gap before or after the reach of their keys."""
    at = _micros(session.column)
    before = (at >= _begin(session)) & (at < F.unix_micros(F.col(f"_reach.{FROM}")))
    after = (at <= _end(session)) & (at > F.unix_micros(F.col(f"_reach.{UNTIL}")))
    return _joined(keys, rows, reach, before | after, "left_semi")


def _joined(keys: Sequence[str], rows: DataFrame, reach: DataFrame, condition: Column, kind: str) -> DataFrame:
    on = reduce(and_, _same_keys(keys), condition)
    return rows.alias("_rows").join(reach.alias("_reach"), on, kind)


def _same_keys(keys: Sequence[str]) -> list[Column]:
    return [F.col(f"_rows.`{key}`").eqNullSafe(F.col(f"_reach.`{key}`")) for key in keys]


def _begin(session: Session) -> Column:
    return F.unix_micros(F.col(f"_reach.{FROM}")) - session.gap // MICROSECOND


def _end(session: Session) -> Column:
    return F.unix_micros(F.col(f"_reach.{UNTIL}")) + session.gap // MICROSECOND


def _micros(column: str) -> Column:
    return F.unix_micros(F.col(f"_rows.`{column}`"))


def closed_sessions(closing: SessionClosing, sessions: DataFrame, opened: Observation) -> DataFrame:
    """Return the sessions that are closed; the least start of the others is observed as OPEN_SINCE."""
    is_closed = is_before(closing.closed.column, closing.closed.bound)
    start = F.min(F.when(~is_closed, F.col(closing.session.start))).alias(OPEN_SINCE)
    return sessions.observe(opened, start).where(is_closed)
