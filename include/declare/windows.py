"""Windows of event time: which windows a moment lies in, and when a window begins and ends.

A window is named by its *start*. Sizes in seconds, minutes and hours begin at multiples since 1970 (UTC), and their
start is a timestamp. Sizes in days, weeks, months and years follow the calendar of `time_zone`, so that a day may have
23 or 25 hours, and their start is a date. Where clocks repeat or skip a local time, a window begins at the earlier
moment of that time and ends at the later one. All engines have the rules of zones from `time_zones.py`. The same
arithmetic in Spark: `spark_jobs/layers/gold_windows.py`; in DuckDB: `window_sql.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass as plain_dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator
from pydantic.dataclasses import dataclass

from include.declare.event_times import FIRST, LAST, after, before
from include.declare.time_zones import UTC_ZONE, TimeZone, parsed_zone
from include.declare.yaml_declarations import NAME, NAME_RULE, Duration, Finding, InvalidValue, shown

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
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
NOTHING = timedelta(0)
DAY = timedelta(days=1)
MONDAY = 4
"""Weeks begin on a Monday; 1970-01-05 is the first."""
FIRST_POSITION: dict[Domain, int] = {
    "time": (FIRST - EPOCH) // MICROSECOND,
    "day": (FIRST - EPOCH).days,
    "month": (1 - 1970) * 12,
}
LONGEST: dict[Domain, int] = {"time": 1000 * 86_400_000_000, "day": 36_500, "month": 1200}
MOST_WINDOWS = 1000
"""Sliding windows that one row may lie in."""


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


@dataclass(frozen=True, config=ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True))
class Window:
    """Windows of `size` over a timestamp column, named `name` in gold; with `slide` a new one begins that often.

    `offset` moves all of them; `time_zone` is that of calendar sizes.
    """

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
    def step(self) -> int:
        """How many positions lie between two starts."""
        return (self.slide or self.size).length

    @property
    def count(self) -> int:
        """How many windows a moment lies in."""
        return self.size.length // self.step

    @property
    def origin(self) -> int:
        """A position at which a window begins."""
        return self.offset // MICROSECOND if self.size.domain == "time" else (self.slide or self.size).origin


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Session:
    """Sessions of rows at most `gap` apart in a timestamp column; gold has their first and last time."""

    column: str
    gap: Duration
    start: str = "session_start"
    end: str = "session_end"


def session_findings(session: Session) -> Iterator[Finding]:
    """Yield what is wrong with a session alone."""
    for key in ("start", "end"):
        if not NAME.fullmatch(name := getattr(session, key)):
            yield (key,), f"{NAME_RULE}, is {shown(name)}"
    if session.start == session.end:
        yield ("end",), f"{session.end!r} is the start as well; give it another name"
    if session.gap <= NOTHING:
        yield ("gap",), "must be at least 1 second"


def window_findings(window: Window) -> Iterator[Finding]:
    """Yield what is wrong with a window alone."""
    size, slide, limit = window.size, window.slide, _longest_offset(window)
    if not NAME.fullmatch(window.name):
        yield ("as",), f"{NAME_RULE}, is {shown(window.name)}"
    if slide is not None and (slide.domain != size.domain or size.length % slide.length or slide.length == size.length):
        yield ("slide",), f"must divide the size, {size}, into two or more equal parts of the same calendar, is {slide}"
    elif slide is not None and window.count > MOST_WINDOWS:
        yield ("slide",), f"puts each row into {window.count:,} windows; at most {MOST_WINDOWS:,}"
    if not NOTHING <= window.offset < limit:
        yield ("offset",), f"must be shorter than {slide or size} (of months: than 28 days), is {window.offset}"
    if window.time_zone != UTC_ZONE and size.domain == "time":
        yield ("time_zone",), "is for sizes in days, weeks, months and years; use offset for shorter ones"


def window_starts(window: Window, moment: datetime) -> list[Start]:
    """Return the starts of the windows in which an aware `moment` lies, ascending; one unless windows slide."""
    first = FIRST_POSITION[window.size.domain]
    position = _position(window, moment)
    newest = position - (position - window.origin) % window.step
    if window.slide is None:
        return [_start(window, max(newest, first))]
    positions = range(newest - (window.count - 1) * window.step, newest + 1, window.step)
    return [_start(window, each) for each in positions if each >= first]


def window_begin(window: Window, start: Start) -> datetime:
    """Return the first moment of the window that starts at `start`."""
    if isinstance(start, datetime):
        return start.astimezone(UTC)
    # The first window also has the rows that would lie in windows before it.
    if start == _start(window, FIRST_POSITION[window.size.domain]):
        return FIRST
    local = datetime(start.year, start.month, start.day, tzinfo=UTC) + window.offset % DAY
    return window.time_zone.earliest_moment(local)


def window_end(window: Window, start: Start) -> datetime:
    """Return the first moment after the window that starts at `start`, the end of the calendar at the latest."""
    if isinstance(start, datetime):
        return after(start.astimezone(UTC), window.size.length * MICROSECOND)
    begin = datetime(start.year, start.month, start.day, tzinfo=UTC)
    try:
        if window.size.domain == "day":
            end = begin + window.size.length * DAY
        else:
            end = _first_of(_months(begin - window.offset.days * DAY) + window.size.length) + window.offset.days * DAY
        return window.time_zone.latest_moment(end + window.offset % DAY)
    except (OverflowError, ValueError):
        return LAST


def day_range(windows: Iterable[Window], day: date) -> tuple[datetime, datetime]:
    """Return the first moment of a day and the first one after it, by the calendars of windows; by UTC without any.

    Windows with several time zones or offsets have days that overlap: the range has all of them.
    """
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    shifts = {(each.time_zone, each.offset % DAY) for each in windows if each.size.domain != "time"}
    days = shifts or {(UTC_ZONE, NOTHING)}
    since = min(zone.earliest_moment(after(midnight, shift)) for zone, shift in days)
    return since, max(zone.latest_moment(after(midnight, DAY + shift)) for zone, shift in days)


def _position(window: Window, moment: datetime) -> int:
    if window.size.domain == "time":
        return (moment - EPOCH) // MICROSECOND
    shifted = before(window.time_zone.local_time(moment), window.offset)
    return (shifted - EPOCH).days if window.size.domain == "day" else _months(shifted)


def _start(window: Window, position: int) -> Start:
    if window.size.domain == "time":
        return EPOCH + position * MICROSECOND
    begin = (EPOCH + position * DAY) if window.size.domain == "day" else _first_of(position)
    return (begin + window.offset.days * DAY).date()


def _months(moment: datetime) -> int:
    return (moment.year - 1970) * 12 + moment.month - 1


def _first_of(months: int) -> datetime:
    return datetime(1970 + months // 12, months % 12 + 1, 1, tzinfo=UTC)


def _longest_offset(window: Window) -> timedelta:
    size = window.slide or window.size
    if size.domain == "time":
        return size.length * MICROSECOND
    return size.length * DAY if size.domain == "day" else 28 * DAY
