"""The share of differing keys that needs no approval is the one that was requested, in a plan of each kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from slice_patcher import copy_release
from small_release import SmallRelease

from include.change.plan_parameters import BackfillParameters, ReleaseParameters, ReplayParameters
from include.change.recompute import BackfillPlan, ReplayPlan
from include.change.reinstate import ReinstateParameters, ReinstatePlan
from include.change.release import ReleasePlan
from include.ground.paths import snapshot_path
from include.ground.settings import Settings
from include.plans.journal import load_plan
from include.plans.plan import PlanRecord
from include.read.rejected_records import RejectedFilter

THRESHOLD = 0.25
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
SINCE, UNTIL = datetime(2024, 2, 1, tzinfo=UTC), datetime(2024, 3, 1, tzinfo=UTC)


def backfill(settings: Settings) -> PlanRecord:
    return BackfillPlan().plan(
        settings, "meter", BackfillParameters(start=SINCE, end=UNTIL, threshold=THRESHOLD), "me", NOON
    )


def replay(settings: Settings) -> PlanRecord:
    parameters = ReplayParameters(by="batches", first_batch=0, last_batch=1, source="bronze", threshold=THRESHOLD)
    return ReplayPlan().plan(settings, "meter", parameters, "me", NOON)


def reinstatement(settings: Settings) -> PlanRecord:
    parameters = ReinstateParameters(records=RejectedFilter(reason="type"), threshold=THRESHOLD, why="a test")
    return ReinstatePlan().plan(settings, "meter", parameters, "me", NOON)


def release(settings: Settings) -> PlanRecord:
    path = settings.datasets / "meter" / "silver.py"
    path.write_text(path.read_text("utf-8") + "\n# Changed.\n", "utf-8")
    return ReleasePlan().plan(settings, "meter", ReleaseParameters(threshold=THRESHOLD), "me", NOON)


@pytest.mark.parametrize("create", [backfill, replay, reinstatement, release])
def test_plan_keeps_the_requested_threshold(
    compactable: SmallRelease, tmp_path: Path, create: Callable[[Settings], PlanRecord]
) -> None:
    copied = copy_release(compactable, tmp_path / "state")
    shutil.copytree(copied.dataset.folder, tmp_path / "datasets" / "meter")
    shutil.copytree(copied.dataset.folder, snapshot_path(copied.settings, "meter", copied.dataset.release))
    settings = copied.settings.model_copy(update={"datasets": tmp_path / "datasets"})
    plan = create(settings).plan
    assert (plan.threshold, load_plan(settings, plan.id).plan.threshold) == (THRESHOLD, THRESHOLD)
