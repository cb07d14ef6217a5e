"""How many steps a backtracking engine takes at most for a regular expression and a text of a given length.

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
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeVar

from include.declare.regex_automaton import (
    EVERYTHING,
    FEW,
    Chars,
    PositionAutomaton,
    TooLarge,
    Ways,
    all_items,
    begins_at_start,
    longest_match,
    without_optional_end,
)

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
