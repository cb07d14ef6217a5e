"""Comparisons: what counts as equal, which verdict follows, and that every rendering shows values literally."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import write_deltalake
from rich.console import Console

from include.change import compare as key_parts
from include.change.compare import Side, compare
from include.change.comparison_view import comparison_markdown, comparison_page, comparison_view
from include.cli.terminal import show_comparison
from include.declare.contract_rules import RuleResult
from include.declare.dataset import load_dataset
from include.ground.render_template import code_span
from include.ground.settings import CLONE
from include.plans.comparison import (
    EQUAL,
    HELD,
    NEEDS_APPROVAL,
    WITHIN_POLICY,
    ColumnChange,
    ColumnProfile,
    Comparison,
    MeasureChange,
    Sample,
    TableComparison,
    comparison_from_json,
)
from include.read.memory_database import spill_folder
from include.read.published_tables import PublishedTable, open_dataset

FLIGHTS = CLONE / "include" / "datasets" / "flights"
ROUTES = pl.DataFrame(
    {"day": ["a", "a", "b"], "origin": ["EWR", "JFK", "EWR"], "dest": ["X", "X", "Y"], "departed": [1, 2, None]}
).with_columns(_revision=pl.lit(1))
MARKUP = "<script>alert(1)</script> [bold] *x* {{ 7*7 }} [y](z) a|b `c`"


def compared(tmp_path: Path, old: pl.DataFrame, new: pl.DataFrame, threshold: float = 0.0) -> Comparison:
    return compare(*sides_of(tmp_path, old, new), 3, threshold, lambda _: None)


def sides_of(folder: Path, old: pl.DataFrame, new: pl.DataFrame) -> list[Side]:
    dataset = load_dataset("flights", FLIGHTS)
    sides = []
    for side, rows in (("old", old), ("new", new)):
        write_deltalake(str(folder / side), rows.to_arrow())
        table = PublishedTable("gold.route_days", folder / side, 0, "flights", side, 3)
        sides.append(Side(dataset, {table.name: open_dataset(table)}))
    return sides


def page(comparison: Comparison) -> str:
    return comparison_page("release-flights-1: release aaa → bbb", comparison)


def in_terminal(comparison: Comparison, width: int = 300) -> str:
    console = Console(file=StringIO(), width=width)
    show_comparison(console, comparison)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_no_cell_is_cut_in_a_narrow_terminal(tmp_path: Path) -> None:
    found, million = compared(tmp_path, ROUTES, ROUTES), 1_034_336
    tables = [
        TableComparison("silver.flights", "both", ["event_id"], million, million, million, changed=million),
        TableComparison("gold.carrier_hours", "both", ["carrier"], 121_082, 121_082, 121_082, 54_425, 54_425, 66_005),
    ]
    rule = RuleResult("gold.route_days", "no_more_arrived_than_departed", "", "warn", "", None, "run make setup")
    text = in_terminal(replace(found, tables=tables, checks=[rule]), width=80)
    assert "…" not in text
    assert text.count("1,034,336") == 3


def test_internal_columns_and_row_order_do_not_differ(tmp_path: Path) -> None:
    found = compared(tmp_path, ROUTES, ROUTES.reverse().with_columns(_revision=pl.lit(9)))
    assert found.verdict == EQUAL
    assert "equal" in page(found)


@pytest.mark.parametrize(
    ("old", "new", "added", "missing", "difference", "change"),
    [
        (1_000, 24_770, 23_770, 0, "×24.8 rows", "×24.8"),
        (1_000, 1_280, 1_280, 1_000, "2,280 keys, of 1,000 before", "+28 %"),
        (1_000, 1_050, 50, 0, "5.00 %", "+5 %"),
        (1_000, 0, 0, 1_000, "100.00 %", "-100 %"),
    ],
)
def test_difference_beyond_all_keys_is_no_percentage(
    old: int, new: int, added: int, missing: int, difference: str, change: str
) -> None:
    table = TableComparison(
        name="gold.days", presence="both", keys=("day",), old_rows=old, new_rows=new, old_keys=old,
        added=added, missing=missing, changed=0, measures=(MeasureChange("n", float(old), float(new), 0.0, 0.0),),
    )  # fmt: skip
    (shown,) = comparison_view(Comparison("flights", "a", "b", 3, 0.25, (table,), ())).tables
    assert (shown.difference, shown.statistics[0].change) == (difference, change)


def test_terminal_shows_the_verdict_and_three_differences_unless_details_are_requested() -> None:
    measures = tuple(MeasureChange(f"m{n}", 100.0, 100.0 + n, 0.0, 0.0) for n in range(1, 9))
    table = TableComparison(
        name="gold.days", presence="both", keys=("day",), old_rows=9, new_rows=9, old_keys=9,
        added=0, missing=0, changed=9, measures=measures,
    )  # fmt: skip
    comparison = Comparison("flights", "a", "b", 3, 0.25, (table,), ())
    written = {}
    for details in (False, True):
        console = Console(width=80, record=True, file=StringIO())
        show_comparison(console, comparison, details=details)
        written[details] = console.export_text()
    lines = written[False].splitlines()
    assert lines[0].startswith("needs approval")
    found = [line.strip().split(":")[0] for line in lines if "gold.days.m" in line]
    assert found == [f"gold.days.m{n}" for n in (8, 7, 6)]
    assert "5 more differences" in written[False]
    assert max(map(len, lines)) <= 80
    assert all(f"gold.days.m{n}:" in written[True] for n in range(1, 9))


def test_every_kind_of_difference_is_sampled_with_its_key(tmp_path: Path) -> None:
    new = pl.concat(
        [
            ROUTES[1:2].with_columns(departed=pl.lit(5, pl.Int64)),
            ROUTES[2:],
            ROUTES[:1].with_columns(dest=pl.lit("<Z>")),
        ]
    )
    found = compared(tmp_path, ROUTES, new)
    (table,) = found.tables
    assert (table.added, table.missing, table.changed, table.old_keys) == (1, 1, 1, 3)
    assert found.verdict == NEEDS_APPROVAL
    (sample,) = table.samples["changed"]
    assert sample == Sample({"day": "a", "origin": "JFK", "dest": "X"}, [{"departed": 2}], [{"departed": 5}])
    (measure,) = table.measures
    assert (measure.old_sum, measure.new_sum, measure.percent) == (3.0, 6.0, 100.0)
    written = page(comparison_from_json(json.dumps(found.to_json())))
    assert "&lt;Z&gt;" in written
    assert "<Z>" not in written
    assert "departed=2" in written
    assert "+100 %" in written


def test_rows_with_a_null_key_are_sampled(tmp_path: Path) -> None:
    rows = ROUTES.with_columns(day=pl.Series([None, "a", None]), dest=pl.lit(None, pl.String))
    (table,) = compared(tmp_path, rows, rows.with_columns(departed=pl.lit(7, pl.Int64))).tables
    found = [(each.key["day"], each.key["origin"], each.old, each.new) for each in table.samples["changed"]]
    after = [{"departed": 7}]
    assert sorted(found, key=str) == [
        ("a", "JFK", [{"departed": 2}], after),
        (None, "EWR", [{"departed": 1}, {"departed": None}], after * 2),
    ]


def test_sums_of_doubles_that_differ_by_the_order_of_adding_are_not_shown() -> None:
    measures = (
        MeasureChange("average", 2_301_650_112.0, 2_301_650_112.0 * (1 + 2e-15), 0.0, 0.0),
        MeasureChange("delay", 2_301_650_112.0, 2_301_650_113.0, 0.0, 0.0),
        MeasureChange("lost", 1.0, None, 0.0, 1.0),
    )
    table = TableComparison("gold.days", "both", keys=["day"], old_rows=10, new_rows=10, measures=measures)
    (shown,) = comparison_view(Comparison("flights", "a", "b", 3, 0.25, (table,), ())).tables
    assert [(each.column, each.statistic) for each in shown.statistics] == [
        ("delay", "sum"), ("lost", "sum"), ("lost", "nulls")
    ]  # fmt: skip


def test_each_measure_is_compared_by_itself(tmp_path: Path) -> None:
    old = ROUTES.with_columns(delay=pl.Series([10, 20, 30]))
    found = compared(tmp_path, old, old.with_columns(delay=pl.Series([10, 20, 36])))
    sums = {each.column: (each.old_sum, each.new_sum, each.percent) for each in found.tables[0].measures}
    assert sums["delay"] == (60.0, 66.0, 10.0)
    assert sums["departed"][:2] == (3.0, 3.0)
    nulls = {each.column: (each.old_nulls, each.new_nulls) for each in found.tables[0].measures}
    assert nulls == {"departed": (1 / 3, 1 / 3), "delay": (0.0, 0.0)}
    (sample,) = found.tables[0].samples["changed"]
    assert (sample.old, sample.new) == ([{"departed": None, "delay": 30}], [{"departed": None, "delay": 36}])


def many_routes(seed: int) -> pl.DataFrame:
    """Return 3,000 rows with null keys, keys of several rows and keys that only one seed has."""
    n = pl.int_range(40 * seed, 40 * seed + 3000, eager=True)
    keys = {"day": (n % 7).cast(pl.String), "origin": n.cast(pl.String), "dest": pl.lit("X")}
    rows = pl.DataFrame({"n": n}).select(**keys, departed=n + seed * (n % 100 == 1).cast(pl.Int64))
    return pl.concat([rows, rows[:500]]).with_columns(origin=pl.when(pl.col("origin") != "70").then("origin"))


@pytest.mark.parametrize("rows", [100, 1000])
def test_comparison_does_not_depend_on_the_number_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    old, new = many_routes(0), many_routes(1)
    whole = compared(tmp_path / "whole", old, new)
    assert all((whole.tables[0].added, whole.tables[0].missing, whole.tables[0].changed))
    monkeypatch.setattr(key_parts, "ROWS", rows)
    assert compared(tmp_path / "parts", old, new) == whole
    assert not list(spill_folder(os.getpid()).glob("*/*/_part=*")), "parts are removed"


def test_empty_side_is_compared_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_parts, "ROWS", 100)
    (table,) = compared(tmp_path, many_routes(0)[:0], many_routes(0)).tables
    assert (table.added, table.missing, table.changed, table.old_keys) == (3000, 0, 0, 0)


def test_duplicated_rows_are_a_change(tmp_path: Path) -> None:
    found = compared(tmp_path, ROUTES, pl.concat([ROUTES, ROUTES[:1], ROUTES[:1]]))
    assert found.tables[0].changed == 1


@pytest.mark.parametrize(("threshold", "verdict"), [(0.33, NEEDS_APPROVAL), (0.34, WITHIN_POLICY)])
def test_threshold_is_a_share_of_the_keys(tmp_path: Path, threshold: float, verdict: str) -> None:
    new = ROUTES.with_columns(departed=pl.when(pl.col("dest") == "Y").then(7).otherwise("departed"))
    assert compared(tmp_path, ROUTES, new, threshold).verdict == verdict


@pytest.mark.parametrize(("other", "verdict"), [(0.3 + 1e-13, EQUAL), (0.3 + 1e-6, NEEDS_APPROVAL)])
def test_sums_of_doubles_differ_beyond_their_last_digits(tmp_path: Path, other: float, verdict: str) -> None:
    old, new = (ROUTES.with_columns(distance_miles=pl.Series([value, 0.0, None])) for value in (0.3, other))
    assert compared(tmp_path, old, new).verdict == verdict


def test_removed_column_needs_approval_at_any_threshold(tmp_path: Path) -> None:
    found = compared(tmp_path, ROUTES, ROUTES.drop("departed"), 1.0)
    assert (found.verdict, found.tables[0].columns_removed) == (NEEDS_APPROVAL, ["departed"])


def test_added_column_needs_no_approval(tmp_path: Path) -> None:
    found = compared(tmp_path, ROUTES, ROUTES.with_columns(arrived=pl.lit(1)))
    assert (found.verdict, found.tables[0].columns_added) == (WITHIN_POLICY, ["arrived"])


def test_new_column_that_is_always_false_is_seen_in_every_rendering(tmp_path: Path) -> None:
    found = compared(tmp_path, ROUTES, ROUTES.with_columns(late=pl.lit(False)))
    (change,) = found.tables[0].profiles
    assert change == ColumnChange("late", "new", None, ColumnProfile(3, 0, 1, "false", "false", None, [("false", 3)]))
    for shown in (page(found), in_terminal(found), comparison_markdown(found)):
        for fact in ("late", "nulls", "0 of 3", "distinct", "min", "max", "top values", "false (3)"):
            assert fact in shown


def test_changed_column_is_profiled_before_and_after(tmp_path: Path) -> None:
    old = ROUTES.with_columns(mark=pl.Series(["x", "x", None]))
    new = old.with_columns(mark=pl.Series(["x", "y", "z"]))
    found = compared(tmp_path, old, new)
    (change,) = found.tables[0].profiles
    assert (change.column, change.kind) == ("mark", "changed")
    assert change.old == ColumnProfile(3, 1, 1, "x", "x", None, [("x", 2)])
    assert change.new == ColumnProfile(3, 0, 3, "x", "z", None, [])
    line = next(line for line in in_terminal(found).splitlines() if "gold.route_days.mark" in line)
    assert line.strip() == (
        "gold.route_days.mark: nulls 1 of 3 → 0 of 3; distinct 1 → 3; max x → z; top values x (2) → –"
    )
    assert comparison_from_json(json.dumps(found.to_json())).tables[0].profiles == [change]


def test_values_in_another_order_are_no_change_of_a_column(tmp_path: Path) -> None:
    assert compared(tmp_path, ROUTES, ROUTES.reverse()).tables[0].profiles == []


def test_columns_of_a_new_table_are_profiled(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "new"), ROUTES.to_arrow())
    dataset = load_dataset("flights", FLIGHTS)
    rows = open_dataset(PublishedTable("gold.route_days", tmp_path / "new", 0, "flights", "new", 3))
    found = compare(Side(dataset, {}), Side(dataset, {"gold.route_days": rows}), 3, 0.0, lambda _: None)
    profiles = {change.column: change.new for change in found.tables[0].profiles}
    assert profiles["departed"] == ColumnProfile(3, 1, 2, "1", "2", "3", [])
    assert "departed" in page(found)


def test_tables_with_other_key_columns_need_approval(tmp_path: Path) -> None:
    found = compared(tmp_path, ROUTES.rename({"dest": "destination"}), ROUTES, 1.0)
    assert (found.verdict, found.tables[0].presence) == (NEEDS_APPROVAL, "rekeyed")
    assert (found.tables[0].old_rows, found.tables[0].new_rows) == (3, 3)
    assert "rekeyed" in page(found)


def result(action: str, passed: bool | None) -> RuleResult:
    return RuleResult("gold.route_days", "few_rows", "expect_x", action, "critical", passed, "7")


@pytest.mark.parametrize(
    ("checks", "differing", "verdict"),
    [
        ([], 0, EQUAL),
        ([result("hold", True)], 0, EQUAL),
        ([result("warn", False)], 0, EQUAL),
        ([result("hold", False)], 0, HELD),
        ([result("fail", False), result("warn", True)], 1, HELD),
        ([result("hold", None)], 0, NEEDS_APPROVAL),
        ([result("hold", None)], 1, NEEDS_APPROVAL),
        ([result("warn", None)], 1, WITHIN_POLICY),
    ],
)
def test_failed_and_unevaluated_rules_decide_the_verdict(
    checks: list[RuleResult], differing: int, verdict: str
) -> None:
    table = TableComparison("gold.route_days", "both", old_keys=100, changed=differing)
    assert Comparison("flights", "a", "b", 1, 0.5, [table], checks).verdict == verdict


def with_markup() -> Comparison:
    """A comparison with markup in every value that comes from data, columns or contracts."""
    table = TableComparison(
        MARKUP,
        "both",
        keys=[MARKUP],
        old_rows=2,
        new_rows=2,
        old_keys=2,
        changed=1,
        columns_added=[MARKUP],
        retyped={MARKUP: ("INTEGER", MARKUP)},
        samples={"changed": [Sample({"route": MARKUP}, [{"a": MARKUP}], [{"a": "b"}])]},
        measures=[MeasureChange(MARKUP, 1.0, 3.0, 0.0, 0.5)],
        profiles=[ColumnChange("a", "new", None, ColumnProfile(2, 0, 2, MARKUP, MARKUP, None, [(MARKUP, 2)]))],
    )
    check = RuleResult(MARKUP, MARKUP, MARKUP, "hold", "critical", passed=False, observed=MARKUP)
    return Comparison("flights", "aaa", "bbb", 3, 0.0, [table], [check])


def test_values_with_markup_are_shown_literally_in_every_rendering() -> None:
    comparison = with_markup()
    html = page(comparison)
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; [bold] *x* {{ 7*7 }} [y](z) a|b `c`" in html
    markdown = comparison_markdown(comparison)
    as_code = "<script>alert(1)</script> [bold] *x* {{ 7*7 }} [y](z) a¦b 'c'"
    assert f"`route={as_code}`" in markdown
    outside_code = "".join(markdown.split("`")[::2])
    assert "script" not in outside_code
    assert "(z)" not in outside_code
    text = in_terminal(comparison)
    assert text.count(MARKUP) >= 7, "table, columns, sum, key, and three cells of the check"


def test_markdown_value_is_one_line_of_code() -> None:
    assert code_span("a|b`c\n# big [x](y)") == "`a¦b'c # big [x](y)`"
    assert code_span("") == ""
    assert len(code_span("x" * 1000)) == 202


def test_failed_rules_are_marked_in_markdown() -> None:
    table = TableComparison("gold.days", "both")
    checks = [result("hold", True), result("hold", False), result("warn", None)]
    markdown = comparison_markdown(Comparison("flights", "a", "b", 1, 0.0, [table], checks))
    assert [line for line in markdown.splitlines() if "rule" in line] == [
        "- `gold.route_days`: rule `few_rows` (hold) **failed**, observed `7`",
        "- `gold.route_days`: rule `few_rows` (warn) **not evaluated**, observed `7`",
        "- `gold.route_days`: rule `few_rows` (hold) passed, observed `7`",
    ]


def test_every_rendering_shows_the_same_facts() -> None:
    table = TableComparison(
        "gold.days", "both", keys=["day"], old_rows=10, new_rows=12, old_keys=8, added=1, changed=1,
        columns_removed=["tails"], samples={"added": [Sample({"day": "mon"}, [], [{"n": 1}])]},
        measures=[MeasureChange("delay", 1500.0, 3000.0, 0.0, 0.25)],
    )  # fmt: skip
    comparison = Comparison("flights", "aaa", "bbb", 3, 0.25, [table, TableComparison("gold.new", "added", new_rows=4)])
    renderings = page(comparison), in_terminal(comparison), comparison_markdown(comparison)
    for shown in renderings:
        for fact in ("needs approval", "both at bronze batch 3; threshold 25 % of the keys", "25.00 %", "new table"):
            assert fact in shown
        for fact in ("gold.days", "tails", "removed column", "delay", "1,500", "3,000", "0.00 %", "day=mon"):
            assert fact in shown
        assert "12" in shown


def test_comparison_json_of_earlier_versions_is_readable() -> None:
    check = {"table": "gold.days", "rule": "r", "expectation": "e", "severity": "critical", "action": "hold"}
    measure = {"column": "delay", "old_sum": 1.0, "new_sum": 2.0, "old_nulls": 0.0, "new_nulls": 0.0}
    table: dict[str, Any] = {
        "name": "gold.days", "presence": "both", "keys": ["day"], "old_rows": 1, "new_rows": 1, "old_keys": 1,
        "added": 0, "missing": 0, "changed": 1, "columns_added": [], "columns_removed": [],
        "retyped": {"delay": ["INTEGER", "BIGINT"]}, "drift": [measure], "share": 1.0, "equal": False,
        "samples": {"changed": [{"key": {"day": "mon"}, "old": [{"delay": 1}], "new": [{"delay": float("nan")}]}]},
    }  # fmt: skip
    stored = {
        "dataset": "flights", "base": "aaa", "release": "bbb", "batch": 3, "threshold": 0.0, "verdict": "held",
        "tables": [table],
        "checks": [
            check | {"is_kept": False, "blocks": True, "seen": "7", "was_broken": False},
            check | {"is_kept": False, "blocks": False, "seen": "8", "was_broken": True},
            check | {"is_kept": None, "blocks": False, "seen": "not asked"},
        ],
    }  # fmt: skip
    found = comparison_from_json(json.dumps(stored))
    assert [(c.passed, c.observed, c.blocks) for c in found.checks] == [
        (False, "7", True),
        (False, "8", False),
        (None, "not asked", False),
    ]
    assert (found.verdict, found.tables[0].measures[0].percent) == (HELD, 100.0)
    assert found.tables[0].retyped == {"delay": ("INTEGER", "BIGINT")}
    assert comparison_from_json(json.dumps(found.to_json(), allow_nan=False)).to_json() == found.to_json()
    assert "delay=nan" in page(found)
