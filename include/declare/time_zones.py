"""The rules of time zones as one table of offsets, which Python, DuckDB and Spark all look up.

The rules are those of the package `tzdata`: Java, DuckDB and the operating system each have rules of their own, of
other versions. A release keeps the rules that it was built with (`ZONES_FILE` in its snapshot).

A time zone's offsets as an SQL expression that looks them up in constant lists, in Spark and in DuckDB.

Time is cut into *cells* of equal length. A cell's number is a place in the list of offsets, and below it a count of
seconds that overflows into the place at the second of the cell at which the offset changes: (number + second) >> BITS
is the place of the offset that holds. Zones that change twice in a cell have a second number for it, and so on. An
expression that compared a time with each change in turn would cost a hundred times as much.
"""

from __future__ import annotations

import difflib
import json
import re
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property, partial
from importlib import import_module, resources
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from include.declare.event_times import FIRST, LAST

ZONES_FILE = "time_zones.yaml"
SECOND = 1_000_000
DAY_SECONDS = 86_400
CYCLE = 146_097 * DAY_SECONDS
"""After 400 years the calendar repeats, weekdays included, and so do rules such as *the last Sunday in March*."""
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), FIRST.resolution
FIRST_MICROS, LAST_MICROS = ((end - EPOCH) // MICROSECOND for end in (FIRST, LAST))
EPOCH_DAY = date(1970, 1, 1).toordinal()
NAME = r"(?:<[^>]+>|[A-Za-z]+)"
CLOCK = r"([+-]?\d+(?::\d+){0,2})"
CHANGE = rf",M(\d+)\.(\d)\.(\d)(?:/{CLOCK})?"
RULE = re.compile(rf"{NAME}{CLOCK}(?:{NAME}{CLOCK}?{CHANGE}{CHANGE})?")
"""The rule that continues for ever after the last transition, as POSIX writes it: `CET-1CEST,M3.5.0,M10.5.0/3`."""
Transition = tuple[int, int]
"""A second since 1970, and the offset in seconds that holds from then on."""


@dataclass(frozen=True)
class Offsets:
    """Offsets by time, in seconds: `offsets[n]` holds from `at[n - 1]` to before `at[n]`.

    From `cycle` on they repeat every 400 years; None: the last one holds for ever.
    """

    at: tuple[int, ...]
    offsets: tuple[int, ...]
    cycle: int | None

    def of(self, micros: int) -> int:
        """Return the offset in microseconds at a time in microseconds since 1970."""
        second = micros // SECOND
        if self.cycle is not None and second >= self.cycle:
            second = self.cycle + (second - self.cycle) % CYCLE
        return self.offsets[bisect_right(self.at, second)] * SECOND


@dataclass(frozen=True)
class TimeZone:
    """A time zone: the offset before its first transition, the transitions, and the rule after the last one."""

    name: str
    offset: int = 0
    transitions: tuple[Transition, ...] = ()
    rule: str = ""

    def __str__(self) -> str:
        return self.name

    def local_time(self, moment: datetime) -> datetime:
        """Return the local time at an aware moment as if it were UTC; an end of the calendar where there is none."""
        micros = _micros(moment)
        return _within_calendar(micros + self.by_moment.of(micros))

    def earliest_moment(self, local: datetime) -> datetime:
        """Return the moment of a local time, the earlier one where clocks repeat or skip that time."""
        micros = _micros(local)
        return _within_calendar(micros - self.earliest.of(micros))

    def latest_moment(self, local: datetime) -> datetime:
        """Return the moment of a local time, the later one where clocks repeat or skip that time."""
        micros = _micros(local)
        return _within_calendar(micros - self.latest.of(micros))

    @cached_property
    def by_moment(self) -> Offsets:
        at, offsets, cycle = self._steps
        return Offsets(at, (self.offset, *offsets), cycle)

    @cached_property
    def earliest(self) -> Offsets:
        """The offsets by local time, for `earliest_moment`."""
        at, offsets, cycle = self._steps
        before = (self.offset, *offsets)
        return Offsets(tuple(map(sum, zip(at, before, strict=False))), before, cycle)

    @cached_property
    def latest(self) -> Offsets:
        """The offsets by local time, for `latest_moment`."""
        at, offsets, cycle = self._steps
        return Offsets(tuple(map(sum, zip(at, offsets, strict=True))), (self.offset, *offsets), cycle)

    @cached_property
    def _steps(self) -> tuple[tuple[int, ...], tuple[int, ...], int | None]:
        changes, cycle = list(_changes(self.offset, self.transitions)), None
        last, after = self.transitions[-1] if self.transitions else (0, self.offset)
        ruled = (each for each in _rule_transitions(self.rule, _year_of(last)) if each[0] > last)
        later = list(_changes(after, ruled))
        if len(later) > 1:
            # Halfway between two changes, so that no offset moves one of them over the end of a cycle.
            cycle = (later[0][0] + later[1][0]) // 2
            later = [each for each in later if each[0] < cycle + CYCLE]
        found = (*changes, *later)
        return tuple(at for at, _ in found), tuple(offset for _, offset in found), cycle


UTC_ZONE = TimeZone("UTC", rule="UTC0")


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all zones of the installed database."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())


def database_version() -> str:
    """Return the version of the installed database, like `2026a`."""
    return str(import_module("tzdata").IANA_VERSION)


@cache
def installed_zone(name: str) -> TimeZone:
    """Return a zone of the installed database; ValueError with near names when it has none of this name."""
    if name not in zone_names():
        raise ValueError(f"must be UTC or a name like Europe/Paris, is {name!r}{_near(name)}")
    return _read_zone(name, resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes())


def parsed_zone(value: Any, folder: Path | None) -> TimeZone:
    """Return the zone of a name: as the snapshot in `folder` recorded it, else as installed; ValueError."""
    if isinstance(value, TimeZone):
        return value
    if not isinstance(value, str):
        raise ValueError(f"must be UTC or a name like Europe/Paris, is {value!r}")
    recorded = _recorded(folder / ZONES_FILE) if folder is not None else {}
    return recorded.get(value) or installed_zone(value)


def write_zones(folder: Path, zones: Iterable[TimeZone]) -> None:
    """Record in a snapshot the rules of the zones that it uses; without any nothing is written."""
    recorded = {
        zone.name: {"offset": zone.offset, "transitions": zone.transitions, "rule": zone.rule}
        for zone in sorted(set(zones), key=str)
        if zone != UTC_ZONE
    }
    if recorded:
        text = json.dumps({"version": database_version(), "zones": recorded}, separators=(",", ":"))
        (folder / ZONES_FILE).write_text(text + "\n", "utf-8")


def recorded_version(folder: Path) -> str:
    """Return the version of the database that a snapshot recorded; empty when it recorded none."""
    path = folder / ZONES_FILE
    return str(json.loads(path.read_text("utf-8"))["version"]) if path.is_file() else ""


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def _within_calendar(micros: int) -> datetime:
    return EPOCH + max(FIRST_MICROS, min(micros, LAST_MICROS)) * MICROSECOND


def _recorded(path: Path) -> Mapping[str, TimeZone]:
    return _recorded_at(path, path.stat().st_mtime_ns) if path.is_file() else {}


@cache
def _recorded_at(path: Path, mtime_ns: int) -> Mapping[str, TimeZone]:
    found = json.loads(path.read_text("utf-8"))["zones"]
    return {
        name: TimeZone(name, zone["offset"], tuple((at, offset) for at, offset in zone["transitions"]), zone["rule"])
        for name, zone in found.items()
    }


def _near(name: str) -> str:
    names = sorted(zone_names())
    places = {**{each.rpartition("/")[2].lower(): each for each in names}, **{each.lower(): each for each in names}}
    keys = difflib.get_close_matches(name.strip().replace(" ", "_").lower(), places, n=3, cutoff=0.75)
    near = dict.fromkeys(places[key] for key in keys)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _read_zone(name: str, data: bytes) -> TimeZone:
    """Return the zone of a TZif file (RFC 9636): of its second part, which has 64 bits for each time."""
    first = _counts(data, 0)
    start = 44 + _length(first, 4)
    _, _, _, times, types, _ = counts = _counts(data, start)
    at = struct.unpack_from(f">{times}q", data, start + 44)
    kinds = struct.unpack_from(f">{times}B", data, start + 44 + 8 * times)
    offsets = [struct.unpack_from(">i", data, start + 44 + 9 * times + 6 * kind)[0] for kind in range(types)]
    rule = data[start + 44 + _length(counts, 8) :].decode("ascii").strip()
    return TimeZone(name, offsets[0], tuple(zip(at, (offsets[kind] for kind in kinds), strict=True)), rule)


def _counts(data: bytes, start: int) -> tuple[int, ...]:
    return struct.unpack_from(">6I", data, start + 20)


def _length(counts: tuple[int, ...], size: int) -> int:
    utc, standard, leaps, times, types, characters = counts
    return times * (size + 1) + types * 6 + characters + leaps * (size + 4) + standard + utc


def _changes(offset: int, transitions: Iterable[Transition]) -> Iterator[Transition]:
    """Yield the transitions that change the offset; others change a name, or what counts as summer time."""
    known = [(0, offset), *transitions]
    return (each for before, each in pairwise(known) if each[1] != before[1])


def _rule_transitions(rule: str, first_year: int) -> list[Transition]:
    """Return the transitions of a rule in the years of a cycle and one more, ascending."""
    match = RULE.fullmatch(rule)
    if match is None:
        raise ValueError(f"the rule {rule!r} of a time zone is unknown")
    if match[3] is None:
        return []
    standard = -_seconds(match[1])
    summer = -_seconds(match[2]) if match[2] else standard + 3600
    begins, ends = match.group(3, 4, 5), match.group(7, 8, 9)
    found: list[Transition] = []
    for year in range(first_year, first_year + 402):
        found.append((_moment(year, begins, match[6]) - standard, summer))
        found.append((_moment(year, ends, match[10]) - summer, standard))
    return sorted(found)


def _moment(year: int, day: tuple[str, ...], clock: str | None) -> int:
    """Return the local second of a rule's day, such as the last (5) Sunday (0) of March, and time of day."""
    month, week, weekday = map(int, day)
    first = _days(year, month)
    on = first + (weekday - (first + 4)) % 7 + (week - 1) * 7
    if on >= _days(year + month // 12, month % 12 + 1):
        on -= 7
    return on * DAY_SECONDS + (_seconds(clock) if clock else 7200)


def _days(year: int, month: int) -> int:
    return date(year, month, 1).toordinal() - EPOCH_DAY


def _seconds(clock: str) -> int:
    hours, *rest = clock.lstrip("+-").split(":")
    minutes, seconds = (int(part) for part in [*rest, "0", "0"][:2])
    return (-1 if clock.startswith("-") else 1) * (int(hours) * 3600 + minutes * 60 + seconds)


def _year_of(second: int) -> int:
    return date.fromordinal(second // DAY_SECONDS + EPOCH_DAY).year


@cache
def difference_since(one: TimeZone, other: TimeZone) -> date | None:
    """Return the first day (UTC) on which the zones have different local times; None: there is none."""
    steps = one.by_moment, other.by_moment
    moments = sorted({FIRST_MICROS, *(second * SECOND for each in steps for second in each.at)})
    differing = (at for at in moments if FIRST_MICROS <= at <= LAST_MICROS and len({each.of(at) for each in steps}) > 1)
    first = next(differing, None)
    return None if first is None else (EPOCH + timedelta(microseconds=first)).date()


def changed_zones(folder: Path) -> list[str]:
    """Return in words the zones of a release's snapshot that the installed database has other rules for."""
    return [change for zone in _recorded(folder / ZONES_FILE).values() if (change := _change(zone))]


def _change(zone: TimeZone) -> str:
    if zone.name not in zone_names():
        return f"{zone}, which it does not have"
    installed = installed_zone(zone.name)
    since = None if installed == zone else difference_since(zone, installed)
    return f"{zone} (from {since} on)" if since else ""


BITS = 23
WIDTHS = [2**bits for bits in range(18, BITS + 1)]
"""Seconds of a cell: 3 to 97 days."""


@dataclass(frozen=True)
class Dialect:
    """How an engine writes a constant list of integers, an item of it by a number from 0 on, and a whole quotient."""

    numbers: str
    item: str
    quotient: str

    def looked_up(self, numbers: Sequence[int], index: str) -> str:
        """Return SQL for the item of a constant list."""
        return self.item.format(self.numbers.format(",".join(map(str, numbers))), index)


SPARK = Dialect("cast(split('{}', ',') as array<bigint>)", "{}[cast({} as int)]", "({} div {})")
DUCKDB = Dialect("cast(string_split('{}', ',') as bigint[])", "({})[{} + 1]", "({} // {})")


@dataclass(frozen=True)
class Cells:
    """Numbers of cells of `width` seconds from `first` on, a list for each change that a cell may have."""

    first: int
    width: int
    numbers: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]


def local_sql(offsets: Offsets, moment: str, dialect: Dialect, less: int = 0) -> str:
    """Return SQL for the local time of a moment minus `less`, all in microseconds; within the calendar."""
    return _within_calendar_sql(moment, f"{moment} + {offset_sql(offsets, moment, dialect)}", less)


def moment_sql(offsets: Offsets, local: str, dialect: Dialect) -> str:
    """Return SQL for the moment of a local time, both in microseconds; within the calendar."""
    return _within_calendar_sql(local, f"{local} - {offset_sql(offsets, local, dialect)}")


def offset_sql(offsets: Offsets, micros: str, dialect: Dialect) -> str:
    """Return SQL for the offset in microseconds at a time, an SQL expression of microseconds since 1970."""
    if not offsets.at:
        return f"({offsets.offsets[0] * SECOND})"
    cells = cells_of(offsets)
    width, last = cells.width * SECOND, (len(cells.numbers[0]) * cells.width) * SECOND - 1
    within = f"least(greatest({_repeated(offsets, micros)} - {cells.first * SECOND}, 0), {last})"
    index, second = dialect.quotient.format(within, width), dialect.quotient.format(f"({within} % {width})", SECOND)
    places = (f"(({dialect.looked_up(each, index)} + {second}) >> {BITS})" for each in cells.numbers)
    return f"({dialect.looked_up(cells.offsets, ' + '.join(places))} * {SECOND})"


@cache
def cells_of(offsets: Offsets) -> Cells:
    """Return the cells of the width that needs the fewest numbers."""
    first, last = _first(offsets), offsets.at[-1]

    def numbers(width: int) -> int:
        most = max(Counter((at - first) // width for at in offsets.at).values())
        return ((last - first) // width + 1) * most

    return _cells(offsets, min(WIDTHS, key=numbers))


def _cells(offsets: Offsets, width: int) -> Cells:
    first = _first(offsets)
    changes: list[list[tuple[int, int]]] = [[] for _ in range((offsets.at[-1] - first) // width + 1)]
    for at, after in zip(offsets.at, offsets.offsets[1:], strict=True):
        cell, second = divmod(at - first, width)
        changes[cell].append((second, after))
    known: list[int] = []
    place = cache(partial(_place, known))
    numbers, before = [], offsets.offsets[0]
    for each in changes:
        cuts = [2**BITS - second for second, _ in each] or [0]
        found = place((before, *(after for _, after in each)))
        numbers.append([(found << BITS) + cuts[0], *cuts[1:]])
        before = each[-1][1] if each else before
    return Cells(first, width, tuple(zip_longest(*numbers, fillvalue=0)), tuple(known))


def _first(offsets: Offsets) -> int:
    """Return a second before the first change: all earlier times have its offset."""
    return offsets.at[0] - 1


def _place(known: list[int], run: tuple[int, ...]) -> int:
    """Return where offsets stand one after the other in `known`, which gets them when they do not yet."""
    places = range(len(known) - len(run) + 1)
    found = next((place for place in places if tuple(known[place : place + len(run)]) == run), None)
    if found is None:
        found = len(known)
        known += run
    return found


def _repeated(offsets: Offsets, micros: str) -> str:
    """Return SQL for a time at which the offset is the same, before the end of the first cycle."""
    if offsets.cycle is None:
        return micros
    begin, length = offsets.cycle * SECOND, CYCLE * SECOND
    return f"case when {micros} >= {begin} then {begin} + ({micros} - {begin}) % {length} else {micros} end"


def _within_calendar_sql(given: str, micros: str, less: int = 0) -> str:
    clamped = f"greatest(least({micros}, {LAST_MICROS}) - {less}, {FIRST_MICROS})"
    # `greatest` and `least` ignore null.
    return f"case when {given} is null then null else {clamped} end"
