"""`run_plan` executes exactly the stages that `headrace plan explain` lists, for every kind of plan and every stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from error_codes import raises
from plan_samples import advanced, plan_at, result_of, sample_plan

from include.change import stages as plan_stages
from include.change.jobs import JobTimedOut
from include.change.stages import KINDS, NotApproved, PlanReporter, explanation, rebuild, run_plan, stages_of
from include.ground.errors import Refused
from include.ground.settings import Settings
from include.plans.journal import last_failure, save_plan
from include.plans.plan import BACKFILL, KIND_NAMES, REPLAY, PlanRecord, Stage, StageRefused

PATHS: tuple[tuple[Stage, ...], ...] = (
    (),
    (Stage.BUILT,),
    (Stage.BUILT, Stage.COMPARED),
    (Stage.BUILT, Stage.COMPARED, Stage.BUILT),
    (Stage.BUILT, Stage.COMPARED, Stage.APPROVED),
    (Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED),
    (Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED, Stage.ROLLED_BACK),
    (Stage.BUILT, Stage.COMPARED, Stage.REJECTED),
    (Stage.CANCELLED,),
)


class RecordingReporter(PlanReporter):
    """Records the stages that were started."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, stage: Any) -> None:
        self.begun.append(f"{stage.name:8} {stage.description}")


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage records its result and does nothing else."""

    def stage(reaches: Stage) -> Any:
        return lambda settings, record, *_: advanced(settings, record, reaches)

    monkeypatch.setattr(plan_stages, "build", stage(Stage.BUILT))
    monkeypatch.setattr(plan_stages, "compare_built", lambda *args: (stage(Stage.COMPARED)(*args), None))
    monkeypatch.setattr(plan_stages, "apply", stage(Stage.APPLIED))


def listed(record: PlanRecord, *states: str) -> Iterator[str]:
    for line in explanation(record):
        state, _, rest = line.strip().partition(" ")
        if state in states:
            yield rest.strip()


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_explain_lists_exactly_the_stages_that_are_executed(
    settings: Settings, kind: str, path: tuple[Stage, ...]
) -> None:
    record, reporter = plan_at(settings, *path, kind=kind), RecordingReporter()
    expected = list(listed(record, "next", "then"))
    try:
        run_plan(settings, record, reporter, lambda _: "ann", "ann")
    except StageRefused:
        assert expected == []
    assert reporter.begun == expected
    assert len(list(listed(record, "done"))) + len(list(listed(record, "next", "then", "never"))) == 4


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize("upto", [Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED])
def test_run_stops_at_the_requested_stage_and_a_second_run_executes_nothing(settings: Settings, upto: Stage) -> None:
    record, reporter = plan_at(settings), RecordingReporter()
    record = run_plan(settings, record, reporter, lambda _: None, "ann", upto)
    assert record.stage is upto
    before = len(reporter.begun)
    assert run_plan(settings, record, reporter, lambda _: None, "ann", upto) == record
    assert len(reporter.begun) == before


@pytest.mark.parametrize("stages", [(Stage.CANCELLED,), (Stage.BUILT, Stage.COMPARED, Stage.REJECTED)])
def test_ended_plan_is_not_run(settings: Settings, stages: tuple[Stage, ...]) -> None:
    with pytest.raises(StageRefused):
        run_plan(settings, plan_at(settings, *stages), PlanReporter(), lambda _: "ann", "ann")


@pytest.mark.usefixtures("stubbed")
def test_needed_approval_is_requested_once_and_recorded_with_its_author(settings: Settings) -> None:
    record = plan_at(settings, Stage.BUILT, Stage.COMPARED)
    record = advanced(settings, record, Stage.COMPARED, verdict="needs approval")
    with pytest.raises(NotApproved, match="headrace plan approve"):
        run_plan(settings, record, PlanReporter(), lambda _: None, "ann")
    record = run_plan(settings, record, PlanReporter(), lambda _: "bob", "ann")
    assert [(event.stage, event.by) for event in record.events][-2:] == [
        (Stage.APPROVED, "bob"),
        (Stage.APPLIED, "ann"),
    ]


@pytest.mark.usefixtures("stubbed")
def test_policy_approves_an_equal_plan_without_a_request(settings: Settings) -> None:
    record = plan_at(settings, Stage.BUILT, Stage.COMPARED)
    record = run_plan(settings, record, PlanReporter(), lambda _: pytest.fail("approver called"), "ann", Stage.APPROVED)
    assert record.events[-1].by == "policy"


@pytest.mark.usefixtures("stubbed")
def test_rebuild_repeats_build_and_comparison_only(settings: Settings) -> None:
    reporter = RecordingReporter()
    record = rebuild(settings, plan_at(settings, Stage.BUILT, Stage.COMPARED), reporter, "ann")
    assert (record.stage, len(record.events)) == (Stage.COMPARED, 4)
    assert [line.split()[0] for line in reporter.begun] == ["build", "compare"]


def test_filled_gap_always_needs_approval(settings: Settings) -> None:
    record = plan_at(settings, kind=REPLAY)
    record = plan_stages.record_result(settings, record.plan.id, result_of(Stage.BUILT, REPLAY, filled=1), "ann")
    assert plan_stages.needs_approval(advanced(settings, record, Stage.COMPARED))


def test_each_kind_declares_the_stages_in_one_order(settings: Settings) -> None:
    assert set(KINDS) == set(KIND_NAMES)
    for kind in KIND_NAMES:
        names = [stage.name for stage in stages_of(plan_at(settings, kind=kind).plan)]
        assert names == ["build", "compare", "approve", "apply"]


def test_failure_of_a_job_stays_in_the_plan_until_a_stage_completes(
    settings: Settings, stubbed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed_out(*_: Any) -> PlanRecord:
        raise JobTimedOut(record.plan.id, 5.0, "headrace plan apply it")

    record, build = plan_at(settings), plan_stages.build
    monkeypatch.setattr(plan_stages, "build", timed_out)
    with pytest.raises(JobTimedOut):
        run_plan(settings, record, PlanReporter(), lambda _: "ann", "ann")
    assert "failed: timed out after 5 s" in last_failure(settings, record.plan.id)
    monkeypatch.setattr(plan_stages, "build", build)
    run_plan(settings, record, PlanReporter(), lambda _: "ann", "ann")
    assert last_failure(settings, record.plan.id) == ""


@pytest.mark.parametrize("kind", [BACKFILL, REPLAY])
def test_patch_is_refused_where_another_host_may_have_to_finish_it(settings: Settings, kind: str) -> None:
    own_disks = settings.model_copy(update={"lease_domain": "meters"})
    compared = plan_at(settings, Stage.BUILT, Stage.COMPARED, kind=kind)
    with raises(Refused, "patch-on-own-disk"):
        plan_stages.approve(own_disks, compared, "ann")
    applied = advanced(settings, compared, Stage.APPROVED, Stage.APPLIED)
    with raises(Refused, "patch-on-own-disk"):
        plan_stages.roll_back(own_disks, applied, "ann")
    # Nothing would be committed for rows that are equal.
    equal = advanced(settings, save_plan(settings, sample_plan(settings, kind)), Stage.BUILT, differing={})
    assert plan_stages.approve(own_disks, advanced(settings, equal, Stage.COMPARED), "ann").stage is Stage.APPROVED
