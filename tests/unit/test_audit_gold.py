"""I5 on small tables: gold is recomputed from silver by its declaration, and each planted difference is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from small_warehouse import SHOP_DAYS, SILVER, UTC_MICROS, at, silver_row

from include.audit.gold import GoldCheck, UncheckedTable, gold_check, recompute_sql
from include.declare.fold_function import FoldFunction
from include.declare.gold import AdditiveGold, Gold, LatestGold, QueryGold
from include.declare.measures import Measure
from include.declare.state_by_key import FoldGold
from include.declare.windows import Window, parsed_size

DAY = Window("sold_at", parsed_size("1 day"), "day")
SHOP_DAYS_GOLD = AdditiveGold(
    name="shop_days",
    partition="date_format(day, 'yyyy-MM')",
    window=DAY,
    keys=("shop",),
    measures=(
        Measure("sales", "count_if", "kind = 'sold'"),
        Measure("turnover", "sum", "case when kind = 'sold' then amount end"),
        Measure("mean_amount", "avg", "amount"),
        Measure("kinds", "approx_distinct", "kind"),
    ),
)
SALES = [
    silver_row(0, "a", sold_at=at(1, 0), amount=Decimal("1.00")),
    silver_row(1, "b", sold_at=at(1, 23), amount=Decimal("2.00")),
    silver_row(2, "c", sold_at=at(1, 9), amount=Decimal("2.00"), kind="returned"),
    silver_row(3, "d", sold_at=at(2), amount=None, shop="south", kind="returned"),
]


def shop_day(day: int, shop: str, sales: int, turnover: str | None, mean: str | None, kinds: int) -> dict[str, Any]:
    row = {"day": date(2026, 3, day), "shop": shop, "sales": sales, "turnover": turnover and Decimal(turnover)}
    row |= {"mean_amount": mean and Decimal(mean), "kinds": kinds}
    return row | {"_first_batch": 0, "_last_batch": 0, "_revision": 1, "_month": "2026-03"}


DISTINCT = AdditiveGold("shop_days", "", DAY, ("shop",), (Measure("kinds", "approx_distinct", "event_id"),))
RIGHT = [shop_day(1, "north", 2, "3.00", "1.666667", 2), shop_day(2, "south", 0, None, None, 1)]


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        connection.register("silver", pa.Table.from_pylist(SALES, schema=SILVER))
        yield connection


def check(
    database: duckdb.DuckDBPyConnection, gold: Gold, rows: list[dict[str, Any]], schema: pa.Schema
) -> tuple[GoldCheck | UncheckedTable | None, list[tuple[str, int]], str]:
    database.register("published", pa.Table.from_pylist(rows, schema=schema))
    found = gold_check(database, gold)
    assert (found.check is None) != (found.unchecked is None)
    wrong = [(f.kind.value, f.rows) for f in found.findings]
    return found.check or found.unchecked, wrong, " ".join(f.detail for f in found.findings)


def test_additive_gold_equal_to_silver_is_balanced(database: duckdb.DuckDBPyConnection) -> None:
    checked, wrong, _ = check(database, SHOP_DAYS_GOLD, RIGHT, SHOP_DAYS)
    assert (checked, wrong) == (GoldCheck("gold.shop_days", 2, 2), [])


@pytest.mark.parametrize(
    ("change", "measure"),
    [
        ({"sales": 3}, "sales"),
        ({"turnover": Decimal("3.01")}, "turnover"),
        ({"turnover": None}, "turnover"),
        ({"mean_amount": Decimal("1.666669")}, "mean_amount"),
        ({"mean_amount": None}, "mean_amount"),
        ({"kinds": 3}, "kinds"),
        ({"kinds": None}, "kinds"),
    ],
)
def test_wrong_measure_is_named_with_its_grain(
    database: duckdb.DuckDBPyConnection, change: dict[str, Any], measure: str
) -> None:
    _, wrong, detail = check(database, SHOP_DAYS_GOLD, [RIGHT[0] | change, RIGHT[1]], SHOP_DAYS)
    assert wrong == [("different", 1)]
    assert f"rows with a wrong {measure};" in detail
    assert "day=2026-03-01, shop=north" in detail


def test_zero_instead_of_null_is_different(database: duckdb.DuckDBPyConnection) -> None:
    assert check(database, SHOP_DAYS_GOLD, [RIGHT[0], RIGHT[1] | {"turnover": Decimal(0)}], SHOP_DAYS)[1] == [
        ("different", 1)
    ]


def test_null_key_is_a_grain_of_its_own(database: duckdb.DuckDBPyConnection) -> None:
    nowhere = silver_row(9, "e", sold_at=at(1), shop=None, kind="returned", amount=None)
    database.register("silver", pa.Table.from_pylist([*SALES, nowhere], schema=SILVER))
    assert check(database, SHOP_DAYS_GOLD, RIGHT, SHOP_DAYS)[1] == [("missing", 1)]
    row = shop_day(1, "", 0, None, None, 1) | {"shop": None}
    assert check(database, SHOP_DAYS_GOLD, [*RIGHT, row], SHOP_DAYS)[1] == []


def test_missing_surplus_and_repeated_grains_are_found(database: duckdb.DuckDBPyConnection) -> None:
    assert check(database, SHOP_DAYS_GOLD, RIGHT[:1], SHOP_DAYS)[1] == [("missing", 1)]
    stray = shop_day(3, "north", 0, None, None, 0)
    _, wrong, detail = check(database, SHOP_DAYS_GOLD, [*RIGHT, stray], SHOP_DAYS)
    assert wrong == [("surplus", 1)]
    assert "day=2026-03-03" in detail
    assert check(database, SHOP_DAYS_GOLD, [*RIGHT, RIGHT[1]], SHOP_DAYS)[1] == [("overlap", 1)]


@pytest.mark.parametrize(("published", "right"), [(1000, True), (1049, True), (1051, False), (949, False)])
def test_large_distinct_count_may_differ_by_the_error_of_the_sketch(
    database: duckdb.DuckDBPyConnection, published: int, right: bool
) -> None:
    many = [silver_row(n, str(n)) for n in range(1000)]
    database.register("silver", pa.Table.from_pylist(many, schema=SILVER))
    _, wrong, _ = check(database, DISTINCT, [shop_day(1, "north", 0, None, None, published)], SHOP_DAYS)
    assert (wrong == []) is right


def test_small_distinct_count_must_be_exact(database: duckdb.DuckDBPyConnection) -> None:
    few = [silver_row(n, str(n)) for n in range(199)]
    database.register("silver", pa.Table.from_pylist(few, schema=SILVER))
    assert check(database, DISTINCT, [shop_day(1, "north", 0, None, None, 199)], SHOP_DAYS)[1] == []
    assert check(database, DISTINCT, [shop_day(1, "north", 0, None, None, 198)], SHOP_DAYS)[1] == [("different", 1)]


@pytest.mark.parametrize(
    ("unit", "kind", "starts"),
    [("hour", UTC_MICROS, [at(1, 0), at(1, 23), at(1, 9), at(2)]), ("month", pa.date32(), [date(2026, 3, 1)])],
)
def test_hour_windows_are_timestamps_and_month_windows_dates(
    database: duckdb.DuckDBPyConnection, unit: str, kind: pa.DataType, starts: list[datetime | date]
) -> None:
    gold = AdditiveGold(
        "sales", "", Window("sold_at", parsed_size(f"1 {unit}"), "start"), (), (Measure("n", "count", "*"),)
    )
    rows = [{"start": start, "n": len(SALES) // len(starts)} for start in starts]
    assert check(database, gold, rows, pa.schema([("start", kind), ("n", pa.int64())]))[1] == []


LATEST = LatestGold("shop_status", "", ("shop",), ("sold_at", "event_id"), (("status", "kind"), ("since", "sold_at")))
STATUS = pa.schema([("shop", pa.string()), ("status", pa.string()), ("since", UTC_MICROS)])


def test_latest_gold_holds_the_newest_row_of_each_key(database: duckdb.DuckDBPyConnection) -> None:
    rows = [
        {"shop": "north", "status": "sold", "since": at(1, 23)},
        {"shop": "south", "status": "returned", "since": at(2)},
    ]
    assert check(database, LATEST, rows, STATUS)[1] == []
    again = silver_row(9, "b", partition=1, sold_at=at(1, 23), kind="returned")
    database.register("silver", pa.Table.from_pylist([*SALES, again], schema=SILVER))
    assert check(database, LATEST, [rows[0] | {"status": "returned"}, rows[1]], STATUS)[1] == []
    database.register("silver", pa.Table.from_pylist(SALES, schema=SILVER))
    older = [rows[0] | {"since": at(1, 9), "status": "returned"}, rows[1]]
    assert check(database, LATEST, older, STATUS)[1] == [("different", 1), ("different", 1)]


@pytest.mark.parametrize(
    "measure",
    [Measure("n", "count", "*"), Measure("n", "min_by", "event_id", by="sold_at"), Measure("n", "sum", "amount")],
    ids=lambda measure: measure.function,
)
def test_wrong_value_of_a_table_with_a_condition_is_named(
    database: duckdb.DuckDBPyConnection, measure: Measure
) -> None:
    gold = AdditiveGold("sold", "", None, ("shop",), (measure,), where="kind = 'sold'")
    database.execute(f"create temp view right_rows as {recompute_sql(gold, SILVER.names)}")
    rows = database.sql("select * from right_rows").arrow().read_all()
    wrong = [row | {"n": None} for row in rows.to_pylist()]
    assert check(database, gold, rows.to_pylist(), rows.schema)[1] == []
    assert check(database, gold, wrong, rows.schema)[1] == [("different", 1)]


def test_wrong_value_of_a_latest_table_with_a_condition_is_named(database: duckdb.DuckDBPyConnection) -> None:
    gold = LatestGold("sold", "", ("shop",), ("sold_at",), (("last", "event_id"),), where="kind = 'sold'")
    schema = pa.schema([("shop", pa.string()), ("last", pa.string())])
    assert check(database, gold, [{"shop": "north", "last": "b"}], schema)[1] == []
    assert check(database, gold, [{"shop": "north", "last": "c"}], schema)[1] == [("different", 1)]


BEST = QueryGold(
    name="best_sales",
    partition="",
    query="select day, shop, event_id, amount from silver qualify row_number() over "
    "(partition by day, shop order by amount desc nulls last, event_id) <= 2",
    window=DAY,
    keys=("shop",),
    touched_by="kind = 'sold'",
)
BEST_SCHEMA = pa.schema(
    [("day", pa.date32()), ("shop", pa.string()), ("event_id", pa.string()), ("amount", pa.decimal128(7, 2))]
)


def test_query_gold_holds_exactly_the_touched_grains(database: duckdb.DuckDBPyConnection) -> None:
    row = {"day": date(2026, 3, 1), "shop": "north", "amount": Decimal("2.00")}
    rows = [row | {"event_id": "b"}, row | {"event_id": "c"}]
    checked, wrong, _ = check(database, BEST, rows, BEST_SCHEMA)
    assert isinstance(checked, GoldCheck)
    assert (checked.grains, wrong) == (1, [])
    assert check(database, BEST, rows[:1], BEST_SCHEMA)[1] == [("missing", 1)]
    assert check(database, BEST, [*rows, rows[0]], BEST_SCHEMA)[1] == [("surplus", 1)]
    untouched = row | {"day": date(2026, 3, 2), "shop": "south", "event_id": "d", "amount": None}
    assert check(database, BEST, [*rows, untouched], BEST_SCHEMA)[1] == [("surplus", 1)]


def test_missing_declared_column_is_found(database: duckdb.DuckDBPyConnection) -> None:
    schema = SHOP_DAYS.remove(SHOP_DAYS.get_field_index("kinds"))
    _, wrong, detail = check(database, SHOP_DAYS_GOLD, RIGHT, schema)
    assert (wrong, detail) == ([("missing", 0)], "has no column kinds")


@pytest.mark.parametrize(
    ("expression", "construct"), [("cast(amount as int)", "cast"), ("amount / 3", "div"), ("amount % 2", "mod")]
)
def test_difference_that_may_be_of_the_dialects_leaves_the_table_unchecked(
    database: duckdb.DuckDBPyConnection, expression: str, construct: str
) -> None:
    measures = (Measure("sales", "count", "*"), Measure("turnover", "max", expression))
    gold = AdditiveGold("shop_days", "", DAY, ("shop",), measures)
    rows = [shop_day(1, "north", 3, "99", None, 0), shop_day(2, "south", 7, None, None, 0)]
    checked, wrong, detail = check(database, gold, rows, SHOP_DAYS)
    assert isinstance(checked, UncheckedTable)
    assert checked.expression == expression
    assert f"may evaluate {construct}" in checked.reason
    # A wrong count has no such excuse.
    assert wrong == [("different", 1)]
    assert "rows with a wrong sales" in detail


def test_function_that_fails_on_what_duckdb_may_read_otherwise_is_not_blamed(
    database: duckdb.DuckDBPyConnection,
) -> None:
    text = "def letters(rows):\n    yield {'letters': sum(len(row['word']) for row in rows.to_pylist())}"
    gold = FoldGold(
        "letters",
        keys=("shop",),
        order_by=("event_id",),
        columns=(("word", "split(kind, ' ')[0]"),),
        function=FoldFunction("letters.py", "letters", text),
        returns=(("letters", "bigint"),),
    )
    schema = pa.schema({"shop": pa.string(), "letters": pa.int64()})
    checked, wrong, _ = check(database, gold, [{"shop": "north", "letters": 16}], schema)
    assert isinstance(checked, UncheckedTable)
    assert "may evaluate bracket, regexpsplit differently" in checked.reason
    assert (wrong, checked.expression) == ([], "split(kind, ' ')[0]; true")
    certain = replace(gold, columns=(("number", "kind"),))
    checked, _, _ = check(database, certain, [], schema)
    assert isinstance(checked, UncheckedTable)
    assert "fails on the rows of shop='north'" in checked.reason


def test_nulls_come_in_sparks_order_in_a_recomputed_query(database: duckdb.DuckDBPyConnection) -> None:
    first_by_amount = "row_number() over (partition by shop order by amount) = 1"
    query = f"select day, shop, event_id, amount from silver qualify {first_by_amount}"
    unpriced = silver_row(9, "x", sold_at=at(1), amount=None)
    database.register("silver", pa.Table.from_pylist([*SALES, unpriced], schema=SILVER))
    first = {"day": date(2026, 3, 1), "shop": "north", "event_id": "x", "amount": None}
    other = {"day": date(2026, 3, 2), "shop": "south", "event_id": "d", "amount": None}
    gold = QueryGold("best_sales", "", query, DAY, ("shop",))
    assert check(database, gold, [first, other], BEST_SCHEMA)[1] == []


def test_sums_of_doubles_are_equal_within_the_declared_tolerance(database: duckdb.DuckDBPyConnection) -> None:
    schema = pa.schema([("day", pa.date32()), ("shop", pa.string()), ("total", pa.float64())])
    gold = AdditiveGold("shop_days", "", DAY, ("shop",), (Measure("total", "sum", "price"),))
    prices = pa.array([0.1, 0.2, 0.3, None], pa.float64())
    database.register("silver", pa.Table.from_pylist(SALES, schema=SILVER).append_column("price", prices))
    south = {"day": date(2026, 3, 2), "shop": "south", "total": None}
    for total, right in ((0.6, True), (0.6000000000000001, True), (0.600001, False)):
        rows = [{"day": date(2026, 3, 1), "shop": "north", "total": total}, south]
        assert (check(database, gold, rows, schema)[1] == []) is right
