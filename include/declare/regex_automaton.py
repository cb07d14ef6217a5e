"""The position automaton of a regular expression (Glushkov): what can follow each character or class, in how many ways.

`regex_steps.py` counts on it. Long repetitions become cycles, so that it stays small.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any, NamedTuple

FEW = 9
"""Up to this many repetitions are counted one by one."""
LARGEST = 64
"""And a fixed number of repetitions, up to this many positions."""
MOST_WORK = 60_000
"""Positions, pairs and links between them that are looked at: a tenth of a second."""
EVERYTHING = frozenset(range(129))
"""The ASCII characters; 128 represents all others."""
CATEGORIES = {
    op.CATEGORY_DIGIT: frozenset(map(ord, "0123456789")),
    op.CATEGORY_SPACE: frozenset(map(ord, " \t\n\r\f\v")),
    op.CATEGORY_WORD: frozenset(n for n in range(128) if chr(n).isalnum() or n == ord("_")),
}
SINGLE = (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)
REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
Chars = frozenset[int]
Ways = Counter[int]


class _Part(NamedTuple):
    """A part of the pattern: the positions that it can begin and end with, and in how many ways it can be empty."""

    first: Ways
    last: Ways
    empty: int


EMPTY = _Part(Counter(), Counter(), 1)


class TooLarge(Exception):
    """The pattern has too many positions or subsets to count, or a construct that is not regular."""


@dataclass
class PositionAutomaton:
    """The positions of a pattern. Repetitions beyond `few` are cycles; `possessive` ones are not tried again."""

    few: int
    possessive: bool
    chars: list[Chars] = field(default_factory=list)
    follow: list[Ways] = field(default_factory=list)
    stay: list[float] = field(default_factory=list)
    """For how many characters a way can stay in the outermost cycle around a position."""
    hubs: set[int] = field(default_factory=set)
    """Positions inside a possessive repetition, which a way leaves once."""
    work: int = 0

    def spend(self, work: int) -> None:
        """Count work; raises TooLarge when it is too much."""
        self.work += work
        if self.work > MOST_WORK:
            raise TooLarge

    def position(self, chars: Chars) -> int:
        """Add a position that reads one of these characters, and return its number."""
        self.spend(1)
        self.chars.append(chars)
        self.follow.append(Counter())
        self.stay.append(1)
        return len(self.chars) - 1

    def sequence(self, items: Iterable[Any]) -> _Part:
        """Add the positions of items that follow each other."""
        whole = EMPTY
        for kind, value in items:
            whole = self._then(whole, self._part(kind, value))
        return whole

    def _part(self, kind: Any, value: Any) -> _Part:
        if kind in SINGLE:
            here = Counter({self.position(char_set(kind, value)): 1})
            return _Part(here, here, 0)
        if kind in REPEATS:
            is_hub = self.possessive and kind is op.POSSESSIVE_REPEAT
            return self._possessive(value) if is_hub else self._repeat(*value)
        if kind is op.AT:
            return EMPTY if value is op.AT_BEGINNING else self._end()
        if kind is op.BRANCH:
            parts = [self.sequence(each) for each in value[1]]
            first, last = sum((part.first for part in parts), Ways()), sum((part.last for part in parts), Ways())
            return _Part(first, last, sum(part.empty for part in parts))
        inner = parts_of(kind, value)
        if not inner:
            raise TooLarge
        if kind in (op.ASSERT, op.ASSERT_NOT):
            return _Part(self.sequence(inner[0]).first, Counter(), 1)
        return self.sequence(inner[0])

    def _end(self) -> _Part:
        here = Counter({self.position(frozenset()): 1})
        return _Part(here, here, 1)

    def _then(self, one: _Part, other: _Part) -> _Part:
        self.spend(len(one.last) + len(other.first))
        self._link(one.last, other.first)
        first, last = one.first.copy(), other.last.copy()
        _add(first, other.first, one.empty)
        _add(last, one.last, other.empty)
        return _Part(first, last, one.empty * other.empty)

    def _link(self, last: Ways, first: Ways) -> None:
        self.spend(len(last) * len(first))
        for position, ways in last.items():
            _add(self.follow[position], first, ways)

    def _repeat(self, least: int, most: Any, body: Any) -> _Part:
        known = most if most is not op.MAXREPEAT else math.inf
        if known <= self.few or (self.few == FEW and least == known and known * _size(body) <= LARGEST):
            return self._copies(int(least), int(known), body)
        begun = EMPTY
        for _ in range(min(int(least), self.few)):
            begun = self._then(begun, self.sequence(body))
        return self._then(begun, self._cycle(known, body))

    def _copies(self, least: int, most: int, body: Any) -> _Part:
        rest = EMPTY
        for number in range(most, 0, -1):
            rest = self._then(self.sequence(body), rest)
            if number > least:
                rest = rest._replace(empty=rest.empty + 1)
        return rest

    def _cycle(self, most: float, body: Any) -> _Part:
        begin = len(self.chars)
        inner = self.sequence(body)
        self._link(inner.last, inner.first)
        length = most * longest_match(body)
        self.stay[begin:] = [length] * (len(self.chars) - begin)
        return inner._replace(empty=inner.empty + 1)

    def _possessive(self, value: Any) -> _Part:
        """Return a position that stays as long as any of its characters comes, from which the body is tried."""
        least, _, body = value
        hub = self.position(all_chars(body))
        self.hubs.add(hub)
        self.stay[hub] = math.inf
        inner = self.sequence(body)
        here = Counter({hub: 1})
        self.follow[hub] = here + inner.first
        return _Part(here + inner.first, here, int(least == 0 or inner.empty > 0))


def _add(ways: Ways, more: Ways, times: int) -> None:
    for position, number in more.items() if times else ():
        ways[position] += number * times


def without_optional_end(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items without characters that may be missing at the end: where these begin, the text matches."""
    items = list(items)
    while items:
        kind, value = items[-1]
        if kind is op.SUBPATTERN:
            items[-1:] = value[3]
            continue
        if kind not in REPEATS or any(each not in SINGLE for each, _ in value[2]):
            break
        items[-1:] = [(kind, (value[0], value[0], value[2]))] if value[0] else []
        if value[0]:
            break
    return iter(items)


def begins_at_start(items: Sequence[Any]) -> bool:
    """Whether the items match at the start of a text only."""
    if not items:
        return False
    kind, value = items[0]
    if kind is op.SUBPATTERN:
        return begins_at_start(value[3])
    if kind is op.BRANCH:
        return all(begins_at_start(each) for each in value[1])
    return bool(kind is op.AT and value is op.AT_BEGINNING)


def _size(items: Any) -> int:
    return sum(
        1 if kind in SINGLE else sum(map(_size, parts_of(kind, value))) * _times(kind, value) for kind, value in items
    )


def _times(kind: Any, value: Any) -> int:
    return max(1, int(value[0])) if kind in REPEATS else 1


def longest_match(items: Any) -> float:
    """Return the length of the longest text that items match."""
    return sum(_itemlongest_match(kind, value) for kind, value in items)


def _itemlongest_match(kind: Any, value: Any) -> float:
    if kind in SINGLE:
        return 1
    inner = max(map(longest_match, parts_of(kind, value)), default=0)
    if kind not in REPEATS or not inner:
        return inner
    return inner * (math.inf if value[1] is op.MAXREPEAT else int(value[1]))


def parts_of(kind: Any, value: Any) -> Sequence[Any]:
    """Return the sequences that an item consists of."""
    if kind in REPEATS:
        return [value[2]]
    if kind is op.SUBPATTERN:
        return [value[3]]
    if kind is op.BRANCH:
        return list(value[1])
    return [value[1]] if kind in (op.ASSERT, op.ASSERT_NOT) else []


def all_items(items: Any) -> Iterator[Any]:
    """Yield items and what they consist of."""
    for kind, value in items:
        yield kind, value
        for part in parts_of(kind, value):
            yield from all_items(part)


def all_chars(items: Any) -> Chars:
    """Return all characters that items can match."""
    return frozenset().union(*(char_set(kind, value) for kind, value in all_items(items) if kind in SINGLE))


def char_set(kind: Any, value: Any) -> Chars:
    """Return the characters that a single item matches."""
    if kind is op.LITERAL:
        return frozenset([min(value, 128)])
    if kind is op.NOT_LITERAL:
        return EVERYTHING - {value}
    if kind is op.ANY:
        return EVERYTHING
    found: set[int] = set()
    for each, what in value:
        if each is op.RANGE:
            found.update(range(min(what[0], 128), min(what[1], 128) + 1))
        elif each is op.CATEGORY:
            found |= CATEGORIES.get(what, EVERYTHING)
        elif each is op.LITERAL:
            found.add(min(what, 128))
    negated = value[0][0] is op.NEGATE
    return (EVERYTHING - found) | {128} if negated else frozenset(found)
