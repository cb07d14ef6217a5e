"""The position automaton of a regular expression (Glushkov): what can follow each character or class, in how many ways.

Long repetitions become cycles, so that it stays small.

How many steps a backtracking engine takes at most for a regular expression and a text of a given length.

An engine that fails has tried every way in which the pattern can read a beginning of the text, one character after the
other. The ways are counted on the pattern's position automaton: each single character or class of the pattern is a
position, and a way is a sequence of positions. Which positions can be alive together after some text is found by the
subset construction; how many ways can end at each of them is bounded from the graph of (subset, position) pairs:

- ways multiply without limit where two of them meet in a cycle, which is exponential backtracking;
- ways that enter a cycle from outside while others are in it add up, once for each character of the text;
- everywhere else a pair has as many ways as its predecessors together.

A try that fails at once costs nothing extra, unless one character can be tried in several ways at one place.
The bound is never too low. It can be too high: a long repetition counts as one without end, but for the length of the
text that it matches at most, and a possessive group counts as an ordinary one, or as if it could end anywhere.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeVar

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


Subset = frozenset[int]
Pair = tuple[Subset, int]
Node = TypeVar("Node")


class _Entered(NamedTuple):
    """How many ways can enter a component in all."""

    component: int
    ways: float


def most_steps(tree: Sequence[Any], length: int) -> float:
    """Return a bound of the steps for a text of `length` characters; infinity where there is none."""
    items = list(without_optional_end(tree))
    if begins_at_start(items):
        length = int(min(length, 1 + longest_match(items)))
    ordinary = _counted_steps(items, length, possessive=False)
    is_possessive = any(kind is op.POSSESSIVE_REPEAT for kind, _ in all_items(items))
    return min(ordinary, _counted_steps(items, length, possessive=True)) if is_possessive else ordinary


def _counted_steps(items: Sequence[Any], length: int, *, possessive: bool) -> float:
    for few in (FEW, 2, 1):
        automaton = PositionAutomaton(few, possessive)
        try:
            return _Ways(automaton, _begun(automaton, items), length).steps()
        except TooLarge:
            continue
    return math.inf


def _begun(automaton: PositionAutomaton, items: Sequence[Any]) -> Ways:
    """Return where a match begins; without ^ it is tried at each character, as by a cycle over all of them."""
    if begins_at_start(items):
        return automaton.sequence(items).first
    scan = automaton.position(EVERYTHING)
    automaton.stay[scan] = math.inf
    automaton.follow[scan] = automaton.sequence(items).first + Counter({scan: 1})
    return automaton.follow[scan]


class _Ways:
    """The (subset, position) pairs of an automaton, and how many ways of reading a text can end at each."""

    def __init__(self, automaton: PositionAutomaton, first: Ways, length: int) -> None:
        self._automaton, self._length = automaton, length
        self._incoming: dict[Pair, list[tuple[Subset, Ways]]] = defaultdict(list)
        self._outgoing: dict[Pair, set[Pair]] = {}
        self._started: dict[Pair, int] = {}
        self._next: dict[Subset, set[Subset]] = {}
        self._letters = _letters(automaton.chars)
        self._at_once = _repeated(first)
        self._build(first)

    def steps(self) -> float:
        """Return the steps for the whole text: the ways that are alive after each of its characters."""
        ways, tries = self._bounds(), [1 + _repeated(follow) for follow in self._automaton.follow]
        alive = (sum(ways[subset, position] * tries[position] for position in subset) for subset in self._next)
        return self._length * max(alive, default=0.0) + 1 + self._at_once

    def _build(self, first: Ways) -> None:
        waiting = []
        for letter in self._letters:
            begun = {position: ways for position, ways in first.items() if letter in self._automaton.chars[position]}
            subset = frozenset(begun)
            for position, ways in begun.items():
                self._started[subset, position] = max(ways, self._started.get((subset, position), 0))
            waiting.append(subset)
        while waiting:
            subset = waiting.pop()
            if subset in self._next:
                continue
            self._next[subset] = set()
            waiting += self._advance(subset)

    def _advance(self, subset: Subset) -> Iterator[Subset]:
        """Yield the subsets after one more character, and note from where their positions come."""
        sources: dict[int, Ways] = defaultdict(Counter)
        for position in subset:
            for to, ways in self._automaton.follow[position].items():
                sources[to][position] += ways
            self._outgoing[subset, position] = set()
        by_letter = (frozenset(to for to in sources if letter in self._automaton.chars[to]) for letter in self._letters)
        self._automaton.spend(len(sources) * len(self._letters))
        for reached in set(by_letter) - {frozenset()}:
            self._automaton.spend(sum(len(sources[to]) for to in reached))
            self._next[subset].add(reached)
            for to in reached:
                self._incoming[reached, to].append((subset, sources[to]))
                for position in sources[to]:
                    self._outgoing[subset, position].add((reached, to))
            yield reached

    def _bounds(self) -> Mapping[Pair, float]:
        """Return for each pair a bound of its ways, in the order in which ways pass through the components."""
        found: dict[Pair, float] = {}
        entered: dict[Pair, _Entered] = {}
        recurrent = {subset: n for n, part in enumerate(components(self._next)) for subset in part}
        for number, component in enumerate(reversed(list(components(self._outgoing)))):
            ways, total = self._component_bound(set(component), recurrent, found, entered)
            found.update(dict.fromkeys(component, ways))
            entered.update(dict.fromkeys(component, _Entered(number, total)))
        return found

    def _component_bound(
        self,
        component: set[Pair],
        recurrent: Mapping[Subset, int],
        found: Mapping[Pair, float],
        entered: Mapping[Pair, _Entered],
    ) -> tuple[float, float]:
        """Return how many ways can be at each pair of a component at once, and how many can enter it in all."""
        begun = float(max((self._started.get(pair, 0) for pair in component), default=0))
        added = again = 0.0
        once: dict[int, float] = {}
        for pair in component:
            for subset, sources in self._incoming[pair]:
                inside = sum(ways for p, ways in sources.items() if (subset, p) in component)
                if inside > 1:
                    return math.inf, math.inf
                ways, leaving = self._from_outside(subset, sources, component, found, entered)
                if inside:
                    added = max(added, ways)
                    once.update({number: max(total, once.get(number, 0.0)) for number, total in leaving.items()})
                else:
                    begun = max(begun, ways + sum(found[subset, p] * sources[p] for p in sources if p in self._hubs))
                if recurrent[subset] == recurrent[pair[0]]:
                    again = max(again, ways + sum(leaving.values()))
        stay = min(max(self._automaton.stay[position] for _, position in component), self._length)
        return begun + stay * added + sum(once.values()), begun + self._length * again

    @property
    def _hubs(self) -> set[int]:
        return self._automaton.hubs

    def _from_outside(
        self,
        subset: Subset,
        sources: Ways,
        component: set[Pair],
        found: Mapping[Pair, float],
        entered: Mapping[Pair, _Entered],
    ) -> tuple[float, dict[int, float]]:
        """Return the ways that come from outside with one character, and those that leave possessive repetitions."""
        ways = 0.0
        leaving: dict[int, float] = {}
        for position, number in sources.items():
            if (subset, position) in component:
                continue
            if position in self._hubs:
                component_number, total = entered[subset, position]
                leaving[component_number] = leaving.get(component_number, 0.0) + number * total
            else:
                ways += number * found[subset, position]
        return ways, leaving


def components(edges: Mapping[Node, Iterable[Node]]) -> Iterator[list[Node]]:
    """Yield the strongly connected components, each after those that it leads to: Tarjan's algorithm, with a stack."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    closed: set[Node] = set()
    for root in edges:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        path = [(root, iter(edges[root]))]
        while path:
            node, rest = path[-1]
            for to in rest:
                if to not in index:
                    index[to] = low[to] = len(index)
                    stack.append(to)
                    path.append((to, iter(edges[to])))
                    break
                if to not in closed:
                    low[node] = min(low[node], index[to])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    closed.update(component)
                    yield component


def _repeated(ways: Ways) -> int:
    """Return how often a position is tried again at one place of the text."""
    return sum(ways.values()) - len(ways)


def _letters(sets: Iterable[Chars]) -> list[int]:
    """Return one character for each class of characters that no set tells apart."""
    sets = list(dict.fromkeys(sets))
    return list({tuple(letter in chars for chars in sets): letter for letter in EVERYTHING}.values())
