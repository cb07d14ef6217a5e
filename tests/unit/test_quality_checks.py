"""Whole tables validated by Great Expectations: what blocks, what only warns, and the reported results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pd
import pytest

from include.change import quality as published_quality
from include.change.checkpoint import to_pandas, validate_tables
from include.change.quality import checks_page, validate_published
from include.declare.contract_rules import Rule, RuleModel, RuleResult, typed_rule
from include.declare.contract_types import COLUMN_TYPES
from include.declare.dataset import snapshot_dataset
from include.ground.paths import docs_page
from include.ground.settings import Settings
from include.read.publication import Publication, publish

TYPES = {
    name: COLUMN_TYPES[kind]
    for name, kind in {"day": "string", "rows": "integer", "litres": "number", "name": "string"}.items()
}
ROWS = pa.table(
    {
        "day": ["mon", "tue", "wed", None],
        "rows": pa.array([1, 2, 3, None], pa.int64()),
        "litres": pa.array([Decimal("1.50"), Decimal("2.50"), None, Decimal("0.10")], pa.decimal128(9, 2)),
        "name": ["a", "b", "a", "c"],
    }
)


def rule(expectation: str, action: str = "hold", name: str = "own_rule", gold: bool = False, **kwargs: Any) -> Rule:
    declared = {
        "type": "custom",
        "engine": "greatExpectations",
        "name": name,
        "customProperties": [{"property": "action", "value": action}],
        "implementation": {"type": expectation, "kwargs": kwargs},
    }
    return typed_rule(RuleModel.model_validate(declared), None if gold else TYPES)


def results(*rules: Rule) -> list[RuleResult]:
    return validate_tables({"gold.days": (pd.dataset(ROWS), rules)})


CASES: Mapping[str, tuple[Rule, bool, str]] = {
    "an aggregate kept": (rule("expect_column_sum_to_be_between", column="rows", min_value=6, max_value=6), True, "6"),
    "an aggregate broken": (
        rule("expect_column_mean_to_be_between", column="litres", min_value=3),
        False,
        "1.366666667",
    ),
    "too few rows": (rule("expect_table_row_count_to_be_between", min_value=5), False, "4"),
    "not unique": (rule("expect_column_values_to_be_unique", column="name"), False, "2 of 4 rows"),
    "a row rule of a table": (rule("expect_column_values_to_not_be_null", column="day"), False, "1 of 4 rows"),
    "mostly": (rule("expect_column_values_to_not_be_null", column="day", mostly=0.7), True, "1 of 4 rows"),
    "a decimal bound": (
        rule("expect_column_values_to_be_between", column="litres", min_value=0.1),
        True,
        "0 of 4 rows",
    ),
    "with a condition": (
        rule(
            "expect_column_values_to_be_unique",
            column="name",
            row_condition={"type": "comparison", "column": {"name": "rows"}, "operator": "<", "parameter": 3},
        ),
        True,
        "0 of 2 rows",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_expectation_is_evaluated_over_the_table(case: str) -> None:
    rule_of_case, passed, observed = CASES[case]
    (found,) = results(rule_of_case)
    assert (found.passed, found.observed) == (passed, observed)
    assert found.blocks is not passed


@pytest.mark.parametrize(("action", "blocks"), [("warn", False), ("hold", True), ("fail", True)])
def test_only_hold_and_fail_rules_block(action: str, blocks: bool) -> None:
    (found,) = results(rule("expect_table_row_count_to_be_between", action, min_value=5))
    assert (found.passed, found.blocks) == (False, blocks)


def test_rule_on_a_missing_column_fails_and_names_it() -> None:
    (found,) = results(rule("expect_column_values_to_be_unique", column="colour", gold=True))
    assert not found.passed
    assert '"colour"' in found.observed


def test_each_rule_has_its_own_result() -> None:
    good, bad = (rule("expect_table_row_count_to_be_between", name=f"rows_{n}", min_value=n) for n in (4, 5))
    for _ in range(2):
        assert [(check.rule, check.passed) for check in results(bad, good)] == [("rows_5", False), ("rows_4", True)]


def test_values_that_break_a_rule_are_shown() -> None:
    (found,) = results(rule("expect_column_values_to_be_in_set", column="day", value_set=["mon"]))
    assert (found.passed, found.samples) == (False, ("tue", "wed"))
    assert "for instance tue, wed" in checks_page("t", [found])
    assert "for instance" not in checks_page("t", results(rule("expect_table_row_count_to_be_between", min_value=1)))


def test_table_without_rules_is_not_validated() -> None:
    assert validate_tables({"gold.days": (pd.dataset(ROWS), [])}) == []


def test_numbers_become_floats_and_strings_keep_none() -> None:
    frame = to_pandas(ROWS, ["rows", "litres", "day"])
    assert [str(kind) for kind in frame.dtypes] == ["object", "float64", "float64"]
    assert frame["day"].tolist() == ["mon", "tue", "wed", None]
    assert frame["litres"].tolist()[:2] == [1.5, 2.5]


def test_overview_names_each_rule_and_escapes_markup() -> None:
    checks = results(rule("expect_column_sum_to_be_between", column="rows", min_value=9))
    shown = checks_page("flights <1>", checks)
    for text in (
        "flights &lt;1&gt;",
        "0 of 1 rules passed",
        "own_rule",
        "<td>gold.days</td>",
    ):
        assert text in shown
    assert "<script" not in checks_page("t", [replace(checks[0], observed="<script>", samples=("<script>",))])


def test_page_of_published_tables_shows_each_result(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    release = snapshot_dataset(settings, "flights").release
    publish(settings, Publication("flights", release, 1, datetime(2026, 1, 1, tzinfo=UTC), {}, {}))
    checks = results(rule("expect_column_sum_to_be_between", column="rows", min_value=9))
    monkeypatch.setattr(published_quality, "validate_tables", lambda _: checks)
    found = validate_published(settings, "flights", datetime(2026, 1, 1, tzinfo=UTC))
    page = docs_page(settings, "flights")
    assert ([path.name for path in found.site.iterdir()], found.site) == ([page.name], page.parent)
    assert "0 of 1 rules passed" in page.read_text("utf-8")


BEYOND_FLOATS = 2**53


@pytest.mark.parametrize("missing", [[], [None]])
def test_large_integers_are_compared_exactly(missing: list[None]) -> None:
    ids = pa.array([BEYOND_FLOATS, BEYOND_FLOATS + 1, 1, *missing], pa.int64())
    rules = [
        rule("expect_column_values_to_be_unique", column="rows", name="unique"),
        rule("expect_column_values_to_be_in_set", column="rows", value_set=[BEYOND_FLOATS + 1, 1], name="in_set"),
        rule("expect_column_values_to_be_between", column="rows", min_value=1, name="between"),
    ]
    found = validate_tables({"gold.days": (pd.dataset(pa.table({"rows": ids})), rules)})
    assert [(check.rule, check.passed) for check in found] == [("unique", True), ("in_set", False), ("between", True)]
    assert found[1].observed == f"1 of {len(ids)} rows"


def test_integer_at_the_limit_of_doubles_is_not_taken_for_its_neighbour() -> None:
    limit = rule("expect_column_values_to_be_in_set", column="rows", value_set=[BEYOND_FLOATS + 1])
    ids = pa.table({"rows": pa.array([BEYOND_FLOATS], pa.int64())})
    (found,) = validate_tables({"gold.days": (pd.dataset(ids), [limit])})
    assert not found.passed


@pytest.mark.parametrize("missing", [[], [None]])
def test_large_decimals_are_compared_exactly(missing: list[None]) -> None:
    texts = ["90071992547409.92", "90071992547409.93", "-0.10"]
    litres = pa.array([*map(Decimal, texts), *missing], pa.decimal128(18, 2))
    rules = [
        rule("expect_column_values_to_be_unique", column="litres", name="unique"),
        rule("expect_column_values_to_be_in_set", column="litres", value_set=[90071992547409.92, -0.1], name="in_set"),
        rule("expect_column_values_to_be_between", column="litres", min_value=-0.1, name="between"),
        rule("expect_column_max_to_be_between", column="litres", max_value=1, name="max"),
    ]
    found = validate_tables({"gold.days": (pd.dataset(pa.table({"litres": litres})), rules)})
    verdicts = [(check.rule, check.passed) for check in found]
    assert verdicts == [("unique", True), ("in_set", False), ("between", True), ("max", False)]
    assert found[1].observed == f"1 of {len(litres)} rows"
