"""The windows of gold as DuckDB's SQL: the arithmetic of `windows.py`, for connections in UTC."""

from __future__ import annotations

from collections.abc import Sequence

from include.catalog.windows import (
    DAY,
    FIRST_POSITION,
    MICROSECOND,
    Session,
    Start,
    Window,
    window_begin,
    window_end,
)
from include.sql_quoting import sql_identifier, sql_literal

SESSION_NUMBER = "_session"
FIRST_TIME, LAST_TIME = "timestamp '0001-01-01 00:00:00'", "timestamp '9999-12-31 23:59:59.999999'"


def windowed_sql(window: Window | None, source: str, columns: str = "*") -> str:
    """Return the query of `columns` of `source` and the start of the window, once for each window of a row."""
    if window is None:
        return f"select {columns} from {source}"
    name = sql_identifier(window.name)
    if window.slide is None:
        return f"select {columns}, {_start(window, _newest(window))} as {name} from {source}"
    step, first = window.step, FIRST_POSITION[window.size.domain]
    starts = f"unnest(range({_newest(window)} - {(window.count - 1) * step}, {_newest(window)} + 1, {step}))"
    each = f"select {columns}, {starts} as _window from {source}"
    return f"select * exclude (_window), {_start(window, '_window')} as {name} from ({each}) where _window >= {first}"


def between_windows_sql(window: Window, first: Start, last: Start) -> str:
    """Return a condition on the column of the window that every row of the windows from `first` to `last` meets.

    Others may meet it, at changes of clocks. A reader of Parquet skips row groups by it, and not by computed windows.
    """
    column, bounds = sql_identifier(window.column), (window_begin(window, first), window_end(window, last))
    low, high = (f"timestamptz {sql_literal(at.isoformat())}" for at in bounds)
    return f"{column} >= {low} and {column} <= {high}"


def numbered_sessions_sql(session: Session, keys: Sequence[str], source: str) -> str:
    """Return the query of the rows of `source` with the number of their session among those of the same keys."""
    time = f"epoch_us({sql_identifier(session.column)})"
    # Equal times are peers of a range: all of them get the number that one of them begins.
    ordered = f"partition by {', '.join(map(sql_identifier, keys))} order by {time}"
    before = f"lag({time}) over ({ordered}, _partition, _offset)"
    begins = f"case when {time} - {before} <= {session.gap // MICROSECOND} then 0 else 1 end as _begins"
    numbered = f"sum(_begins) over ({ordered}) as {SESSION_NUMBER}"
    return f"select * exclude (_begins), {numbered} from (select *, {begins} from {source})"


def session_bounds_sql(session: Session) -> list[str]:
    """Return the aggregates that are the first and the last time of a session."""
    column = sql_identifier(session.column)
    return [f"min({column}) as {sql_identifier(session.start)}", f"max({column}) as {sql_identifier(session.end)}"]


def begin_sql(window: Window, start: str) -> str:
    """Return the first moment (timestamptz) of the window whose start is the SQL expression `start`."""
    if window.size.domain == "time":
        return f"{start}::timestamptz"
    return _moment(window, f"{start}::timestamp + {_interval(window.offset % DAY // MICROSECOND)}")


def end_sql(window: Window, start: str) -> str:
    """Return the first moment (timestamptz) after the window whose start is the SQL expression `start`."""
    if window.size.domain == "time":
        return f"{start}::timestamptz + {_interval(window.size.length)}"
    unit = window.size.domain
    first_day = f"{start}::timestamp - interval {window.offset // DAY} day"
    length = f"interval {window.size.length} {unit}"
    return _moment(window, f"{first_day} + {length} + {_interval(window.offset // MICROSECOND)}")


def _moment(window: Window, wall: str) -> str:
    return f"timezone({sql_literal(window.time_zone)}, {wall})"


def _interval(microseconds: int) -> str:
    return f"interval '{microseconds} microseconds'"


def _newest(window: Window) -> str:
    position, step = _position(window), window.step
    # The remainder of a negative number is negative.
    start = f"(({position}) - ((({position}) - {window.origin}) % {step} + {step}) % {step})"
    return start if window.slide else f"greatest({start}, {FIRST_POSITION[window.size.domain]})"


def _position(window: Window) -> str:
    column = sql_identifier(window.column)
    if window.size.domain == "time":
        return f"epoch_us({column})"
    wall = f"timezone({sql_literal(window.time_zone)}, {column})"
    if window.time_zone != "UTC" or window.offset:
        shifted = f"{_within_calendar(wall)} - {_interval(window.offset // MICROSECOND)}"
        wall = _within_calendar(shifted)
    if window.size.domain == "day":
        return f"(cast({wall} as date) - date '1970-01-01')"
    return f"((year({wall}) - 1970) * 12 + month({wall}) - 1)"


def _within_calendar(wall: str) -> str:
    return f"greatest(least({wall}, {LAST_TIME}), {FIRST_TIME})"


def _start(window: Window, position: str) -> str:
    """Return the start at a position, as a timestamptz or a date."""
    if window.size.domain == "time":
        return f"timezone('UTC', make_timestamp({position}))"
    if window.size.domain == "day":
        return f"(date '1970-01-01' + ({position} + {window.offset // DAY})::int)"
    return f"(cast(date '1970-01-01' + to_months(({position})::int) as date) + {window.offset // DAY})"
