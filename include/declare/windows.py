"""Windows and sessions of event time: where a moment lies, when they begin and end, and what a watermark closes.

A window is named by its *start*. Sizes in seconds, minutes and hours begin at multiples since 1970 (UTC), and their
start is a timestamp. Sizes in days, weeks, months and years follow the calendar of `time_zone`, so that a day may have
23 or 25 hours, and their start is a date. Where clocks repeat or skip a local time, a window begins at the earlier
moment of that time and ends at the later one. All engines have the rules of zones from `time_zones.py`: DuckDB's own
functions of time zones have other rules. What differs between sizes is what their positions count: one class each
(`POSITIONS`), with the arithmetic in Python and in DuckDB's SQL; in Spark: `spark_jobs/layers/gold_windows.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator
from pydantic.dataclasses import dataclass

from include.declare.event_times import FIRST, LAST, after, before
from include.declare.time_zones import (
    DUCKDB,
    EPOCH,
    FIRST_MICROS,
    LAST_MICROS,
    UTC_ZONE,
    TimeZone,
    local_sql,
    moment_sql,
    parsed_zone,
)
from include.declare.yaml_declarations import CONFIG, NAME, NAME_RULE, Duration, Finding, InvalidValue, shown
from include.ground.sql_quoting import sql_identifier, sql_literal

Domain = Literal["time", "day", "month"]
"""What positions count: microseconds since 1970, days since 1970-01-01, or months since January 1970."""
Start = datetime | date
SIZE = re.compile(r"([0-9]{1,9}) +(second|minute|hour|day|week|month|year)s?")
# Unit → domain, positions in one unit.
UNITS: dict[str, tuple[Domain, int]] = {
    "second": ("time", 1_000_000),
    "minute": ("time", 60_000_000),
    "hour": ("time", 3_600_000_000),
    "day": ("day", 1),
    "week": ("day", 7),
    "month": ("month", 1),
    "year": ("month", 12),
}
MICROSECOND = timedelta(microseconds=1)
NOTHING = timedelta(0)
DAY = timedelta(days=1)
MONDAY = 4
"""Weeks begin on a Monday; 1970-01-05 is the first."""
FIRST_POSITION: dict[Domain, int] = {
    "time": FIRST_MICROS,
    "day": (FIRST - EPOCH).days,
    "month": (1 - 1970) * 12,
}
LONGEST: dict[Domain, int] = {"time": 1000 * 86_400_000_000, "day": 36_500, "month": 1200}
MOST_WINDOWS = 1000
"""Sliding windows that one row may lie in."""
SESSION_NUMBER = "_session"


@plain_dataclass(frozen=True)
class WindowSize:
    """A length of windows: `length` positions of a domain, counted from `origin`; `text` is as declared."""

    text: str
    domain: Domain
    length: int
    origin: int = 0

    def __str__(self) -> str:
        return self.text


def parsed_size(value: Any) -> Any:
    """Return a count and a unit such as `10 seconds` as a size; ValueError."""
    if isinstance(value, WindowSize):
        return value
    match = SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        why = "must be a count and second, minute, hour, day, week, month or year, like '10 seconds', is"
        raise ValueError(f"{why} {shown(value)}")
    domain, unit = UNITS[match[2]]
    length = int(match[1]) * unit
    if not 0 < length <= LONGEST[domain]:
        raise ValueError(f"must be at least 1 {match[2]} and at most 1,000 days or 100 years, is {shown(value)}")
    return WindowSize(value, domain, length, MONDAY if match[2] == "week" else 0)


Size = Annotated[WindowSize, BeforeValidator(parsed_size)]


def _zone(value: Any, info: ValidationInfo) -> TimeZone:
    """Return the zone of a name. The snapshot of a release has the rules that the release was built with."""
    context = info.context or {}
    return parsed_zone(value, None if context.get("strict", True) else context.get("folder"))


Zone = Annotated[TimeZone, BeforeValidator(_zone)]


@plain_dataclass(frozen=True)
class Closing:
    """Which rows of a table are closed: those whose `column`, a window's start or a session's end, is below `bound`.

    Without a bound none is.
    """

    column: str
    bound: Start | None

    @property
    def sql(self) -> str:
        if self.bound is None:
            return "false"
        kind = "timestamptz" if isinstance(self.bound, datetime) else "date"
        return f"{sql_identifier(self.column)} < {kind} '{self.bound.isoformat()}'"


class Timed(ABC):
    """What gives the rows of a gold table their time: a window or sessions."""

    part: ClassVar[str]
    """Its key in `pipeline.yaml`."""
    column: str

    @property
    @abstractmethod
    def starts_at(self) -> str:
        """The column of gold with the time at which a row begins."""

    @abstractmethod
    def closing(self, watermark: datetime | None) -> Closing:
        """Return what a watermark closes: windows that end at or before it, sessions that no later row can join."""

    @abstractmethod
    def findings(self, keys: Sequence[str]) -> Iterator[Finding]:
        """Yield what is wrong with it alone, and as part of a table with these keys."""


@dataclass(frozen=True, config=CONFIG)
class Window(Timed):
    """Windows of `size` over a timestamp column, named `name` in gold; with `slide` a new one begins that often.

    `offset` moves all of them; `time_zone` is that of calendar sizes.
    """

    part = "window"
    column: str
    size: Size
    name: Annotated[str, Field(alias="as")]
    slide: Size | None = None
    offset: Duration = NOTHING
    time_zone: Zone = UTC_ZONE

    @model_validator(mode="before")
    @classmethod
    def _size_of_unit(cls, value: Any, info: ValidationInfo) -> Any:
        """Snapshots of earlier releases say `unit: hour` where a folder says `size: 1 hour`."""
        if not isinstance(value, dict) or "unit" not in value:
            return value
        if (info.context or {}).get("strict", True):
            raise InvalidValue(f"is not a known key; write size: 1 {value['unit']}", "unit")
        return {**{key: v for key, v in value.items() if key != "unit"}, "size": f"1 {value['unit']}"}

    @property
    def positions(self) -> Positions:
        """The arithmetic of its size."""
        return POSITIONS[self.size.domain]

    @property
    def first(self) -> int:
        """The first position of the calendar."""
        return FIRST_POSITION[self.size.domain]

    @property
    def step(self) -> int:
        """How many positions lie between two starts."""
        return (self.slide or self.size).length

    @property
    def count(self) -> int:
        return self.size.length // self.step

    @property
    def starts_at(self) -> str:
        return self.name

    def starts(self, moment: datetime) -> list[Start]:
        """Return the starts of the windows in which an aware `moment` lies, ascending; one unless windows slide."""
        position = self.positions.of(self, moment)
        newest = position - (position - self.positions.origin(self)) % self.step
        if self.slide is None:
            return [self.positions.start(self, max(newest, self.first))]
        all_of_them = range(newest - (self.count - 1) * self.step, newest + 1, self.step)
        return [self.positions.start(self, each) for each in all_of_them if each >= self.first]

    def begin(self, start: Start) -> datetime:
        """Return the first moment of the window that starts at `start`."""
        return self.positions.begin(self, start)

    def end(self, start: Start) -> datetime:
        """Return the first moment after the window that starts at `start`, the end of the calendar at the latest."""
        return self.positions.end(self, start)

    def first_open(self, watermark: datetime | None) -> Start | None:
        """Return the start of the first window that ends after a watermark; None where no window begins before it."""
        return next(iter(self.starts(watermark)), None) if watermark else None

    def closing(self, watermark: datetime | None) -> Closing:
        return Closing(self.name, self.first_open(watermark))

    def findings(self, keys: Sequence[str]) -> Iterator[Finding]:
        size, slide = self.size, self.slide
        if not NAME.fullmatch(self.name):
            yield ("as",), f"{NAME_RULE}, is {shown(self.name)}"
        if self.name in keys:
            yield ("as",), f"{self.name!r} is a key as well; give the window another name"
        other = slide is not None and (slide.domain != size.domain or slide.length == size.length)
        if slide is not None and (other or size.length % slide.length):
            yield ("slide",), f"must divide the size, {size}, into two or more equal parts of its calendar, is {slide}"
        elif slide is not None and self.count > MOST_WINDOWS:
            yield ("slide",), f"puts each row into {self.count:,} windows; at most {MOST_WINDOWS:,}"
        if not NOTHING <= self.offset < POSITIONS[(slide or size).domain].offset_limit(self.step):
            yield ("offset",), f"must be shorter than {slide or size} (of months: than 28 days), is {self.offset}"
        if self.time_zone != UTC_ZONE and size.domain == "time":
            yield ("time_zone",), "is for sizes in days, weeks, months and years; use offset for shorter ones"

    def between_sql(self, first: Start, last: Start) -> str:
        """Return a condition on the column that every row of the windows from `first` to `last` meets; others may.

        A reader of Parquet skips row groups by it, and not by computed windows.
        """
        column, bounds = sql_identifier(self.column), (self.begin(first), self.end(last))
        low, high = (f"timestamptz {sql_literal(at.isoformat())}" for at in bounds)
        return f"{column} >= {low} and {column} <= {high}"

    def begin_sql(self, start: str) -> str:
        """Return the first moment (timestamptz) of the window whose start is the SQL expression `start`."""
        return self.positions.begin_sql(self, start)

    def end_sql(self, start: str) -> str:
        """Return the first moment (timestamptz) after the window whose start is the SQL expression `start`."""
        return self.positions.end_sql(self, start)

    def newest_sql(self) -> str:
        """Return SQL for the position of the newest window in which a row lies."""
        # The remainder of a negative number is negative.
        start = (
            f"(_position - (((_position - {self.positions.origin(self)}) % {self.step} + {self.step}) % {self.step}))"
        )
        return start if self.slide else f"greatest({start}, {self.first})"


@dataclass(frozen=True, config=CONFIG)
class Session(Timed):
    """Sessions of rows at most `gap` apart in a timestamp column; gold has their first and last time."""

    part = "session"
    column: str
    gap: Duration
    start: str = "session_start"
    end: str = "session_end"

    @property
    def starts_at(self) -> str:
        return self.start

    def closing(self, watermark: datetime | None) -> Closing:
        return Closing(self.end, before(watermark, self.gap) if watermark else None)

    def findings(self, keys: Sequence[str]) -> Iterator[Finding]:
        for key in ("start", "end"):
            if not NAME.fullmatch(name := getattr(self, key)):
                yield (key,), f"{NAME_RULE}, is {shown(name)}"
        if self.start == self.end:
            yield ("end",), f"{self.end!r} is the start as well; give it another name"
        if self.gap <= NOTHING:
            yield ("gap",), "must be at least 1 second"
        if taken := {self.start, self.end} & set(keys):
            yield (), f"{', '.join(sorted(taken))} is a key as well; choose other names for start and end"

    def numbered_sql(self, keys: Sequence[str], source: str) -> str:
        """Return the query of the rows of `source` with the number of their session among those of the same keys."""
        time = f"epoch_us({sql_identifier(self.column)})"
        # Equal times are peers of a range: all of them get the number that one of them begins.
        ordered = f"partition by {', '.join(map(sql_identifier, keys))} order by {time}"
        before_it = f"lag({time}) over ({ordered}, _partition, _offset)"
        begins = f"case when {time} - {before_it} <= {self.gap // MICROSECOND} then 0 else 1 end as _begins"
        numbered = f"sum(_begins) over ({ordered}) as {SESSION_NUMBER}"
        return f"select * exclude (_begins), {numbered} from (select *, {begins} from {source})"

    def bounds_sql(self) -> list[str]:
        """Return the aggregates that are the first and the last time of a session."""
        column = sql_identifier(self.column)
        return [f"min({column}) as {sql_identifier(self.start)}", f"max({column}) as {sql_identifier(self.end)}"]


class _Instants:
    """Microseconds since 1970."""

    def origin(self, window: Window) -> int:
        return window.offset // MICROSECOND

    def offset_limit(self, length: int) -> timedelta:
        return length * MICROSECOND

    def of(self, window: Window, moment: datetime) -> int:
        return (moment - EPOCH) // MICROSECOND

    def start(self, window: Window, position: int) -> Start:
        return EPOCH + position * MICROSECOND

    def begin(self, window: Window, start: Start) -> datetime:
        assert isinstance(start, datetime)
        return start.astimezone(UTC)

    def end(self, window: Window, start: Start) -> datetime:
        return after(self.begin(window, start), window.size.length * MICROSECOND)

    def source_sql(self, window: Window, source: str) -> str:
        return f"(select *, null as _local from {source})"

    def position_sql(self, window: Window) -> str:
        return f"epoch_us({sql_identifier(window.column)})"

    def start_sql(self, window: Window, position: str) -> str:
        return _time(position)

    def begin_sql(self, window: Window, start: str) -> str:
        return f"{start}::timestamptz"

    def end_sql(self, window: Window, start: str) -> str:
        return f"least({start}::timestamptz + interval '{window.size.length} microseconds', {LAST_TIME})"


class _Calendar(ABC):
    """Days or months of a time zone's calendar."""

    unit: ClassVar[Domain]

    @abstractmethod
    def counted(self, local: datetime) -> int:
        """Return the position of a local time, less the offset."""

    @abstractmethod
    def first_day(self, position: int) -> datetime:
        """Return the first day at a position, without the offset."""

    @abstractmethod
    def start_sql(self, window: Window, position: str) -> str:
        """Return the start at a position in DuckDB's SQL."""

    def origin(self, window: Window) -> int:
        return (window.slide or window.size).origin

    def of(self, window: Window, moment: datetime) -> int:
        return self.counted(before(window.time_zone.local_time(moment), window.offset))

    def start(self, window: Window, position: int) -> Start:
        return (self.first_day(position) + window.offset.days * DAY).date()

    def begin(self, window: Window, start: Start) -> datetime:
        # The first window also has the rows that would lie in windows before it.
        if start == self.start(window, window.first):
            return FIRST
        return window.time_zone.earliest_moment(_midnight(start) + window.offset % DAY)

    def end(self, window: Window, start: Start) -> datetime:
        days = window.offset.days * DAY
        try:
            end = self.first_day(self.counted(_midnight(start) - days) + window.size.length) + days
            return window.time_zone.latest_moment(end + window.offset % DAY)
        except (OverflowError, ValueError):
            return LAST

    def source_sql(self, window: Window, source: str) -> str:
        micros = f"epoch_us({sql_identifier(window.column)})"
        local = local_sql(window.time_zone.by_moment, micros, DUCKDB, less=window.offset // MICROSECOND)
        return f"(select *, make_timestamp({local}) as _local from {source})"

    def begin_sql(self, window: Window, start: str) -> str:
        midnight = f"(epoch_us({start}::timestamp) + {window.offset % DAY // MICROSECOND})"
        begin = _time(moment_sql(window.time_zone.earliest, midnight, DUCKDB))
        # The first window also has the rows that would lie in windows before it.
        return f"case when {start} = {self.start_sql(window, str(window.first))} then {FIRST_TIME} else {begin} end"

    def end_sql(self, window: Window, start: str) -> str:
        first_day = f"{start}::timestamp - interval {window.offset // DAY} day"
        length = f"interval {window.size.length} {self.unit}"
        local = f"(epoch_us({first_day} + {length}) + {window.offset // MICROSECOND})"
        end = _time(moment_sql(window.time_zone.latest, local, DUCKDB))
        # The last window also has the rows of which no zone has a local time.
        return f"case when {local} > {LAST_MICROS} then {LAST_TIME} else {end} end"


class _Days(_Calendar):
    """Days since 1970-01-01."""

    unit = "day"

    def offset_limit(self, length: int) -> timedelta:
        return length * DAY

    def counted(self, local: datetime) -> int:
        return (local - EPOCH).days

    def first_day(self, position: int) -> datetime:
        return EPOCH + position * DAY

    def position_sql(self, window: Window) -> str:
        return "(cast(_local as date) - date '1970-01-01')"

    def start_sql(self, window: Window, position: str) -> str:
        return f"(date '1970-01-01' + ({position} + {window.offset // DAY})::int)"


class _Months(_Calendar):
    """Months since January 1970."""

    unit = "month"

    def offset_limit(self, length: int) -> timedelta:
        return 28 * DAY

    def counted(self, local: datetime) -> int:
        return (local.year - 1970) * 12 + local.month - 1

    def first_day(self, position: int) -> datetime:
        return datetime(1970 + position // 12, position % 12 + 1, 1, tzinfo=UTC)

    def position_sql(self, window: Window) -> str:
        return "((year(_local) - 1970) * 12 + month(_local) - 1)"

    def start_sql(self, window: Window, position: str) -> str:
        return f"(cast(date '1970-01-01' + to_months(({position})::int) as date) + {window.offset // DAY})"


Positions = _Instants | _Days | _Months
POSITIONS: dict[Domain, Positions] = {"time": _Instants(), "day": _Days(), "month": _Months()}


def day_range(windows: Iterable[Window], day: date) -> tuple[datetime, datetime]:
    """Return the first moment of a day and the first one after it, by the calendars of windows; by UTC without any.

    Windows with several time zones or offsets have days that overlap: the range has all of them.
    """
    midnight = _midnight(day)
    shifts = {(each.time_zone, each.offset % DAY) for each in windows if each.size.domain != "time"}
    days = shifts or {(UTC_ZONE, NOTHING)}
    since = min(zone.earliest_moment(after(midnight, shift)) for zone, shift in days)
    return since, max(zone.latest_moment(after(midnight, DAY + shift)) for zone, shift in days)


def windowed_sql(window: Window | None, source: str, without: Sequence[str] = ()) -> str:
    """Return the query of the rows of `source` and the start of the window, once for each window of a row.

    For DuckDB's connections in UTC. Columns that are named in `without` are left out.
    """
    if window is None:
        return f"select {_all_but(without)} from {source}"
    name, positions, newest = sql_identifier(window.name), window.positions, window.newest_sql()
    # Computed in a query of its own: the position is used several times.
    placed = f"select *, {positions.position_sql(window)} as _position from {positions.source_sql(window, source)}"
    kept = _all_but([*without, "_local", "_position"])
    if window.slide is None:
        return f"select {kept}, {positions.start_sql(window, newest)} as {name} from ({placed})"
    starts = f"unnest(range({newest} - {(window.count - 1) * window.step}, {newest} + 1, {window.step}))"
    each = f"select {kept}, {starts} as _window from ({placed})"
    start = positions.start_sql(window, "_window")
    return f"select * exclude (_window), {start} as {name} from ({each}) where _window >= {window.first}"


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _time(micros: str) -> str:
    return f"timezone('UTC', make_timestamp({micros}))"


FIRST_TIME, LAST_TIME = _time(str(FIRST_MICROS)), _time(str(LAST_MICROS))


def _all_but(columns: Sequence[str]) -> str:
    return f"* exclude ({', '.join(map(sql_identifier, columns))})" if columns else "*"
