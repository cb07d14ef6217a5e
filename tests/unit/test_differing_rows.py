"""Rows of two views are compared as sets with repetitions, doubles by their distance."""

from __future__ import annotations

import pytest

from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.history.row_differences import find_differing_rows

COLUMNS = "(key, tags, total, mean)"
Row = tuple[str, str, str]
BASE: Row = ("'a'", "1.5", "null")


def differing(one: list[Row], other: list[Row], kind: str = "double") -> list[tuple[str, bool, bool]]:
    with duckdb_session() as duck:
        for name, rows in (("one", one), ("other", other)):
            values = ", ".join(
                f"({key}, map {{'x': [1]}}, {total}::{kind}, {mean}::{kind})" for key, total, mean in rows
            )
            filled = f"select * from (values {values or '(null, null, null, null)'}) as t {COLUMNS}"
            duck.view_query(name, filled if rows else f"{filled} limit 0")
        find_differing_rows(duck, "one", "other", ["key"])
        return [(key, surplus, missing) for key, surplus, missing in duck.rows("select * from differing order by all")]


@pytest.mark.parametrize(
    ("total", "other", "equal"),
    [
        ("0.1 + 0.2", "0.3", True),
        ("-0.0", "0.0", True),
        ("1e300", "1.0000000001e300", False),
        # A turnover of a trillion that differs by ten.
        ("1e12", "1e12 + 10", False),
        ("1e12", "1e12 + 0.1", True),
        # The first twelve digits of these differ, and they are nearly equal.
        ("1.000000000005", "1.0000000000049999", True),
        ("1e-300", "1.1e-300", False),
        ("'nan'", "'nan'", True),
        ("'nan'", "1.0", False),
        ("'infinity'", "1.0", False),
        ("'infinity'", "'-infinity'", False),
        ("1.7e308", "-1.7e308", False),
        ("null", "0.0", False),
        ("null", "null", True),
    ],
)
def test_doubles_are_compared_by_their_distance(total: str, other: str, equal: bool) -> None:
    found = differing([("'a'", total, "2.0")], [("'a'", other, "2.0")])
    assert found == ([] if equal else [("a", True, True)])


def test_rows_of_one_view_only_are_surplus_or_missing_as_often_as_they_are() -> None:
    assert differing([BASE, BASE], [BASE]) == [("a", True, False)]
    assert differing([], [BASE, BASE]) == [("a", False, True)] * 2
    assert differing([BASE], [("'b'", "1.5", "null")]) == [("a", True, False), ("b", False, True)]
    assert differing([BASE, ("null", "1.0", "2.0")], [("null", "1.0", "2.0"), BASE]) == []


def test_nearly_equal_rows_of_one_grain_are_matched_in_their_order() -> None:
    one = [("'a'", "0.1 + 0.2", "1.0"), ("'a'", "7.0", "2.0"), ("'a'", "5.0", "3.0")]
    other = [("'a'", "5.0", "3.0 + 1e-14"), ("'a'", "0.3", "1.0"), ("'a'", "7.0", "2.5")]
    assert differing(one, other) == [("a", True, True)]


def test_copies_whose_first_number_is_nearly_equal_are_matched_by_the_others() -> None:
    one = [("'a'", "0.1 + 0.2", "5.0"), ("'a'", "0.3", "3.0")]
    other = [("'a'", "0.3", "5.0"), ("'a'", "0.1 + 0.2", "3.0")]
    assert differing(one, other) == []
    assert differing(one, [*other[:1], ("'a'", "0.1 + 0.2", "4.0")]) == [("a", True, True)]
    assert (
        differing(
            [("'a'", "-0.0", "5.0"), ("'a'", "0.0", "3.0 + 1e-14")], [("'a'", "0.0", "5.0"), ("'a'", "-0.0", "3.0")]
        )
        == []
    )


@pytest.mark.parametrize(("other", "equal"), [("0.1::float + 1e-8", True), ("0.1::float + 4e-8", False)])
def test_floats_are_compared_by_their_own_precision(other: str, equal: bool) -> None:
    found = differing([("'a'", "0.1::float", "2.0")], [("'a'", other, "2.0")], "float")
    assert found == ([] if equal else [("a", True, True)])
