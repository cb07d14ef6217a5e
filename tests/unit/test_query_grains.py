"""Gold queries that would combine several grains are found; those that keep to one are accepted."""

from __future__ import annotations

import pytest

from include.declare.sql_checks import grain_problems, parsed_statements

GRAIN = ("day", "shop")
ACCEPTED = {
    "group by names": "select day, shop, max(x) from silver group by day, shop",
    "group by positions": "select day, shop, max(x) from silver group by 1, 2",
    "group by all": "select day, shop, max(x) as most from silver group by all",
    "group by more": "select day, shop, kind, count(*) from silver group by day, shop, kind",
    "window": "select day, shop, x, row_number() over (partition by day, shop order by x) as n from silver",
    "named window": "select day, shop, lag(x) over w as y from silver window w as (partition by shop, day order by x)",
    "subquery": "select day, shop, n from (select day, shop, count(*) as n from silver group by day, shop) where n > 1",
    "join using": "select day, shop, a.x from silver as a join silver as b using (day, shop)",
    "join on": "select a.day, a.shop from silver as a join silver as b on a.day = b.day and a.shop <=> b.shop",
    "union": "select day, shop, 1 as x from silver union all select day, shop, 2 from silver",
    "common table": "with most as (select day, shop, max(x) as x from silver group by day, shop) select * from most",
    "distinct": "select distinct day, shop, kind from silver",
    "aggregate over a window of an aggregate": (
        "select day, shop, kind, sum(count(*)) over (partition by day, shop) from silver group by day, shop, kind"
    ),
}
REFUSED = {
    "select day, shop, max(x) from silver group by day": "group by day, shop",
    "select max(day) as d, max(x) from silver": "group by day, shop",
    "select day, shop, max(x) from silver group by rollup (day, shop)": "group by day, shop",
    "select day, shop, sum(x) over (partition by shop order by day) as total from silver": "partition by day, shop",
    "select day, shop, rank() over w as n from silver window w as (partition by day order by x)": "several grains",
    "select day, shop, x from silver order by x limit 10": "row_number()",
    "select day, shop, x from silver where x in (select max(x) from silver group by day, shop)": "join the subquery",
    "select day, shop, x from silver where exists (select 1 from silver)": "join the subquery",
    "select day, shop, (select max(x) from silver group by day, shop) as m from silver": "join the subquery",
    "select a.day, a.shop, b.x from silver as a join silver as b on a.day = b.day": "join using (day, shop)",
    "select a.day, a.shop, b.x from silver as a cross join silver as b": "join using (day, shop)",
    "select distinct shop from silver": "must have the columns day, shop",
    "select last_day(day) as day, shop, x from silver": "the grain's own column",
}


def problems(sql: str) -> list[tuple[int, str]]:
    (query,) = parsed_statements(sql)
    return list(grain_problems(query, GRAIN))


@pytest.mark.parametrize("case", ACCEPTED)
def test_query_of_single_grains_is_accepted(case: str) -> None:
    assert problems(ACCEPTED[case]) == []


@pytest.mark.parametrize("sql", REFUSED)
def test_query_over_several_grains_is_refused_with_a_remedy(sql: str) -> None:
    assert any(REFUSED[sql] in why for _, why in problems(sql)), problems(sql)


def test_refusal_names_the_line() -> None:
    ((line, why),) = problems("select day, shop,\n  x,\n  sum(x) over (partition by shop) as total\nfrom silver")
    assert (line, "partition by day, shop" in why) == (3, True)
