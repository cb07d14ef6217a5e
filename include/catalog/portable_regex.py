r"""Regular expressions that Java, which validates records, and Python, which checks rules, read and run the same.

The two agree on characters, classes that are spelled out, groups, alternatives, quantifiers, `.`, `^` and `$` (with
Java's UNIX_LINES). They differ on `\d`, `\w`, `\s` and `\b` outside ASCII, on classes within classes, and on flags.
A pattern that can backtrack with the third power of a text, or that recurses deeply, is refused: whoever may write to
the topic could stop the stream with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from include.catalog.yaml_declarations import shown

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
FEW = 9
"""Up to this many repetitions of an ambiguous item are harmless."""
MANY = 255
"""A quantifier with a greater bound counts as unbounded: three of them try 16 million ways."""
DEEPEST = 1_000
"""Java recurses once for each repetition of a group; 5,000 overflow the stack of a thread."""
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


def pattern_fault(pattern: str, *, java_only: bool = False) -> str | None:
    r"""Return why a pattern is refused, and how to write it instead; None when it can be used.

    `java_only`: Python never evaluates it, so that `\d`, `\w` and `\s` have one meaning.
    """
    if (ASCII_CLASSES if java_only else PORTABLE).fullmatch(pattern) is None:
        allowed = r"\d, \w, \s, " if java_only else ""
        without = "" if java_only else r" (no \d, \w, \s, \b)"
        why = f"only plain characters, {allowed}classes like [0-9]{without}, groups and quantifiers"
        return f"{shown(pattern)}: {why} mean the same in Java and Python"
    try:
        tree = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{shown(pattern)} is not a regular expression: {error}"
    if UNBOUNDED_GROUP.search(pattern):
        why = f"{shown(pattern)} repeats a group without bound; Java recurses there, and a long text ends the driver"
        return f"{why}: give it an upper bound, {{0,99}}, or make it possessive, )*+"
    if _depth(tree) > DEEPEST:
        why = f"repeats groups {_depth(tree):,} times; Java recurses there, at most {DEEPEST:,} times"
        return f"{shown(pattern)} {why}: give them lower bounds, or make them possessive, {{0,9999}}+"
    return next((f"{shown(pattern)} {why}" for why in (*_ambiguous(tree), *_ambiguous_chain(list(_flat(tree))))), None)


def _depth(items: Any) -> int:
    """Return how deep Java recurses in the groups of a sequence at most."""
    return sum(_item_depth(kind, value) for kind, value in items)


def _item_depth(kind: Any, value: Any) -> int:
    inner = max((_depth(part) for part in _parts(kind, value)), default=0)
    if kind not in REPEATS:
        return inner
    is_group = any(each not in SINGLE for each, _ in value[2])
    return int(value[1]) * (1 + inner) if is_group and kind is not op.POSSESSIVE_REPEAT else inner


def _ambiguous_chain(items: Sequence[Any]) -> Iterator[str]:
    """Yield a reason when three quantifiers of a sequence can match one text, whatever is between them.

    A pattern that does not begin with ^ is tried at each place of the text, as if it began with a quantifier. What
    the sequence ends with cannot fail, so it is not tried again.
    """
    length, shared = (0, EVERYTHING) if items and items[0] == (op.AT, op.AT_BEGINNING) else (1, EVERYTHING)
    for kind, value in items[: -1 if items and items[-1][0] in REPEATS else None]:
        chars = _chars([(kind, value)])
        if kind in REPEATS[:2] and value[1] > MANY:
            length, shared = (length + 1, shared & chars) if length and shared & chars else (1, chars)
        elif kind not in (op.ASSERT, op.ASSERT_NOT) and not shared & chars:
            length = 0
        if length == 3:
            yield (
                "has three unbounded quantifiers (where it may begin counts as one, without ^) that can share a text, "
                "which backtracks with its third power: separate them by a character that none of them matches"
            )
            return


def _ambiguous(items: Any) -> Iterator[str]:
    """Yield where one text can match in so many ways that a mismatch is found after trying them all."""
    for (one, one_value), (other, other_value) in pairwise(_flat(items)):
        both = _is_unbounded(one, one_value) and _is_unbounded(other, other_value)
        if both and _chars(one_value[2]) & _chars(other_value[2]):
            yield "has two unbounded quantifiers side by side for the same characters: join them into one"
    for kind, value in items:
        if kind in REPEATS:
            yield from _ambiguous_repeat(value[1], value[2], kind is op.POSSESSIVE_REPEAT)
        for part in _parts(kind, value):
            yield from _ambiguous(part)


def _ambiguous_repeat(most: Any, body: Any, is_possessive: bool) -> Iterator[str]:
    flat = list(_flat(body))
    inner = [value for kind, value in _all_items(flat) if kind in REPEATS[:2] and value[0] != value[1]]
    if not is_possessive and most > 1 and inner and (most > FEW or any(value[1] > FEW for value in inner)):
        first, rest = flat[0], flat[1:]
        if first[0] not in (op.LITERAL, op.IN) or _chars([first]) & _chars(rest):
            yield (
                "has a quantifier inside a repeated group, which can backtrack without bound: begin the group with a "
                "character that the rest of it cannot match, as in (-[a-z]+){0,99}, or make it possessive, )*+"
            )
    if not is_possessive and most > FEW:
        for kind, value in _all_items(flat):
            if kind is op.BRANCH and any(not a or not b or _first(a) & _first(b) for a, b in combinations(value[1], 2)):
                yield (
                    "repeats alternatives that can begin with the same character, which can backtrack without bound: "
                    "let each alternative begin with another character, or make the group possessive, )*+"
                )


def _is_unbounded(kind: Any, value: Any) -> bool:
    return kind in REPEATS[:2] and value[1] is op.MAXREPEAT


def _parts(kind: Any, value: Any) -> Sequence[Any]:
    """Return the sequences that an item consists of."""
    if kind in REPEATS:
        return [value[2]]
    if kind is op.SUBPATTERN:
        return [value[3]]
    if kind is op.BRANCH:
        return list(value[1])
    return [value[1]] if kind in (op.ASSERT, op.ASSERT_NOT) else []


def _flat(items: Any) -> Iterator[Any]:
    """Yield items with groups replaced by what they hold."""
    for kind, value in items:
        if kind is op.SUBPATTERN:
            yield from _flat(value[3])
        else:
            yield kind, value


def _all_items(items: Any) -> Iterator[Any]:
    for kind, value in items:
        yield kind, value
        for part in _parts(kind, value):
            yield from _all_items(part)


def _chars(items: Any) -> Chars:
    """Return all characters that items can match."""
    return frozenset().union(*(_char(kind, value) for kind, value in _all_items(items)))


def _first(items: Any) -> Chars:
    """Return the characters that a match can begin with; all of them when an item can be empty."""
    kind, value = next(iter(_flat(items)))
    if kind in SINGLE:
        return _char(kind, value)
    if kind in REPEATS and value[0] > 0:
        return _first(value[2])
    return EVERYTHING


def _char(kind: Any, value: Any) -> Chars:
    """Return the characters that a single item matches; none for an item that contains others."""
    if kind is op.LITERAL:
        return frozenset([min(value, 128)])
    if kind is op.NOT_LITERAL:
        return EVERYTHING - {value}
    if kind is op.ANY:
        return EVERYTHING
    if kind is not op.IN:
        return frozenset()
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
