r"""Regular expressions that Java, which validates records, and Python, which checks rules, read and run the same.

The two agree on characters, classes that are spelled out, groups, alternatives, quantifiers, `.`, `^` and `$` (with
Java's UNIX_LINES). They differ on `\d`, `\w`, `\s` and `\b` outside ASCII, on classes within classes, and on flags.
Both backtrack. A pattern that may take too many steps for the longest text of its column (`regex_automaton.py`), or
that recurses deeply, is refused: whoever may write to the topic could stop the stream with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from math import inf, isqrt
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from include.declare.regex_automaton import REPEATS, SINGLE, most_steps, parts_of
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
"""Steps for each square of a text's length: `.*name`, with one unbounded quantifier and without ^, takes up to 4."""
MOST_STEPS = 22_000_000_000
"""Java takes seconds for them, and only for a text of 65,536 characters that was made for the pattern."""
QUANTIFIER = re.compile(r"[*+?]\+?|\{\d+(?:,\d*)?\}\+?")
SIGNS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|[()]", re.DOTALL)
"""Parentheses, and what may hide one: an escape, or a class, in which a `]` that comes first is a character."""


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
    inner = max((_depth(part) for part in parts_of(kind, value)), default=0)
    if kind not in REPEATS:
        return inner
    is_group = any(each not in SINGLE for each, _ in value[2])
    times = inf if value[1] is op.MAXREPEAT else int(value[1])
    return times * (1 + inner) if is_group and kind is not op.POSSESSIVE_REPEAT else inner
