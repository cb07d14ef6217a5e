"""The windows of gold as DuckDB's SQL: the arithmetic of `windows.py`, for connections in UTC.

DuckDB's own functions of time zones have other rules than `time_zones.py`, and are not called here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from include.declare.time_zones import DUCKDB, FIRST_MICROS, LAST_MICROS, local_sql, moment_sql
from include.declare.windows import (
    DAY,
    FIRST_POSITION,
    MICROSECOND,
    Session,
    Start,
    Window,
    window_begin,
    window_end,
)
from include.ground.sql_quoting import sql_identifier, sql_literal

SESSION_NUMBER = "_session"


def windowed_sql(window: Window | None, source: str, without: Sequence[str] = ()) -> str:
    """Return the query of the rows of `source` and the start of the window, once for each window of a row.

    Columns that are named in `without` are left out.
    """
    if window is None:
        return f"select {_all_but(without)} from {source}"
    name = sql_identifier(window.name)
    # Computed in a query of its own: the position is used several times.
    positions = f"select *, {_position(window)} as _position from {_local(window, source)}"
    if window.slide is None:
        return f"select {_all_but([*without, *OWN])}, {_start(window, _newest(window))} as {name} from ({positions})"
    step, first = window.step, FIRST_POSITION[window.size.domain]
    starts = f"unnest(range({_newest(window)} - {(window.count - 1) * step}, {_newest(window)} + 1, {step}))"
    each = f"select {_all_but([*without, *OWN])}, {starts} as _window from ({positions})"
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
    begin = _time(moment_sql(window.time_zone.earliest, _micros_of_day(start, window.offset % DAY), DUCKDB))
    first = _start(window, str(FIRST_POSITION[window.size.domain]))
    # The first window also has the rows that would lie in windows before it.
    return f"case when {start} = {first} then {FIRST_TIME} else {begin} end"


def end_sql(window: Window, start: str) -> str:
    """Return the first moment (timestamptz) after the window whose start is the SQL expression `start`."""
    if window.size.domain == "time":
        return f"least({start}::timestamptz + {_interval(window.size.length)}, {LAST_TIME})"
    unit = window.size.domain
    first_day = f"{start}::timestamp - interval {window.offset // DAY} day"
    local = f"(epoch_us({first_day} + interval {window.size.length} {unit}) + {window.offset // MICROSECOND})"
    end = _time(moment_sql(window.time_zone.latest, local, DUCKDB))
    # The last window also has the rows of which no zone has a local time.
    return f"case when {local} > {LAST_MICROS} then {LAST_TIME} else {end} end"


def _micros_of_day(day: str, later: timedelta) -> str:
    return f"(epoch_us({day}::timestamp) + {later // MICROSECOND})"


def _time(micros: str) -> str:
    return f"timezone('UTC', make_timestamp({micros}))"


FIRST_TIME, LAST_TIME = _time(str(FIRST_MICROS)), _time(str(LAST_MICROS))
OWN = ("_local", "_position")


def _all_but(columns: Sequence[str]) -> str:
    return f"* exclude ({', '.join(map(sql_identifier, columns))})" if columns else "*"


def _interval(microseconds: int) -> str:
    return f"interval '{microseconds} microseconds'"


def _newest(window: Window) -> str:
    step = window.step
    # The remainder of a negative number is negative.
    start = f"(_position - (((_position - {window.origin}) % {step} + {step}) % {step}))"
    return start if window.slide else f"greatest({start}, {FIRST_POSITION[window.size.domain]})"


def _local(window: Window, source: str) -> str:
    """Return the relation of the rows with their local time, less the offset of the windows, as a timestamp."""
    micros = f"epoch_us({sql_identifier(window.column)})"
    if window.size.domain == "time":
        return f"(select *, null as _local from {source})"
    local = local_sql(window.time_zone.by_moment, micros, DUCKDB, less=window.offset // MICROSECOND)
    return f"(select *, make_timestamp({local}) as _local from {source})"


def _position(window: Window) -> str:
    if window.size.domain == "time":
        return f"epoch_us({sql_identifier(window.column)})"
    if window.size.domain == "day":
        return "(cast(_local as date) - date '1970-01-01')"
    return "((year(_local) - 1970) * 12 + month(_local) - 1)"


def _start(window: Window, position: str) -> str:
    """Return the start at a position, as a timestamptz or a date."""
    if window.size.domain == "time":
        return f"timezone('UTC', make_timestamp({position}))"
    if window.size.domain == "day":
        return f"(date '1970-01-01' + ({position} + {window.offset // DAY})::int)"
    return f"(cast(date '1970-01-01' + to_months(({position})::int) as date) + {window.offset // DAY})"
