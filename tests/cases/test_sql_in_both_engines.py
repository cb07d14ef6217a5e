"""Every SQL construct that the audit takes to mean the same in Spark and DuckDB does, also over edge values.

A difference in anything else is reported as unchecked, so an entry that is wrong here is a false alarm of the audit.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from include.audit.gold import DIALECT
from include.declare.sql_checks import SAME_IN_DUCKDB, parsed_statements, unproven_constructs
from include.ground.sql_quoting import duckdb_expression
from include.read.memory_database import memory_database

SCHEMA = (
    "id int, i int, j int, n bigint, d decimal(18,2), e decimal(9,4), w decimal(38,10), x double, "
    "s string, u string, t timestamp, day date, b boolean, c boolean"
)
NOON, LAST = datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
FIRST = datetime(1582, 10, 4, 23, 59, 59, 1, tzinfo=UTC)
BIG, SMALL = 2**31 - 1, -(2**31) + 1
TINY, WIDE = Decimal("0.0000000001"), Decimal("9999999999999999999999999999.9999999999")
ROWS: list[tuple[Any, ...]] = [
    (1, None, None, None, None, None, None, None, None, None, None, None, None, None),
    (2, 0, 1, 2**62, Decimal("0.00"), Decimal("0.0001"), TINY, -0.0, "", "a", NOON, date(2024, 2, 29), True, None),
    (3, 0, None, -(2**62), Decimal("-0.01"), None, -TINY, 0.0, "a", "", FIRST, date(1582, 10, 4), False, True),
    (4, BIG, 0, 2**53 + 1, Decimal("1.10"), Decimal("1.1"), None, 1.1, "A", "a", LAST, date(9999, 12, 31), True, True),
    (5, SMALL, -1, 2**53, Decimal("-1.10"), Decimal("-1.1"), None, float("nan"), "ä", "ä", None, None, None, True),
    (6, 1, 1, -1, Decimal("9999999999999999.99"), Decimal("99999.9999"), TINY, float("inf"), "\U0001f600", "\uffff",
     NOON, date(1970, 1, 1), False, False),
    (7, -1, 2, 0, Decimal("-9999999999999999.99"), Decimal("-0.0001"), WIDE, float("-inf"), "1 ", "1", NOON,
     date(1, 1, 1), None, None),
    (8, 1, 1, -1, Decimal("1.10"), Decimal("1.1000"), None, 5e-324, "a\0b", "a", FIRST, None, True, False),
]  # fmt: skip
# Of one row each.
EXPRESSIONS = """
i | `i` | 7 | -7 | 1.50 | 1.5e0 | 'it''s' | '' | 'Ä\U0001f600' | true | null | (i)
b and c | b or c | not b | not (b and null) | i = 0 and j = 1 or b
i = j | i <> j | i != j | i == j | i > j | i >= j | i < j | i <= j | i is not distinct from j
d = e | d > e | d <= 1.1 | n = i | n > x | x = 0 | x > 1.1 | x = x | x <> x | d = x | w > d | n = 9007199254740993
s = u | s > u | s < 'a' | s = '' | s >= 'ä' | t > timestamp'2024-02-29 12:00:00' | t = t | day < date'2000-01-01'
day <= t | b = c | b > c | s = 'a ' | x < 'NaN'
i is null | i is not null | b is true | b is not true | b is false | x is null
i in (0, 1) | i in (0, null) | i not in (0, null) | s in ('', 'a') | d in (1.1, 0) | (i, j) in ((0, 1), (1, 1))
i between 0 and 1 | i not between j and 1 | s between '' and 'a' | x between 0 and 2 | d between e and 2
case when b then i when c then j end | case i when 0 then 'zero' else s end | case when b then d else e end
case when b then i else d end | case when b then i else x end | if(b, i, j) | if(b, s, null)
coalesce(i, j, 0) | coalesce(s, '') | coalesce(d, e) | coalesce(i, d) | coalesce(n, x) | coalesce(null, day)
-i | -d | -x | - n | abs(i) | abs(d) | abs(x) | abs(n) | abs(w) | abs(-x)
"""
QUERIES = """
select count(*) from silver
select count(i), count(b), count(distinct s), count(distinct x), count(distinct d), count(distinct null) from silver
select sum(i), sum(d), sum(w), sum(n), sum(distinct j) from silver where w < 1 or w is null
select min(i), max(i), min(s), max(s), min(x), max(x), min(t), max(day), min(b), max(b), min(d), max(u) from silver
select sum(i), min(s), max(t), count(i), count(*) from silver where false
select sum(n) filter (where b), count(*) filter (where c) from silver
select b, count(*) as many, sum(d) as total from silver group by b having count(*) > 1 or b is null
select s, x, count(*) from silver group by 1, 2
select x, count(*) from silver group by x
select distinct b, c from silver
select distinct x from silver
select -x as x, count(*) from silver group by x
select -j as k, -k as i, i from silver
with b as (select i, b from silver where b) select i as k, b from b where i >= 0
with silver as (select i, b from silver where b) select * from silver
select q.* from (select id, i from silver where i in (select j from silver where j is not null)) as q
select id, i from silver where i not in (select j from silver)
select id, (select max(j) from silver) as most, (select i from silver where false) as none from silver
select id, (select count(*) from silver as p where p.i = q.i) as alike from silver as q
select id, row_number() over (order by id) as n, row_number() over (partition by b order by id desc) as m from silver
select id, rank() over (order by i) as r, dense_rank() over (order by i desc) as q from silver
select id, rank() over (order by s) as r, rank() over (order by u desc) as q from silver
select id, rank() over (order by x) as r, rank() over (order by x desc) as q from silver
select id, rank() over (order by d nulls last) as r, rank() over (order by t desc nulls first) as q from silver
select id, rank() over (partition by x order by id) as r, rank() over (partition by s, b order by id) as q from silver
select id, rank() over (order by b) as r, rank() over (order by b, day desc) as q from silver
select id, sum(j) over (partition by b order by j) as r, count(*) over (partition by c) as q from silver
select id, max(s) over (order by id rows between 1 preceding and current row) as r from silver
select id, min(i) over (order by j desc) as r, sum(d) over () as q, count(i) over (order by s) as p from silver
select id, lag(i) over (order by id) as n, lead(s) over (partition by b order by id desc) as m from silver
select id, i from silver qualify row_number() over (partition by b order by s desc, id) = 1
select b, (b, c) in ((true, true)) as v from silver
select id from silver where (i, j) = (0, 1)
"""


@pytest.fixture(scope="module")
def edge_values(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, SCHEMA).coalesce(1).cache()


def statements() -> list[str]:
    """Return one query of all expressions, and the queries."""
    listed = " | ".join(EXPRESSIONS.strip().splitlines()).split(" | ")
    columns = ", ".join(f"{expression} as v{number}" for number, expression in enumerate(listed))
    return [f"select id, {columns} from silver", *QUERIES.strip().splitlines()]


def sorted_values(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows; 0.0 and -0.0, which are equal, and all NaN have one spelling."""
    rows = [tuple(table.columns[n][row].as_py() for n in range(table.num_columns)) for row in range(table.num_rows)]
    return sorted([tuple(str(v + 0.0) if isinstance(v, float) else v for v in row) for row in rows], key=repr)


def test_every_construct_is_evaluated_in_this_test() -> None:
    found = {type(node) for sql in statements() for tree in parsed_statements(sql) for node in tree.walk()}
    assert set(SAME_IN_DUCKDB) <= found


@pytest.mark.extended
def test_spark_and_duckdb_evaluate_the_constructs_alike(edge_values: DataFrame) -> None:
    edge_values.createOrReplaceTempView("silver")
    duck = memory_database()
    duck.execute(DIALECT)
    duck.register("silver", edge_values.toArrow())
    for sql in statements():
        spark_rows = sorted_values(edge_values.sparkSession.sql(sql).toArrow())
        duck_rows = sorted_values(duck.sql(duckdb_expression(sql, edge_values.columns)).to_arrow_table())
        differing = [pair for pair in zip(spark_rows, duck_rows, strict=True) if pair[0] != pair[1]]
        assert differing == [], sql


def test_sums_of_wide_decimals_are_not_trusted() -> None:
    # Spark drops digits of a result of more than 38; DuckDB keeps them or raises an error.
    assert unproven_constructs("w + 1 - d") == ["add", "sub"]


@pytest.mark.parametrize(("sql", "unproven"), [(r"s = 'a\tb'", "backslash"), ('s = "a"', "double quotes")])
def test_texts_that_only_spark_unescapes_are_not_trusted(sql: str, unproven: str) -> None:
    assert unproven_constructs(sql) == [unproven]
