"""Plans at any stage, and a result for each stage, for tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings
from include.plans.journal import next_plan_id, record_result, save_plan
from include.plans.plan import (
    RELEASE,
    RELEASES,
    Applied,
    Approved,
    Cancelled,
    Compared,
    Plan,
    PlanRecord,
    Prediction,
    Rejected,
    ReleaseBuilt,
    Retired,
    RolledBack,
    SliceBuilt,
    Stage,
    StageResult,
)
from include.read.publication import Publication

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SLICE = Slice([Span(0, 10, 20, BRONZE)])
TO_APPLIED = (Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED)


def publication(release: str = "aaa", batch: int = 3) -> Publication:
    return Publication("flights", release, batch, NOON, {0: 1}, {})


def result_of(stage: Stage, kind: str = RELEASE, **fields: Any) -> StageResult:
    """A result of a stage; `fields` replace its defaults."""
    built: StageResult = SliceBuilt(batch=3, attempt="1", differing={"silver.flights": 1})
    if kind in RELEASES:
        built = ReleaseBuilt(batch=3, built=publication("bbb"), published=publication())
    results: dict[Stage, StageResult] = {
        Stage.BUILT: built,
        Stage.COMPARED: Compared(verdict="equal"),
        Stage.APPROVED: Approved(verdict="equal"),
        Stage.APPLIED: Applied(batch=3),
        Stage.ROLLED_BACK: RolledBack(batch=3),
        Stage.RETIRED: Retired(releases=["aaa"], batch=3),
        Stage.REJECTED: Rejected(),
        Stage.CANCELLED: Cancelled(),
    }
    return results[stage].model_copy(update=fields)


def sample_plan(settings: Settings, kind: str = RELEASE, dataset: str = "flights", **fields: Any) -> Plan:
    """A plan that is not saved; of a slice unless it is a release."""
    release, slice_ = ("bbb", None) if kind in RELEASES else ("aaa", SLICE)
    name = next_plan_id(settings, kind, dataset)
    plan = Plan(name, kind, dataset, "aaa", release, NOON, "ann", 0.0, [], Prediction(1, 2, 3, 4, 5.0, 6.0), slice_)
    return replace(plan, **fields)


def advanced(settings: Settings, record: PlanRecord, *stages: Stage, by: str = "ann", **fields: Any) -> PlanRecord:
    """The plan after these stages; `fields` are set in the last result."""
    for stage in stages:
        last = fields if stage is stages[-1] else {}
        record = record_result(settings, record.plan.id, result_of(stage, record.plan.kind, **last), by)
    return record


def plan_at(settings: Settings, *stages: Stage, kind: str = RELEASE, **fields: Any) -> PlanRecord:
    """A saved plan that has passed these stages."""
    return advanced(settings, save_plan(settings, sample_plan(settings, kind, **fields)), *stages)
