r"""Regular expressions that Java, which validates records, and Python, which checks rules, read and run the same.

The two agree on characters, classes that are spelled out, groups, alternatives, quantifiers, `.`, `^` and `$` (with
Java's UNIX_LINES). They differ on `\d`, `\w`, `\s` and `\b` outside ASCII, on classes within classes, and on flags.
Both backtrack. A pattern that may take too many steps for the longest text of its column, or that recurses deeply, is
refused: whoever may write to the topic could stream texts that hold up the stream.

`most_steps` bounds the steps from the pattern's parts. An engine that fails has tried every way in which the pattern
can read a beginning of the text, one character after the other. What comes next decides between two ways whose next
characters differ, so only ways that continue with the same characters multiply: `[a-z]+;` can end in one way,
`[a-z]+x` in as many as there are characters. The bound is never too low, and often too high.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf, isqrt, log2
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from include.declare.yaml_declarations import shown

SHARED = r"""
      \\[][\\^$.|?*+(){}/\-]               # a character of the syntax, escaped
    | \[\^?(?:[^][\\&^]|\\[][\\^&-])+\]    # a class that is spelled out
    | \((?!\?) | \(\?[:=!]                 # a group, or a look-ahead
    | \)
    | \{\d+(?:,\d*)?\}
    | [^\\[\](){}]
"""
PORTABLE = re.compile(f"(?:{SHARED})*", re.VERBOSE)
ASCII_CLASSES = re.compile(rf"(?:{SHARED}|\\[dws]|\[\^?(?:[^][\\&^]|\\[][\\^&dws.-])+\])*", re.VERBOSE)
r"""Also `\d`, `\w`, `\s`, for a pattern that Java alone evaluates, where they are ASCII."""
UNBOUNDED_GROUP = re.compile(r"(?<!\\)\)(?:[*+]|\{\d+,\})(?!\+)")
DEEPEST = 1_000
"""Java recurses once for each repetition of a group; 5,000 overflow the stack of a thread."""
DEFAULT_STRING_BYTES = 65_536
"""The longest text of a column that declares no maxLength."""
ALWAYS_ALLOWED = 20_000_000
"""Steps that take a fraction of a second."""
QUADRATIC = 5
"""Steps for each square of a text's length: `.*name`, with one unbounded quantifier and without ^, takes up to 5."""
MOST_STEPS = 22_000_000_000
"""Java takes seconds for them, and only for a text of 65,536 characters that was made for the pattern."""
QUANTIFIER = re.compile(r"[*+?]\+?|\{\d+(?:,\d*)?\}\+?")
SIGNS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|[()]", re.DOTALL)
"""Parentheses, and what may hide one: an escape, or a class, in which a `]` that comes first is a character."""
Chars = frozenset[int]
NOTHING: Chars = frozenset()
EVERYTHING: Chars = frozenset(range(129))
"""The ASCII characters; 128 represents all others."""
CATEGORIES = {
    op.CATEGORY_DIGIT: frozenset(map(ord, "0123456789")),
    op.CATEGORY_SPACE: frozenset(map(ord, " \t\n\r\f\v")),
    op.CATEGORY_WORD: frozenset(n for n in range(128) if chr(n).isalnum() or n == ord("_")),
}
SINGLE = (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)
REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
LOOKS = (op.ASSERT, op.ASSERT_NOT)


class PatternPart(NamedTuple):
    """What a part of a pattern reads from one place of a text on, at most.

    `alive`: the ways that have read the same characters and are inside of it. `ends`: the ways that have ended, at any
    place, and can continue; `ends_here`: those that ended at one place. `longest`: the characters that it reads.
    `lead`: the single characters that it begins with. `looks`: it looks ahead, where another part reads as well.
    """

    first: Chars
    is_empty: bool
    alive: float
    ends: float
    ends_here: float
    longest: float
    lead: tuple[Chars, ...] = ()
    looks: bool = False

    @property
    def at_once(self) -> float:
        """How many ways can be inside of it that began at different places: the next begins with `first` again."""
        lead = self.lead
        return self.longest / (next((n for n in range(1, len(lead)) if lead[0] & lead[n]), len(lead)) or 1) + bool(lead)


EMPTY = PatternPart(NOTHING, True, 0, 1, 1, 0)


@lru_cache(maxsize=4096)
def pattern_fault(pattern: str, *, java_only: bool = False, longest: int = DEFAULT_STRING_BYTES) -> str | None:
    r"""Return why a pattern is refused, and how to write it instead; None when it can be used.

    `longest` is the length of the longest text. `java_only`: Python never evaluates the pattern, so that `\d`, `\w`
    and `\s` have one meaning.
    """
    if (ASCII_CLASSES if java_only else PORTABLE).fullmatch(pattern) is None:
        allowed = r"\d, \w, \s, " if java_only else ""
        without = "" if java_only else r" (no \d, \w, \s, \b)"
        why = f"only plain characters, {allowed}classes like [0-9]{without}, groups and quantifiers"
        return f"{shown(pattern)}: {why} mean the same in Java and Python"
    if UNBOUNDED_GROUP.search(pattern):
        why = f"{shown(pattern)} repeats a group without bound; Java recurses there, and a long text ends the driver"
        return f"{why}: give it an upper bound, {{0,99}}, or make it possessive, )*+"
    return time_fault(pattern, longest=longest, deepest=DEEPEST)


@lru_cache(maxsize=4096)
def time_fault(pattern: str, *, longest: int = DEFAULT_STRING_BYTES, deepest: float = inf) -> str | None:
    """Return why a pattern that need not be portable is refused: it is none, or takes too long."""
    try:
        tree = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{shown(pattern)} is not a regular expression: {error}"
    if _depth(tree) > deepest:
        why = f"repeats groups {_depth(tree):,} times; Java recurses there, at most {deepest:,} times"
        return f"{shown(pattern)} {why}: give them lower bounds, or make them possessive, {{0,9999}}+"
    return None if _is_quick(tree, longest) else _too_slow(pattern, longest)


def most_steps(tree: Iterable[Any], length: int) -> float:
    """Return a bound of the steps for a text of `length` characters; infinity where there is none."""
    items = _without_optional_end(tree)
    if _begins_at_start(items):
        whole = _sequence(items, NOTHING, length)
        return min(length, 1 + whole.longest) * (1 + whole.alive) + 1
    # Without ^ a match is tried at each character, as after a repetition of any.
    whole = _sequence([(op.MAX_REPEAT, (0, op.MAXREPEAT, [(op.ANY, None)])), *items], NOTHING, length)
    return length * whole.alive + 1


def _sequence(items: Sequence[Any], follow: Chars, length: float) -> PatternPart:
    """Return what items that follow each other read; `follow`: the characters that can come after them."""
    whole = EMPTY
    for kind, value in reversed(items):
        part = _part(kind, value, whole.first | follow if whole.is_empty else whole.first, length)
        whole = _then(part, whole)
    return whole


def _then(one: PatternPart, other: PatternPart) -> PatternPart:
    reading = min(one.ends, _times(other.at_once, one.ends_here))
    is_decided = one.ends <= 1 and not one.looks
    return PatternPart(
        one.first | other.first if one.is_empty else one.first,
        one.is_empty and other.is_empty,
        max(one.alive, other.alive) if is_decided else one.alive + _times(reading, other.alive),
        _times(one.ends, other.ends),
        _times(one.ends, other.ends_here),
        one.longest + other.longest,
        one.lead + other.lead if one.longest == len(one.lead) and one.alive <= 1 else one.lead,
        one.looks or other.looks,
    )


def _part(kind: Any, value: Any, follow: Chars, length: float) -> PatternPart:
    if kind in SINGLE:
        chars = char_set(kind, value)
        return PatternPart(chars, False, 1, 1, 1, 1, (chars,))
    if kind in REPEATS:
        return _repeat(kind, value, follow, length)
    if kind is op.AT:
        return EMPTY
    if kind is op.SUBPATTERN:
        return _sequence(value[3], follow, length)
    if kind is op.BRANCH:
        return _branch([_sequence(each, follow, length) for each in value[1]], follow)
    if kind in LOOKS:
        found = _sequence(value[1], NOTHING, length)
        return EMPTY._replace(first=found.first, alive=found.alive, longest=found.longest, looks=True)
    return PatternPart(EVERYTHING, True, inf, inf, inf, inf)


def _branch(parts: Sequence[PatternPart], follow: Chars) -> PatternPart:
    """Return what alternatives read: the next character excludes those that cannot begin with it."""
    starts = [part.first | follow if part.is_empty else part.first for part in parts]
    possible = [[part for part, first in zip(parts, starts, strict=True) if char in first] for char in EVERYTHING]

    def most(figures: Iterable[Iterable[float]]) -> float:
        return max(map(sum, figures))

    return PatternPart(
        frozenset().union(*(part.first for part in parts)),
        any(part.is_empty for part in parts),
        most([part.alive for part in each] for each in possible),
        most([part.ends for part in each] for each in possible),
        most([part.ends_here for part in each] for each in possible),
        max(part.longest for part in parts),
        looks=any(part.looks for part in parts),
    )


def _repeat(kind: Any, value: Any, follow: Chars, length: float) -> PatternPart:
    """Return what a repetition reads; `times`: how often a text of this length can repeat it."""
    least, most, body = value
    times = min(inf if most is op.MAXREPEAT else int(most), length)
    alone = _sequence(body, NOTHING, length)
    part = _sequence(body, alone.first | follow if times > 1 else follow, length)
    is_ended = not alone.first & follow or least == most
    if part.ends <= 1 and not (part.is_empty and times > 1):
        ends = 1 if is_ended else times - min(least, times) + 1
        found = PatternPart(part.first, least == 0 or part.is_empty, part.alive, ends, 1, _times(times, part.longest))
    else:
        ends = _powers(part.ends, times) + (least == 0)
        alive = _times(_powers(part.ends, times - 1) + 1, part.alive)
        found = PatternPart(part.first, least == 0 or part.is_empty, alive, ends, ends, _times(times, part.longest))
    if part.looks:
        found = found._replace(alive=_times(times, found.alive), looks=True)
    if kind is op.POSSESSIVE_REPEAT:
        # Each repetition begins once, and none is tried again.
        found = found._replace(alive=min(found.alive, _times(times, alone.alive)), ends=1, ends_here=1)
    return found


def _powers(base: float, times: float) -> float:
    """Return the sum of the first powers, infinity where it is too large to matter."""
    if base <= 1 or times < 1:
        return _times(base, times)
    if base * times > MOST_STEPS or times * log2(base) > 64:
        return inf
    return sum(base**n for n in range(1, int(times) + 1))


def _times(one: float, other: float) -> float:
    return one * other if one and other else 0


def _without_optional_end(items: Iterable[Any]) -> list[Any]:
    """Return the items without characters that may be missing at the end: where these begin, the text matches."""
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
    return items


def _begins_at_start(items: Sequence[Any]) -> bool:
    """Whether the items match at the start of a text only."""
    if not items:
        return False
    kind, value = items[0]
    if kind is op.SUBPATTERN:
        return _begins_at_start(value[3])
    if kind is op.BRANCH:
        return all(_begins_at_start(each) for each in value[1])
    return bool(kind is op.AT and value is op.AT_BEGINNING)


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


def _is_quick(tree: Any, longest: int) -> bool:
    """Whether a text of n characters takes at most the steps that are always allowed, or QUADRATIC * n²."""
    medium = min(longest, isqrt(ALWAYS_ALLOWED // QUADRATIC))
    steps = most_steps(tree, longest)
    is_allowed = steps <= min(QUADRATIC * longest**2, MOST_STEPS) and most_steps(tree, medium) <= ALWAYS_ALLOWED
    return steps <= ALWAYS_ALLOWED or is_allowed


def _too_slow(pattern: str, longest: int) -> str:
    part = next((part for part in _groups(pattern) if _is_slow_alone(part, longest)), pattern)
    where = "" if part == pattern else f"{shown(part)} in "
    return (
        f"{where}{shown(pattern)} can match in so many ways that a text of up to {longest:,} characters "
        "holds up the stream: "
        "begin each repeated group with a character that the rest of it cannot match, as in (-[a-z]+){0,99}; join "
        "quantifiers that can match the same characters; begin with ^; or declare a shorter maxLength"
    )


def _is_slow_alone(part: str, longest: int) -> bool:
    """Whether a group takes too long; one that names another group, or sets flags, is no pattern by itself."""
    try:
        return not _is_quick(_parser.parse(f"^{part}$"), longest)
    except re.error:
        return False


def _groups(pattern: str) -> Iterator[str]:
    """Yield the groups of a pattern with their quantifiers, inner ones first."""
    opened = list[int]()
    for sign in SIGNS.finditer(pattern):
        if sign[0] == "(":
            opened.append(sign.start())
        elif sign[0] == ")" and opened:
            times = QUANTIFIER.match(pattern, sign.end())
            yield pattern[opened.pop() : times.end() if times else sign.end()]


def _depth(items: Any) -> float:
    """Return how deep Java recurses in the groups of a sequence at most."""
    return sum(_item_depth(kind, value) for kind, value in items)


def _item_depth(kind: Any, value: Any) -> float:
    inner = max((_depth(part) for part in _parts_of(kind, value)), default=0)
    if kind not in REPEATS:
        return inner
    is_group = any(each not in SINGLE for each, _ in value[2])
    times = inf if value[1] is op.MAXREPEAT else int(value[1])
    return times * (1 + inner) if is_group and kind is not op.POSSESSIVE_REPEAT else inner


def _parts_of(kind: Any, value: Any) -> Sequence[Any]:
    if kind in REPEATS:
        return [value[2]]
    if kind is op.SUBPATTERN:
        return [value[3]]
    if kind is op.BRANCH:
        return list(value[1])
    return [value[1]] if kind in LOOKS else []
