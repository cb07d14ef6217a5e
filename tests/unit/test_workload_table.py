"""The table of the workloads: each check has a verdict or a reason, and what runs together is grouped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from workloads.analyses import AnalysisResult
from workloads.outcome import WorkloadResult
from workloads.registry import DERIVED, WORKLOADS, connected
from workloads.table import json_row, print_results

from include.audit.balance import DatasetAudit
from include.audit.gold import UncheckedTable


def result(name: str) -> WorkloadResult:
    tables = {"one": [{"a": 1}, {"a": 2}], "two": [{"b": 1}]}
    return WorkloadResult(name, 12, 5000, tables, {}, DatasetAudit(name, "r", 1, ()), freshness=2.25, batch=0)


def printed(*results: WorkloadResult) -> list[str]:
    console = Console(width=200, record=True, file=None)
    with console.capture() as shown:
        print_results(console, list(results))
    return [" ".join(line.split()) for line in shown.get().splitlines()]


def test_line_has_a_verdict_for_each_check() -> None:
    checked = replace(result("posts"), replay=0, orders=(10, 10))
    assert checked.is_good
    assert printed(checked) == [
        "dataset lines events rows stream batch replay orders p95 s",
        "posts 12 5,000 3 equal equal equal 10 of 10 2.2",
    ]


def test_analyses_have_a_verdict_or_figures_and_a_wrong_one_fails_the_command() -> None:
    ranks = AnalysisResult("ranks", "pagerank", 59, {"iterations": 20.0}, 0)
    taste = AnalysisResult("taste", "als", 1200, {"rmse": 0.25}, None)
    checked = replace(result("flights"), analyses=(ranks, taste))
    assert checked.is_good
    assert printed(checked)[2:5] == [
        "analysis algorithm rows oracle figures",
        "ranks pagerank 59 equal iterations 20",
        "taste als 1,200 - rmse 0.25",
    ]
    assert not replace(checked, analyses=(replace(ranks, differing=1),)).is_good


def test_note_names_the_options_that_run_a_check_that_was_not_run() -> None:
    assert printed(result("posts"))[1:] == [
        "posts 12 5,000 3 equal equal - - 2.2",
        "-: not run; --replay --permutations 10 runs it",
    ]


def test_derived_dataset_has_the_reason_why_it_is_not_replayed() -> None:
    checked = replace(result("order_revenue"), orders=(2, 2), freshness=None)
    assert printed(checked)[1:] == [
        "order_revenue 12 5,000 3 equal equal no topic 2 of 2 sent before",
        "no topic: a derived dataset reads published tables, so a replay of its sources reaches it",
        "sent before: records of an earlier run waited for the dataset to be started",
    ]


def test_batch_that_could_not_run_has_the_reason() -> None:
    unchecked = (UncheckedTable("gold.one", "", "not recomputed: the disk is full"),)
    failed = replace(result("order_revenue"), orders=(2, 2), batch=None)
    shown = printed(replace(failed, audit=replace(failed.audit, unchecked=unchecked)))
    assert shown[1] == "order_revenue 12 5,000 3 equal - no topic 2 of 2 2.2"
    assert shown[-1] == "order_revenue: no batch, not recomputed: the disk is full"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"differing": {"one": 2}}, "2 rows"),
        ({"batch": 7}, "7 rows"),
        ({"replay": 1}, "1 rows"),
        ({"orders": (8, 10)}, "8 of 10"),
    ],
)
def test_difference_is_a_number_and_the_demo_fails(change: dict[str, object], text: str) -> None:
    wrong = replace(result("posts"), **change)  # type: ignore[arg-type]
    assert not wrong.is_good
    assert text in printed(wrong)[1]


def test_json_has_the_values_of_the_line() -> None:
    row = json_row(replace(result("auction_prices"), orders=(10, 10)))
    assert row == {
        "dataset": "auction_prices",
        "derived_from": ["auction"],
        "declared_lines": 12,
        "events": 5000,
        "gold_rows": {"one": 2, "two": 1},
        "differing_rows": {"stream": 0, "batch": 0, "replay": None},
        "orders": {"equal": 10, "sent": 10},
        "p95_seconds": 2.25,
        "audit_findings": 0,
        "analyses": [],
    }


def test_workloads_run_with_their_sources_and_what_is_derived_from_these() -> None:
    assert connected(["customer_revenue"]) == [["orders", "lineitem", "order_revenue", "customer_revenue"]]
    assert connected(["lineitem", "auction_prices"]) == [["lineitem"], ["auction", "auction_prices"]]
    groups = connected([*WORKLOADS, *DERIVED])
    assert sorted(name for group in groups for name in group) == sorted([*WORKLOADS, *DERIVED])
    assert [len(group) for group in groups] == [1, 1, 1, 1, 1, 1, 2, 4, 3, 3]
