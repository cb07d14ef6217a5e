"""A time zone's offsets as an SQL expression that looks them up in constant lists, in Spark and in DuckDB.

Time is cut into *cells* of equal length. A cell's number is a place in the list of offsets, and below it a count of
seconds that overflows into the place at the second of the cell at which the offset changes: (number + second) >> BITS
is the place of the offset that holds. Zones that change twice in a cell have a second number for it, and so on. An
expression that compared a time with each change in turn would cost a hundred times as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest

from include.declare.time_zones import CYCLE, FIRST_MICROS, LAST_MICROS, SECOND, Offsets

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
    return _within_calendar(moment, f"{moment} + {offset_sql(offsets, moment, dialect)}", less)


def moment_sql(offsets: Offsets, local: str, dialect: Dialect) -> str:
    """Return SQL for the moment of a local time, both in microseconds; within the calendar."""
    return _within_calendar(local, f"{local} - {offset_sql(offsets, local, dialect)}")


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


def _within_calendar(given: str, micros: str, less: int = 0) -> str:
    clamped = f"greatest(least({micros}, {LAST_MICROS}) - {less}, {FIRST_MICROS})"
    # `greatest` and `least` ignore null.
    return f"case when {given} is null then null else {clamped} end"
