"""A plan that breaks a hold rule is not approved; a plan whose rules cannot be evaluated needs approval."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from deltalake import write_deltalake
from error_codes import raises

from include.change import quality
from include.change import recompute as backfill_plan
from include.change import stages as plan_stages
from include.change.quality_job import validate_plan
from include.declare.dataset import Dataset, load_dataset
from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.errors import Terminal
from include.ground.paths import patch_path, snapshot_path
from include.ground.settings import CLONE, Settings
from include.plans.comparison import EQUAL, HELD, NEEDS_APPROVAL, WITHIN_POLICY
from include.plans.journal import comparison_path, record_result, save_plan
from include.plans.plan import (
    BACKFILL,
    RELEASE,
    Compared,
    Plan,
    PlanRecord,
    Prediction,
    ReleaseBuilt,
    SliceBuilt,
    Stage,
)
from include.read.publication import Publication, TableVersion, publish

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FLIGHTS = CLONE / "include" / "datasets" / "flights"
TABLE = "gold.route_days"


def with_rules(folder: Path) -> Dataset:
    """Flights with two rules of route_days: no negative count holds, at most ten rows warns."""
    shutil.copytree(FLIGHTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    contract = yaml.safe_load((folder / "contract.yaml").read_text("utf-8"))
    rules = [
        ("negative", "hold", "expect_column_values_to_be_between", {"column": "scheduled", "min_value": 0}),
        ("many", "warn", "expect_table_row_count_to_be_between", {"max_value": 2}),
    ]
    contract["schema"] = [
        contract["schema"][0],
        {
            "name": "route_days",
            "quality": [
                {
                    "type": "custom",
                    "engine": "greatExpectations",
                    "name": name,
                    "customProperties": [{"property": "action", "value": action}],
                    "implementation": {"type": kind, "kwargs": kwargs},
                }
                for name, action, kind, kwargs in rules
            ],
        },
    ]
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract), "utf-8")
    return load_dataset("flights", folder)


@pytest.fixture
def dataset(settings: Settings, tmp_path: Path) -> Dataset:
    made = with_rules(tmp_path / "flights")
    place = snapshot_path(settings, "flights", made.release)
    shutil.copytree(made.folder, place)
    return load_dataset("flights", place)


@pytest.fixture
def checks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate the rules in this process: one of their own loads Great Expectations, five seconds each time."""

    def run_here(settings: Settings, plan: str, *_: object) -> dict[str, Any]:
        return {"checks": quality.RESULTS.dump_python(validate_plan(settings, plan), mode="json")}

    monkeypatch.setattr(quality, "run_job", run_here)


def route_days(scheduled: list[int]) -> pl.DataFrame:
    days = [datetime(2026, 1, day + 1, tzinfo=UTC) for day in range(len(scheduled))]
    return pl.DataFrame({"day": days, "origin": "EWR", "dest": "IAH", "scheduled": scheduled})


def planned(settings: Settings, dataset: Dataset, kind: str, slice_: Slice | None = None) -> PlanRecord:
    release = dataset.release
    plan = Plan(
        f"{kind}-flights-1", kind, "flights", release, release, NOON, "ann", 0.5, [], Prediction(1, 1, 1, 1, 1, 1)
    )
    return save_plan(settings, replace(plan, slice=slice_))


def built_release(settings: Settings, dataset: Dataset, scheduled: list[int]) -> PlanRecord:
    path = settings.state / "warehouse" / "route_days"
    write_deltalake(str(path), route_days([5, 6, 7]).to_arrow())
    write_deltalake(str(path), route_days(scheduled).to_arrow(), mode="overwrite")
    record = planned(settings, dataset, RELEASE)

    def seen(version: int) -> Mapping[str, Any]:
        table = {"path": "route_days", "version": version}
        return {
            "dataset": "flights",
            "release": dataset.release,
            "batch": 1,
            "published_at": NOON.isoformat(),
            "offsets": {},
            "tables": {TABLE: table},
        }

    return record_result(settings, record.plan.id, ReleaseBuilt(batch=1, built=seen(1), published=seen(0)), "ann")


def built_slice(settings: Settings, dataset: Dataset, scheduled: list[int], others: int = 0) -> PlanRecord:
    """A slice of three days, and so many other days in the table that readers see."""
    days = settings.state / "warehouse" / "route_days"
    write_deltalake(str(days), route_days([5, 6, 7, *range(others)]).to_arrow())
    publish(settings, Publication("flights", dataset.release, 1, NOON, {}, {TABLE: TableVersion("route_days", 0)}))
    record = planned(settings, dataset, BACKFILL, Slice([Span(0, 0, 9, BRONZE)], NOON, NOON))
    folder = patch_path(settings, "flights", dataset.release, record.plan.id)
    for state, rows in (("before", [5, 6, 7]), ("after", scheduled)):
        (folder / state / TABLE).mkdir(parents=True)
        route_days(rows).write_parquet(folder / state / TABLE / "part.parquet")
    return record_result(settings, record.plan.id, SliceBuilt(batch=1, attempt="1"), "ann")


def test_release_that_breaks_a_hold_rule_is_not_approved(settings: Settings, dataset: Dataset) -> None:
    record = built_release(settings, dataset, [5, -1, 7])
    record, found = plan_stages.compare_built(settings, record, "ann", lambda _: None)
    assert (found.verdict, list(record.last(Compared).blocked_by)) == (HELD, [f"{TABLE}: negative"])
    assert {c.rule: (c.passed, c.blocks) for c in found.checks} == {
        "negative": (False, True),
        "many": (False, False),
    }
    page = comparison_path(settings, record.plan.id, "html").read_text("utf-8")
    assert "negative" in page
    assert "1 of 3 rows" in page
    with raises(Terminal, "plan-held") as held:
        plan_stages.approve(settings, record, "ann")
    assert held.value.facts["rules"] == (f"{TABLE}: negative",)
    assert record.stage is Stage.COMPARED


@pytest.mark.usefixtures("checks_here")
def test_release_that_keeps_its_rules_is_approved(settings: Settings, dataset: Dataset) -> None:
    record, found = plan_stages.compare_built(
        settings, built_release(settings, dataset, [5, 1, 7]), "ann", lambda _: None
    )
    assert (found.verdict, [c.blocks for c in found.checks]) == (WITHIN_POLICY, [False, False])
    assert plan_stages.approve(settings, record, "ann").stage is Stage.APPROVED


@pytest.mark.usefixtures("checks_here")
def test_slice_is_validated_by_its_rows_and_by_the_resulting_table(settings: Settings, dataset: Dataset) -> None:
    record = built_slice(settings, dataset, [5, -1, 7], others=2)
    record, found = plan_stages.compare_built(settings, record, "ann", lambda _: None)
    assert {c.rule: c.observed for c in found.checks} == {"negative": "1 of 3 rows", "many": "5"}
    assert found.verdict == HELD
    with raises(Terminal, "plan-held"):
        plan_stages.approve(settings, record, "ann")


@pytest.mark.usefixtures("checks_here")
@pytest.mark.parametrize(("others", "verdict"), [(0, HELD), (1, WITHIN_POLICY)])
def test_slice_is_not_held_for_a_rule_that_fails_without_it(
    settings: Settings, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, others: int, verdict: str
) -> None:
    """Three rows are allowed; the slice makes four of three, or four of the four that there are."""
    path = dataset.folder / "contract.yaml"
    text = path.read_text("utf-8")
    path.write_text(text.replace("max_value: 2", "max_value: 3").replace("value: warn", "value: hold"), "utf-8")
    changed = load_dataset("flights", dataset.folder)
    dataset.folder.rename(snapshot_path(settings, "flights", changed.release))
    changed = load_dataset("flights", snapshot_path(settings, "flights", changed.release))
    after = [5, 6, 8, 9] if others == 0 else [5, 6, 8]
    _, found = plan_stages.compare_built(settings, built_slice(settings, changed, after, others), "ann", lambda _: None)
    many = next(c for c in found.checks if c.rule == "many")
    assert (many.passed, many.blocks, found.verdict) == (False, others == 0, verdict)
    assert many.observed == ("4" if others == 0 else "4; fails without the plan too")


def test_equal_slice_is_not_validated(settings: Settings, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nothing/can/be/started")
    record = built_slice(settings, dataset, [5, 6, 7])
    monkeypatch.setattr(backfill_plan, "write_verified", lambda *_: None)
    _, found = plan_stages.compare_built(settings, record, "ann", lambda _: None)
    assert (found.verdict, list(found.checks)) == (EQUAL, [])


def test_hold_rule_needs_approval_without_the_quality_packages(
    settings: Settings, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"failed": "no", "not_installed": "great_expectations"})
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\necho '{answer}'\nexit 2\n", "utf-8")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    record, found = plan_stages.compare_built(
        settings, built_release(settings, dataset, [5, 1, 7]), "ann", lambda _: None
    )
    assert found.verdict == NEEDS_APPROVAL
    assert {c.observed for c in found.checks} == {'run make setup GROUPS="runtime quality"'}
    assert plan_stages.approve(settings, record, "ann").stage is Stage.APPROVED
