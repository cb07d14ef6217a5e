"""Column names that are SQL keywords: the audit recomputes gold and finds duplicates whatever a column is called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import duckdb
import pyarrow as pa
import pytest
from small_warehouse import BRONZE, REJECTED, SILVER, at, bronze_row, rejected_row, silver_row

from include.audit.findings import Finding
from include.audit.gold import gold_check
from include.audit.silver import ALL_SILVER, orphan_findings, register_fixes, repeated_findings
from include.declare.gold import AdditiveGold, Gold, LatestGold, QueryGold
from include.declare.measures import Measure
from include.declare.payload_format import JsonFormat
from include.declare.pipeline import Pipeline
from include.declare.windows import Window, parsed_size
from include.ground.sql_quoting import SYNTAX, duckdb_expression, sql_identifier, sql_literal

# All words that DuckDB reserves somewhere; the others are names everywhere.
RESERVED = "select keyword_name from duckdb_keywords() where keyword_category <> 'unreserved' order by all"
KEYWORDS = [str(row[0]) for row in duckdb.sql(RESERVED).fetchall()]
# Names that the audit's own SQL uses.
OURS = ["silver", "bronze", "published", "recomputed", "gold", "p", "r", "grained", "touched", "batch", "moment"]
OURS += ["payload", "earlier", "later", "d", "s", "b", "f", "named", "duplicates", "candidates", "repeated", "layer"]
NAMES = list(dict.fromkeys([*KEYWORDS, *OURS, 'a "quoted" name', "naïve", "a b"]))
# Twelve at a time: a query of one name takes as long as one of twelve.
SOME = [NAMES[start : start + 12] for start in range(0, len(NAMES), 12)]
WINDOW = Window("sold_at", parsed_size("1 day"), "the day")


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """One connection, since each costs 20 ms: every test replaces the tables that it reads."""
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        yield connection


def silver_with(database: duckdb.DuckDBPyConnection, names: list[str]) -> None:
    """Register silver with one row and one string column for each name after its usual columns."""
    schema = pa.schema([*SILVER, *((name, pa.string()) for name in names)])
    row = silver_row(0, "a", sold_at=at(1)) | dict.fromkeys(names, "x")
    for view in ("silver", ALL_SILVER):
        database.register(view, pa.Table.from_pylist([row], schema=schema))


def published(database: duckdb.DuckDBPyConnection, columns: dict[str, str]) -> None:
    """Register gold as one row of constants, given as SQL by column."""
    row = ", ".join(f"{value} as {sql_identifier(name)}" for name, value in columns.items())
    database.execute(f"create or replace table published as select date '2026-03-01' as \"the day\", {row}")


def checked(database: duckdb.DuckDBPyConnection, gold: Gold) -> list[Finding]:
    found = gold_check(database, gold)
    assert found.check is not None, found.unchecked
    return list(found.findings)


def expression(name: str) -> str:
    """Return an expression over a column as a declaration may have it: bare where the grammar allows it."""
    return name if name.isidentifier() else f"`{name}`"


def test_measure_of_a_column_with_any_name(database: duckdb.DuckDBPyConnection) -> None:
    silver_with(database, NAMES)
    measures = [Measure(name, "max", expression(name)) for name in NAMES]
    published(database, dict.fromkeys(NAMES, "'x'"))
    assert checked(database, AdditiveGold("g", "", WINDOW, (), tuple(measures))) == []


def test_expression_over_a_column_with_any_name(database: duckdb.DuckDBPyConnection) -> None:
    silver_with(database, NAMES)
    free = [name for name in NAMES if name.isidentifier() and name not in SYNTAX]
    measures = [Measure(name, "count_if", f"coalesce({name}, '') = 'x'") for name in free]
    measures += [Measure(name, "count_if", f"coalesce(`{name}`, '') = 'x'") for name in NAMES if name not in free]
    published(database, dict.fromkeys(NAMES, "1"))
    assert checked(database, AdditiveGold("g", "", WINDOW, (), tuple(measures))) == []


@pytest.mark.parametrize("names", SOME, ids=lambda names: names[0])
def test_wrong_row_of_keys_with_any_name_is_named(database: duckdb.DuckDBPyConnection, names: list[str]) -> None:
    silver_with(database, names)
    gold = AdditiveGold("g", "", WINDOW, tuple(names), (Measure("its rows", "count", "*"),))
    published(database, {**dict.fromkeys(names, "'x'"), "its rows": "2"})
    (finding,) = checked(database, gold)
    assert f"the first: the day=2026-03-01, {', '.join(f'{name}=x' for name in names)}, " in finding.detail
    published(database, {**dict.fromkeys(names, "'y'"), "its rows": "1"})
    findings = checked(database, gold)
    assert [(each.kind, each.rows) for each in findings] == [("missing", 1), ("surplus", 1)]


def test_latest_row_by_a_column_with_any_name(database: duckdb.DuckDBPyConnection) -> None:
    silver_with(database, NAMES)
    columns = tuple((f"its {name}", expression(name)) for name in NAMES)
    published(database, {"shop": "'north'", **dict.fromkeys((name for name, _ in columns), "'x'")})
    assert checked(database, LatestGold("g", "", ("shop",), tuple(NAMES), columns)) == []


def test_kept_order_of_a_latest_table_has_the_names_that_existing_tables_have() -> None:
    gold = LatestGold("last", order_by=("sold_at", "_timestamp", "offset", "timestamp"))
    assert [kept for _, kept in gold.deciding_columns] == [
        "_by_sold_at",
        "_by_timestamp",
        "_by_offset_column",
        "_by_timestamp_column",
        "_by_partition",
        "_by_offset",
    ]


def test_query_over_columns_with_any_name(database: duckdb.DuckDBPyConnection) -> None:
    silver_with(database, NAMES)
    listed = ", ".join(name if name.isidentifier() and name not in SYNTAX else f"`{name}`" for name in NAMES)
    query = f"select `the day`, {listed} from silver where at = 'x'"
    published(database, dict.fromkeys(NAMES, "'x'"))
    assert checked(database, QueryGold("g", "", query, WINDOW, tuple(NAMES), "at = 'x'")) == []


@pytest.mark.parametrize("names", SOME, ids=lambda names: names[0])
def test_identity_of_columns_with_any_name(database: duckdb.DuckDBPyConnection, names: list[str]) -> None:
    silver_with(database, names)
    values = [json.dumps(dict.fromkeys(names, value), ensure_ascii=False).encode() for value in ("x", "x", "z")]
    bronze = [bronze_row(offset, value) for offset, value in enumerate(values)]
    database.register("bronze", pa.Table.from_pylist(bronze, schema=BRONZE))
    rejected = [rejected_row(1, "duplicate"), rejected_row(2, "duplicate")]
    database.register("rejected", pa.Table.from_pylist(rejected, schema=REJECTED))
    register_fixes(database, {})
    JsonFormat().define_texts(database, {})
    pipeline = Pipeline("sales", 1, "sold_at", timedelta(days=1), tuple(names), timedelta(days=3), ())
    assert list(repeated_findings(database, "sales", pipeline)) == []
    (orphan,) = orphan_findings(database, "sales", pipeline)
    assert (orphan.kind, orphan.partition, orphan.start, orphan.end) == ("different", 0, 2, 3)


@pytest.mark.parametrize(
    ("sql", "quoted"),
    [
        ("at", '"at"'),
        ("order", '"order"'),
        ("sum(at)", 'sum("at")'),
        ("date(at) = date '2013-01-01'", "date(\"at\") = date '2013-01-01'"),
        ("case when at then 'at it''s' end", "case when \"at\" then 'at it''s' end"),
        ("s.at + `end`", 's."at" + "end"'),
        ('"at" || AT', '"at" || "AT"'),
        ("that + at2 + 1e5", "that + at2 + 1e5"),
    ],
)
def test_only_column_names_are_quoted(sql: str, quoted: str) -> None:
    assert duckdb_expression(sql, ["at", "end", "date", "order", "e5"]) == quoted


def test_quotes_inside_names_and_texts_are_doubled() -> None:
    assert (sql_identifier('a"b'), sql_literal("a'b")) == ('"a""b"', "'a''b'")


BROKEN: list[tuple[Gold, str]] = [
    (AdditiveGold("g", "", WINDOW, (), (Measure("a", "sum", "1"), Measure("n", "max", "window(sold_at, '5 m')"))),
     "window(sold_at, '5 m')"),
    (AdditiveGold("g", "", WINDOW, (), (Measure("n", "max", "cast(shop as int)"),)), "cast(shop as int)"),
    (LatestGold("g", "", ("shop",), ("sold_at",), (("n", "no such column"),)), "no such column"),
    (QueryGold("g", "", "select * from silver", WINDOW, (), "rlike(1)"), "rlike(1)"),
    (QueryGold("g", "", "select\n  window(`the day`)\nfrom silver", WINDOW, (), "true"),
     "select window(`the day`) from silver"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "expression"), BROKEN)
def test_expression_that_duckdb_cannot_evaluate_is_named(
    database: duckdb.DuckDBPyConnection, gold: Gold, expression: str
) -> None:
    silver_with(database, [])
    published(database, {"n": "1"})
    found = gold_check(database, gold)
    assert found.unchecked is not None
    assert (found.unchecked.table, found.unchecked.expression, found.findings) == ("gold.g", expression, ())
    assert "Error" in found.unchecked.reason
