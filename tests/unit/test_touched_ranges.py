"""Which values of a source's column can touch a grain; checked against the expressions, evaluated by DuckDB."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import duckdb
import pytest

from include.declare.grain_range import Shift, shift_of

HOUR = timedelta(hours=1)
AT = datetime(2024, 2, 29, 13, 45, 12, tzinfo=UTC)
# Spark's expression, the same for DuckDB (the least and the greatest element of an array), and its shift.
KNOWN: dict[str, tuple[str, Shift]] = {
    "seen": ("seen, seen", Shift("seen")),
    "date_trunc('hour', `seen`)": ("date_trunc('hour', seen), date_trunc('hour', seen)", Shift("seen", -HOUR)),
    "to_date(seen)": ("seen::date, seen::date", Shift("seen", -24 * HOUR)),
    "cast(date_trunc('MONTH', seen) as date)": (
        "date_trunc('month', seen)::date, date_trunc('month', seen)::date",
        Shift("seen", -32 * 24 * HOUR),
    ),
    "(seen - interval 90 minutes)": (
        "seen - interval 90 minutes, seen - interval 90 minutes",
        Shift("seen", -HOUR * 1.5, -HOUR * 1.5),
    ),
    "date_trunc('hour', seen + interval '2' hours)": (
        "date_trunc('hour', seen + interval 2 hours), date_trunc('hour', seen + interval 2 hours)",
        Shift("seen", HOUR, 2 * HOUR),
    ),
    "array(seen, seen + interval 1 day)": ("seen, seen + interval 1 day", Shift("seen", timedelta(), 24 * HOUR)),
    "sequence(date_trunc('hour', seen), date_trunc('hour', seen) + interval 3 hours, interval 1 hour)": (
        "date_trunc('hour', seen), date_trunc('hour', seen) + interval 3 hours",
        Shift("seen", -HOUR, 3 * HOUR),
    ),
}


def utc(value: Any) -> datetime:
    found = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day, tzinfo=UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@pytest.mark.parametrize("expression", KNOWN)
def test_every_moment_lies_in_the_range_of_the_grains_that_it_touches(expression: str) -> None:
    sql, expected = KNOWN[expression]
    assert shift_of(expression) == expected
    database = duckdb.connect()
    database.execute("set timezone = 'UTC'")
    for minutes in range(0, 500_000, 7_919):
        at = AT + timedelta(minutes=minutes)
        low, high = database.execute(f"select {sql} from (select ?::timestamptz as seen)", [at]).fetchall()[0]
        found = expected.source_range(low, high)
        assert found is not None
        assert utc(found[0]) <= at <= utc(found[1]), (expression, at)


@pytest.mark.parametrize("expression", ["seen + interval 1 month", "seen - interval 2 years"])
def test_intervals_of_no_fixed_length_are_taken_as_the_longest_and_the_shortest(expression: str) -> None:
    shift = shift_of(expression)
    assert shift is not None
    database = duckdb.connect()
    for days in range(1500):
        at = AT.replace(tzinfo=None) + timedelta(days=days)
        ((moved,),) = database.execute(f"select {expression.replace('seen', '?::timestamp')}", [at]).fetchall()
        assert at + shift.least <= moved <= at + shift.most, at


@pytest.mark.parametrize(
    "expression",
    [
        "origin || dest",
        "f.at",
        "date_trunc(unit, at)",
        "at + interval '1' fortnight",
        "array(at, later)",
        "a +",
        "x; y",
    ],
)
def test_the_range_of_other_expressions_is_not_known(expression: str) -> None:
    assert shift_of(expression) is None


def test_a_range_that_no_moment_has_is_not_known() -> None:
    shift = Shift("at", -HOUR)
    assert shift.source_range("JFK", "LGA") is None
    assert shift.source_range(AT, datetime(9999, 1, 1, tzinfo=UTC)) is None
    assert Shift("origin").source_range("JFK", "LGA") == ("JFK", "LGA")
    assert shift.source_range(date(2024, 1, 1), date(2024, 1, 1)) == (
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, 1, tzinfo=UTC),
    )
