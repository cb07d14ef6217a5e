"""`touched_by` against the query: right grains are proven, wrong ones refused, what the text cannot show is named."""

from __future__ import annotations

import pytest

from include.declare.derived_dataset import DerivedGold
from include.declare.touched_checks import grain_mismatches, unproven_expressions

HOUR = "date_trunc('hour', {})"
BY_HOUR = {
    "flights": {"hour": HOUR.format("left_at"), "origin": "origin"},
    "weather": {"hour": HOUR.format("seen_at"), "origin": "station"},
}
GROUPED = """
with departed as (select date_trunc('HOUR', left_at) as hour, origin, count(*) as n from flights group by all),
observed as (
  select date_trunc('hour', w.seen_at) as hour, w.station as origin, max(wind) as wind from weather w group by 1, 2
)
select hour, origin, n, wind from departed left join observed using (hour, origin)
"""
WITHIN = """
select date_trunc('hour', f.left_at) as hour, f.origin, count(*) as n, max(w.wind) as wind
from flights f left join weather w
on w.station = f.origin and w.seen_at <= f.left_at and w.seen_at > f.left_at - interval 1 hour
group by all
"""
ARRAY = "array(date_trunc('hour', seen_at), date_trunc('hour', seen_at) + interval 1 hour)"
UNION = """
select hour, origin, sum(n) as n from (
  select date_trunc('hour', left_at) as hour, origin, 1 as n from flights
  union all select date_trunc('hour', seen_at), station, 0 from weather
) as both group by hour, origin
"""
BY_KEY = """
select f.origin, count(*) as n
from flights f join weather w on w.station = f.origin and w.seen_at <= f.left_at group by 1
"""
ORIGIN = {"flights": {"origin": "origin"}}
BY_ORIGIN = {"flights": {"origin": "origin"}, "weather": {"origin": "station"}}


def gold(query: str, touched_by: dict[str, dict[str, str]]) -> DerivedGold:
    (columns,) = {tuple(each) for each in touched_by.values()}
    return DerivedGold("table", query, columns, touched_by)


def touching(**hours: str) -> dict[str, dict[str, str]]:
    """Return BY_HOUR with other hours."""
    return {name: {**each, "hour": hours.get(name, each["hour"])} for name, each in BY_HOUR.items()}


PROVEN: dict[str, tuple[str, dict[str, dict[str, str]]]] = {
    "grouped before the join": (GROUPED, BY_HOUR),
    "an array that has the grain": (GROUPED, touching(flights=f"array({HOUR.format('left_at')}, now())")),
    "a union, column by column": (UNION, BY_HOUR),
    "an unbounded join within a key": (BY_KEY, BY_ORIGIN),
    "a condition instead of a join": (
        "select f.origin from flights f, weather w where f.origin = w.station",
        BY_ORIGIN,
    ),
    "the columns of a source by its own name": (
        "select flights.origin from flights join weather on origin = station",
        BY_ORIGIN,
    ),
    "all columns of a subquery": (
        "select * from (select origin, 1 as n from flights group by 1) as a",
        BY_ORIGIN,
    ),
    "all columns of one table of a join": (
        "select a.* from (select origin from flights) as a join weather on a.origin = station",
        BY_ORIGIN,
    ),
    "either of two equal columns": (
        "select coalesce(f.origin, w.station) as origin from flights f full join weather w on w.station = f.origin",
        BY_ORIGIN,
    ),
}


@pytest.mark.parametrize("case", PROVEN)
def test_grains_that_the_query_shows_are_proven(case: str) -> None:
    declared = gold(*PROVEN[case])
    assert (list(grain_mismatches(declared)), unproven_expressions(declared)) == ([], [])


WRONG: dict[str, tuple[str, dict[str, dict[str, str]], str]] = {
    "another column": (GROUPED, touching(weather=HOUR.format("arrived_at")), "DATE_TRUNC('HOUR', seen_at), not"),
    "another unit": (GROUPED, touching(flights="date_trunc('day', left_at)"), "not DATE_TRUNC('DAY', left_at)"),
    "another key": (BY_KEY, BY_ORIGIN | {"weather": {"origin": "town"}}, "origin = station, not town"),
    "another key than using joins": (
        "select origin from flights left join weather using (origin)",
        BY_ORIGIN | {"weather": {"origin": "town"}},
        "origin = origin, not town",
    ),
    "one branch of a union": (
        UNION.replace("seen_at), station", "seen_at), town"),
        BY_HOUR,
        "origin = town, not station",
    ),
    "all earlier rows": (
        WITHIN.replace("and w.seen_at > f.left_at - interval 1 hour", ""),
        BY_HOUR,
        "give the join both bounds",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_grains_that_the_query_contradicts_are_refused(case: str) -> None:
    query, touched_by, words = WRONG[case]
    found = [why for _, why in grain_mismatches(gold(query, touched_by))]
    assert any(words in why for why in found), found


UNPROVEN: dict[str, tuple[str, dict[str, dict[str, str]], list[str]]] = {
    "a join with bounds in time": (WITHIN, touching(weather=ARRAY), ["weather.hour"]),
    "a scalar of such a join": (WITHIN, BY_HOUR, ["weather.hour"]),
    "another spelling": (GROUPED, touching(flights="date_trunc('hour', left_at + interval 0 hours)"), ["flights.hour"]),
    "an aggregate": (
        "select max(origin) as origin from flights",
        {"flights": {"origin": "origin"}},
        ["flights.origin"],
    ),
    "a column of either table": (
        "select name as origin from flights cross join weather",
        BY_ORIGIN,
        ["flights.origin", "weather.origin"],
    ),
}


@pytest.mark.parametrize("case", UNPROVEN)
def test_grains_that_the_text_does_not_show_are_named(case: str) -> None:
    query, touched_by, expected = UNPROVEN[case]
    declared = gold(query, touched_by)
    assert (list(grain_mismatches(declared)), unproven_expressions(declared)) == ([], expected)
