"""The windows of gold as Spark columns: the arithmetic of `include/declare/windows.py`."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.declare.time_zones import SPARK, local_sql
from include.declare.windows import DAY, FIRST_POSITION, MICROSECOND, Start, Window
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
    """Return the position of the newest window in which a row lies."""
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
    """Return the start at a position, as a timestamp or a date."""
    if window.size.domain == "time":
        return F.timestamp_micros(position)
    if window.size.domain == "day":
        return F.date_from_unix_date(position + window.offset // DAY)
    month = F.add_months(F.expr("date'1970-01-01'"), position)
    return F.date_add(month, window.offset // DAY) if window.offset >= DAY else month
