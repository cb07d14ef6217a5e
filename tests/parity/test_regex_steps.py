"""What a pattern may cost: Java's and Python's steps stay below the bound by which patterns are accepted.

`HEADRACE_PATTERNS` is the number of generated patterns (150 by default; 200,000 take an hour or more).
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]
from types import FrameType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from include.declare.portable_regex import PORTABLE, most_steps, pattern_fault
from spark_jobs.contract.compiled_rules import UNIX_LINES
from spark_jobs.contract.java_function import new_instance

PATTERNS = int(os.environ.get("HEADRACE_PATTERNS", "150"))
LONGEST = 10_000
ENDED = 30_000_000
"""Java's match is ended after so many characters: below, the bound can be compared with the count."""
TRIES = 4
"""Java reads a character for each alternative of a position, a few more for each that it optimises."""
SECONDS = 20.0
SINGLES = ["a", "b", "c", "[ab]", "[^a]", ".", "[a-c]", "-", "[^-]", "\\."]
COUNTS = [*("?", "*", "+", "{2}", "{3}", "{0,3}", "{1,2}", "{2,5}", "{0,5}", "{0,9}", "{0,12}", "{1,40}", "{0,255}")]
UNITS = ["a", "b", "c", "-", ".", "ab", "aab", "abc", "a-", "ab-", "ba", "aaa.", "cab", "\n"]


def pattern_of(rng: random.Random, depth: int = 2) -> str:
    """Return a pattern of the accepted subset: nested repeats, alternatives, look-aheads, anchors."""
    parts = [item_of(rng, depth) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    return "".join(parts)


def item_of(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.45:
        return rng.choice(SINGLES) + count_of(rng, 0.55)
    if kind < 0.48:
        return rng.choice(["(?=", "(?!"]) + pattern_of(rng, depth - 1) + ")"
    inner = "|".join(pattern_of(rng, depth - 1) for _ in range(rng.choice([1, 1, 1, 2, 3])))
    return rng.choice(["(", "(?:"]) + inner + ")" + count_of(rng, 0.8)


def count_of(rng: random.Random, share: float) -> str:
    if rng.random() > share:
        return ""
    return rng.choice(COUNTS) + (rng.choice(["+", "?"]) if rng.random() < 0.1 else "")


def whole_pattern(rng: random.Random) -> str:
    return rng.choice(["", "^"]) + pattern_of(rng) + rng.choice(["", "$", "d", "$"])


def attacks(rng: random.Random, pattern: str, number: int) -> Iterator[str]:
    """Yield texts that repeat a few characters of the pattern, and end in one that it does not expect."""
    units = [unit for unit in UNITS if set(unit) & set(pattern)] or UNITS
    length = rng.choice([30, 60, 250, 1000, LONGEST])
    for _ in range(number):
        first, then = rng.choice(units), rng.choice(units)
        begun = first * (length // len(first))
        cut = rng.choice([0, 0, length // 2])
        text = begun[:cut] + then * ((length - cut) // len(then)) if cut else begun
        yield rng.choice(["", "", "b", "-"]) + text + rng.choice(["", "~", "\n", "b~"])


@pytest.fixture(scope="module")
def counted(spark: SparkSession) -> Any:
    """Return a text that counts what Java reads of it."""
    return new_instance(spark, Path(__file__).with_name("CountedText.java"))


@contextmanager
def within_seconds(what: str) -> Iterator[None]:
    """Fail when the block takes longer: Python's engine looks for signals."""

    def ended(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{what} took more than {SECONDS:.0f} s")

    before = signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_steps_of_java_stay_below_the_bound(counted: Any) -> None:
    """Of accepted patterns and refused ones: below the bound is where a record cannot hold up the stream."""
    rng, compared, refused = random.Random(7), 0, 0
    while compared < PATTERNS:
        pattern = whole_pattern(rng)
        if not is_read(pattern):
            continue
        compared += 1
        texts = list(attacks(rng, pattern, 5))
        longest = max(map(len, texts))
        bound = TRIES * branches(pattern) * (most_steps(_parser.parse(pattern), longest) + len(pattern) + longest)
        refused += bound > ENDED
        for text in texts if bound <= ENDED else ():
            read = abs(counted.steps(UNIX_LINES + pattern, text, ENDED))
            assert read <= bound, (pattern, text[:50], len(text), read, bound)
    assert PATTERNS / 10 < refused < PATTERNS * 9 / 10


def test_accepted_patterns_have_the_same_verdict_in_bounded_time(counted: Any) -> None:
    rng, matches, accepted = random.Random(11), 0, 0
    while accepted < PATTERNS / 3:
        pattern = whole_pattern(rng)
        if pattern_fault(pattern, longest=LONGEST) is not None:
            continue
        accepted += 1
        for text in attacks(rng, pattern, 3):
            found = counted.steps(UNIX_LINES + pattern, text, 10**12)
            with within_seconds(f"{pattern!r} with {len(text)} characters"):
                verdict = re.search(pattern, text) is not None
            assert verdict == (found < 0), (pattern, text[:50], len(text))
            matches += verdict
    assert PATTERNS / 10 < matches < PATTERNS * 9 / 10


def is_read(pattern: str) -> bool:
    try:
        return PORTABLE.fullmatch(pattern) is not None and bool(_parser.parse(pattern))
    except re.error:
        return False


def branches(pattern: str) -> int:
    """Return how many tries can fail at one place: each alternative and each optional item is one."""
    return 1 + len(re.findall(r"[|?*]|\{0", pattern))
