"""Any text is a pattern that is accepted, or one that is refused with a reason."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from re import _parser  # type: ignore[attr-defined]

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from include.declare.portable_regex import most_steps, pattern_fault, time_fault
from include.declare.yaml_declarations import shown

SLOW = "[^b]*[^b]*[^b]*x"
PIECES = [
    "a*",
    "[^])]*",
    "[^]]*",
    "[]a]*",
    "[])(]*",
    "(a*a*)*",
    r"\(",
    r"\]",
    r"\)",
    "(?i)",
    "(?x)",
    "(?#(",
    "(?:",
    SLOW,
]
PIECES += [
    "(?P<n>a*)",
    "(?P=n)",
    r"\1",
    "(?(1)a|b)",
    "(?<=a)",
    "(?>",
    "# )\n",
    "[[",
    "{0,99}",
    "{2,1}",
    "{99999999999}",
]
SIGNS = st.text("[]()^$\\|*+?{}-ab]0,", max_size=30)
TEXTS = SIGNS | st.lists(st.sampled_from(PIECES) | st.sampled_from("[]()^$\\|*+?{}-ab]0,"), max_size=12).map("".join)


@pytest.mark.parametrize("fault", [pattern_fault, time_fault])
@settings(max_examples=150, deadline=None)
@given(pattern=TEXTS)
@example(pattern="[^])]*[^])]*[^])]*x")
@example(pattern="[])]*[])]*[])]*x")
@example(pattern=r"(a*)(\1a*a*a*)*x")
@example(pattern="(?x)a*a*a*a*x # )")
@example(pattern="((?i:a*a*a*a*)x)")
@example(pattern="a*a*a*a*x(?P<n>a*a*)(?P=n)")
def test_any_text_gets_a_verdict(fault: Callable[[str], str | None], pattern: str) -> None:
    with warnings.catch_warnings():
        # Python warns about classes that may get another meaning.
        warnings.simplefilter("ignore", FutureWarning)
        found = fault(pattern)
    assert found is None or shown(pattern) in found


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("x([^])]*[^])]*[^])]*y){0,9}", "([^])]*[^])]*[^])]*y){0,9}"),
        ("[])]([^)]*[^)]*[^)]*y)", "([^)]*[^)]*[^)]*y)"),
        (r"\[(\(a*a*a*a*y)[)]", r"(\(a*a*a*a*y)"),
    ],
)
def test_slow_group_is_named_whatever_classes_are_around_it(pattern: str, part: str) -> None:
    found = time_fault(pattern)
    assert found is not None
    assert found.startswith(f"{shown(part)} in ")


@pytest.mark.parametrize("pattern", ["^([ab](?=[^a]*))*$", "(?=[^a]{0,3}(?![a-c]+))$", "(?=[a-c]+)$"])
def test_look_ahead_reads_the_rest_at_each_place(pattern: str) -> None:
    assert most_steps(_parser.parse(pattern), 1_000) >= 1_000**2 / 2


@pytest.mark.parametrize("pattern", ["(a{0}b*)*x", "(a*){0}x", "(?:(?:a*){0,9}){0}x*"])
def test_bound_is_a_number_whatever_is_repeated(pattern: str) -> None:
    assert most_steps(_parser.parse(pattern), 1_000) >= 1_000
