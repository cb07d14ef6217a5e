"""The stages of a plan as values, and `run_plan`, which executes the stages that remain.

Production continues during a build, and only the owner of the tables changes what is published. After a crash the
interrupted stage runs again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from include.change.compare import Side, compare
from include.change.comparison_view import comparison_page
from include.change.jobs import FactsReporter, JobDied, JobFailed, JobTimedOut, end_plan_job, run_job
from include.change.kind import Confirmation, PlanKind
from include.change.load import LoadPlan
from include.change.quality import refuse_held, run_checks
from include.change.readers import effects_of_plan
from include.change.recompute import BackfillPlan, DerivedBackfillPlan, ReplayPlan
from include.change.reinstate import ReinstatePlan
from include.change.release import DerivedReleasePlan, ReleasePlan, retire_release
from include.ground.errors import Terminal
from include.ground.paths import reading_lock_path
from include.ground.settings import Settings
from include.plans.comparison import HELD, NEEDS_APPROVAL, Comparison
from include.plans.journal import load_plan, plan_lock, record_failure, record_result, save_comparison
from include.plans.plan import (
    Approved,
    Built,
    Cancelled,
    Compared,
    Event,
    Plan,
    PlanRecord,
    Published,
    Rejected,
    Retired,
    SliceBuilt,
    Stage,
    StageRefused,
    validate_stage,
)
from include.read.publication import read_publication
from include.state.lease import shared_lock
from include.state.owner_requests import withdraw_own_request

KindOf = Callable[[Plan], PlanKind[Any]]


def build_parts(settings: Settings, plan: Plan, kind_of: KindOf, report: FactsReporter) -> Mapping[str, Any]:
    """Run the build jobs; return the output of the first, with those of the others in `members`.

    The first job pins what the members have published, at one state of the sources that all of them share.
    Raises JobFailed, JobDied, JobTimedOut.
    """
    first = _output(settings, plan, plan.dataset, kind_of(plan).build_job(plan), report)
    pinned, built, analysed = first.get("members", {}), list[Any](), dict(first.get("analysed", {}))
    members = dict[str, Mapping[str, Any]]()
    for part in plan.parts[1:]:
        source = pinned[part.dataset].get("over")
        order = {"published": pinned[part.dataset]["published"], "over": [*([source] if source else []), *built]}
        *job, _ = kind_of(part).build_job(part)
        members[part.dataset] = _output(settings, plan, part.dataset, (*job, json.dumps(order)), report)
        built.append(members[part.dataset]["built"])
        # A later job has seen more of the new tables.
        analysed |= members[part.dataset].get("analysed", {})
    return {**first, "members": members, "analysed": analysed}


def _output(
    settings: Settings, plan: Plan, dataset: str, job: tuple[str, ...], report: FactsReporter
) -> Mapping[str, Any]:
    output = run_job(settings, plan.id, dataset, job, report)
    if "built" not in output:
        why, again = str(output.get("failed", "the build was stopped")), f"headrace plan apply {plan.id} continues it"
        raise JobFailed(plan.id, why, str(output.get("remedy") or again))
    return output


KINDS: Mapping[str, PlanKind[Any]] = {
    kind.name: kind
    for kind in (
        ReleasePlan(),
        DerivedReleasePlan(),
        BackfillPlan(),
        DerivedBackfillPlan(),
        ReplayPlan(),
        ReinstatePlan(),
        LoadPlan(),
    )
}
POLICY = "policy"
ORDER = (Stage.PLANNED, Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED)
Approver = Callable[[PlanRecord], str | None]
"""Returns who approves a plan that needs approval, None when nobody does."""


class NotApproved(Terminal):
    """The plan needs approval and nobody has approved it."""

    def __init__(self, plan: str) -> None:
        super().__init__(f"plan {plan} is not approved; what readers see is unchanged", f"headrace plan approve {plan}")
        self.plan = plan


class PlanReporter:
    """Follows a run of a plan; by itself it reports nothing."""

    def begin(self, stage: PlanStage) -> None:
        """A stage begins."""

    def progress(self, facts: Mapping[str, Any]) -> None:
        """The stage's job or comparison has advanced: `at`, `done` and `of`, or `comparing`."""

    def done(self, stage: PlanStage, record: PlanRecord) -> None:
        """A stage is completed and recorded."""


@dataclass(frozen=True)
class PlanRun:
    """What the stages of one run share: settings, who runs it, the reporter and the approver."""

    settings: Settings
    by: str
    reporter: PlanReporter
    approver: Approver


@dataclass(frozen=True)
class PlanStage:
    """One stage: the stage that it reaches, its name, what it will do in words, and the function that does it."""

    reaches: Stage
    name: str
    description: str
    run: Callable[[PlanRun, PlanRecord], PlanRecord]

    def is_completed(self, record: PlanRecord) -> bool:
        """Whether the plan has reached this stage. Ended plans have completed what their last stage requires."""
        stage = {Stage.ROLLED_BACK: Stage.APPROVED, Stage.RETIRED: Stage.APPLIED, Stage.REJECTED: Stage.COMPARED}
        reached = stage.get(record.stage, record.stage)
        return reached in ORDER and ORDER.index(reached) >= ORDER.index(self.reaches)


def kind_of(plan: Plan) -> PlanKind[Any]:
    """Return the kind of a plan."""
    return KINDS[plan.kind]


def stages_of(plan: Plan) -> tuple[PlanStage, ...]:
    """Return the stages of a plan in the order of execution; `run_plan` executes and `explain` prints this list."""
    kind = kind_of(plan)
    threshold = f"more than {plan.threshold:.2%} of a table's keys" if plan.threshold else "any key"
    return (
        PlanStage(
            Stage.BUILT, "build", kind.explain_build(plan),
            lambda run, record: build(run.settings, record, run.by, run.reporter.progress),
        ),
        PlanStage(
            Stage.COMPARED, "compare", "compare with the published rows and evaluate the contract's rules",
            lambda run, record: compare_built(run.settings, record, run.by, run.reporter.progress)[0],
        ),
        PlanStage(
            Stage.APPROVED, "approve", f"request approval if {threshold} differs", _approve_stage,
        ),
        PlanStage(
            Stage.APPLIED, "apply", kind.explain_apply(plan),
            lambda run, record: apply(run.settings, record, run.by),
        ),
    )  # fmt: skip


def remaining_stages(record: PlanRecord, upto: Stage = Stage.APPLIED) -> tuple[PlanStage, ...]:
    """Return the stages that `run_plan` would execute. Raises StageRefused when the plan can no longer get there."""
    stages = [s for s in stages_of(record.plan) if ORDER.index(s.reaches) <= ORDER.index(upto)]
    remaining = tuple(stage for stage in stages if not stage.is_completed(record))
    if remaining:
        validate_stage(record, remaining[0].reaches)
    return remaining


def run_plan(
    settings: Settings,
    record: PlanRecord,
    reporter: PlanReporter,
    approver: Approver,
    by: str,
    upto: Stage = Stage.APPLIED,
) -> PlanRecord:
    """Execute the remaining stages of a plan and return its record.

    Raises StageRefused, NotApproved, `plan-held`, JobFailed, JobDied, JobTimedOut, `request-refused`, `no-response`.
    """
    return _execute(PlanRun(settings, by, reporter, approver), record, remaining_stages(record, upto))


def rebuild(settings: Settings, record: PlanRecord, reporter: PlanReporter, by: str) -> PlanRecord:
    """Build and compare again, up to what is published now; return the plan."""
    stages = [stage for stage in stages_of(record.plan) if stage.reaches in (Stage.BUILT, Stage.COMPARED)]
    return _execute(PlanRun(settings, by, reporter, lambda _: None), record, stages)


def _execute(run: PlanRun, record: PlanRecord, stages: Sequence[PlanStage]) -> PlanRecord:
    for stage in stages:
        run.reporter.begin(stage)
        try:
            record = stage.run(run, record)
        except (JobFailed, JobDied, JobTimedOut) as error:
            record_failure(run.settings, record.plan.id, str(error))
            raise
        run.reporter.done(stage, record)
    return record


@dataclass(frozen=True)
class StageState:
    """A stage of a plan: `state` is done, next, then or never; `event` completed it."""

    stage: PlanStage
    state: str
    event: Event | None


def stage_states(record: PlanRecord) -> Iterator[StageState]:
    """Yield each stage of a plan, as `run_plan` would continue it."""
    try:
        remaining = [stage.reaches for stage in remaining_stages(record)]
    except StageRefused:
        remaining = []
    for stage in stages_of(record.plan):
        event = next((e for e in reversed(record.events) if e.stage is stage.reaches), None)
        if stage.is_completed(record) and event is not None:
            yield StageState(stage, "done", event)
        else:
            state = "next" if remaining[:1] == [stage.reaches] else "then" if stage.reaches in remaining else "never"
            yield StageState(stage, state, None)


def stage_lines(record: PlanRecord) -> Iterator[str]:
    """Yield a line for each stage of a plan: completed with time and author, next, later, or not to be executed."""
    for each in stage_states(record):
        done = f"{each.event.at:%Y-%m-%d %H:%M} by {each.event.by}: " if each.event else ""
        yield f"  {each.state:6} {each.stage.name:8} {done}{each.stage.description}"


def build(settings: Settings, record: PlanRecord, by: str, report: FactsReporter) -> PlanRecord:
    """Run the plan's build job. Raises JobFailed, JobDied, JobTimedOut, Terminal.

    A killed release build continues where it stopped, a slice is built anew.
    """
    validate_stage(record, Stage.BUILT)
    plan, kind, began = record.plan, kind_of(record.plan), time.monotonic()
    kind.refuse_applied(settings, plan)
    _withdraw(settings, plan)
    kind.prepare(settings, plan, report)
    output = build_parts(settings, plan, kind_of, report)
    return record_result(settings, plan.id, kind.read_build(output, round(time.monotonic() - began, 1)), by)


def compare_built(
    settings: Settings, record: PlanRecord, by: str, report: FactsReporter
) -> tuple[PlanRecord, Comparison]:
    """Compare the build with what was published at the same batch; write and return the comparison, with the plan."""
    validate_stage(record, Stage.COMPARED)
    plan, kind = record.plan, kind_of(record.plan)
    sides = [kind_of(part.plan).sides(settings, part) for part in record.parts]
    found = _compared(settings, record, sides, report)
    if kind.builds_whole_tables or not found.is_equal:
        report({"comparing": "the contract's rules"})
        found = replace(found, checks=run_checks(settings, plan, [built for _, built in sides]))
    found = replace(found, dependants=effects_of_plan(settings, record))
    title = f"{plan.id}: {plan.dataset}, {plan.about}"
    save_comparison(settings, plan.id, found, comparison_page(title, found))
    kind.record_comparison(settings, record, found)
    differing = {table.name: table.differing for table in found.tables}
    blocking = [f"{check.table}: {check.rule}" for check in found.checks if check.blocks]
    result = Compared(verdict=found.verdict, differing=differing, blocked_by=blocking)
    return record_result(settings, plan.id, result, by), found


def _compared(
    settings: Settings, record: PlanRecord, sides: Sequence[tuple[Side, Side]], report: FactsReporter
) -> Comparison:
    """Return how the sides of all parts of a plan differ, as one comparison."""
    plan, batch = record.plan, record.last(Built).batch
    with ExitStack() as locks:
        for dataset in plan.datasets:
            locks.enter_context(shared_lock(reading_lock_path(settings, dataset)))
        found = [compare(*each, batch, plan.threshold, lambda table: report({"comparing": table})) for each in sides]
    return replace(found[0], tables=[table for each in found for table in each.tables])


def needs_approval(record: PlanRecord) -> bool:
    """Whether more differs than the plan's threshold allows, or bronze gets records, which is never reverted."""
    built, compared = record.find(SliceBuilt), record.find(Compared)
    if built is not None and built.filled:
        return True
    return compared is None or compared.verdict in (NEEDS_APPROVAL, HELD)


def approve(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Record the approval of the change as compared. Raises `plan-held`."""
    refuse_held(record)
    kind_of(record.plan).refuse_apply(settings, record)
    compared = record.find(Compared)
    return record_result(settings, record.plan.id, Approved(verdict=compared and compared.verdict), by)


def _approve_stage(run: PlanRun, record: PlanRecord) -> PlanRecord:
    refuse_held(record)
    kind_of(record.plan).refuse_apply(run.settings, record)
    by = run.approver(record) if needs_approval(record) else POLICY
    if by is None:
        raise NotApproved(record.plan.id)
    return approve(run.settings, record, by)


def apply(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Publish the plan's outcome, all tables in one publication. Applying it twice applies it once."""
    validate_stage(record, Stage.APPLIED)
    kind = kind_of(record.plan)
    kind.refuse_apply(settings, record)
    began = time.monotonic()
    return _recorded(settings, record, kind.apply(settings, record), began, by)


def _recorded(settings: Settings, record: PlanRecord, result: Published, began: float, by: str) -> PlanRecord:
    """Record a move of the publication, and how long it took."""
    took = None if result.changed == 0 else round(time.monotonic() - began, 2)
    return record_result(settings, record.plan.id, result.model_copy(update={"seconds": took}), by)


def confirm(settings: Settings, record: PlanRecord) -> Confirmation:
    """Return what the tables have of an applied or rolled back plan. Raises NothingPublished, and that they lack it."""
    confirmed = [
        kind_of(part.plan).confirm(settings, part, read_publication(settings, part.plan.dataset))
        for part in record.parts
    ]
    return confirmed[0]


def roll_back(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Publish the state from before the plan, as current as it is now. Rolling back twice rolls back once.

    Raises StageRefused, Refused, PlanConflict.
    """
    validate_stage(record, Stage.ROLLED_BACK)
    kind = kind_of(record.plan)
    kind.refuse_revert(settings, record)
    kind.undo_decisions(settings, record.plan, by)
    began = time.monotonic()
    return _recorded(settings, record, kind.revert(settings, record), began, by)


def retire(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Stop maintaining the release that is not published; its tables stay. Raises Refused."""
    validate_stage(record, Stage.RETIRED)
    retired = [retire_release(settings, part) for part in record.parts]
    releases = [release for each in retired for release in each.releases]
    return record_result(settings, record.plan.id, Retired(releases=releases, batch=retired[0].batch), by)


def reject(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Record the rejection of the change and return the plan; the build stays, unpublished."""
    validate_stage(record, Stage.REJECTED)
    kind_of(record.plan).undo_decisions(settings, record.plan, by)
    return record_result(settings, record.plan.id, Rejected(), by)


def cancel(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Drop the plan; a built release is used when it is planned again. Raises Terminal when it is published already."""
    validate_stage(record, Stage.CANCELLED)
    plan, kind = record.plan, kind_of(record.plan)
    # First, so that the owner cannot begin between the check and the withdrawal. The requests of members stay until
    # their source is back: without one an owner would follow the source with its old release.
    withdraw_own_request(settings, plan.dataset, plan.id)
    kind.refuse_applied(settings, plan)
    kind.drop_build(settings, plan)
    _withdraw(settings, plan)
    kind.undo_decisions(settings, plan, by)
    return record_result(settings, plan.id, Cancelled(), by)


def _withdraw(settings: Settings, plan: Plan) -> None:
    for dataset in plan.datasets:
        withdraw_own_request(settings, dataset, plan.id)


def end_and_cancel(settings: Settings, plan: str, by: str, wait: float) -> PlanRecord:
    """End the plan's job, wait up to `wait` seconds for its lock, and cancel it.

    Raises PlanUnknown and StageRefused before anything is ended; PlanBusy; Terminal when it is published already.
    """
    validate_stage(load_plan(settings, plan), Stage.CANCELLED)
    end_plan_job(settings, plan, by)
    with plan_lock(settings, plan, wait):
        return cancel(settings, load_plan(settings, plan), by)


SPANS_SHOWN = 4


def explanation(record: PlanRecord) -> Iterator[str]:
    """Yield a plan as text lines, for the log of a dry run."""
    plan = record.plan
    yield f"{plan.id}  {record.stage}: {plan.dataset}, {plan.about}"
    yield from (f"  {change.kind:12} {change.table}: {change.why}" for change in plan.changes)
    yield from cost(plan)
    yield from stage_lines(record)


def cost(plan: Plan) -> Iterator[str]:
    """Yield what a plan reads from where, and its predicted cost."""
    yield from (f"  from {source}: {records}" for source, records in sources(plan).items())
    size = plan.predicted
    yield (
        f"  reads {size.records:,} records ({size.bytes / 1e6:,.1f} MB, {size.files:,} files) and computes about "
        f"{size.gold_rows:,} gold rows: {size.seconds:,.0f} s at {size.rate:,.0f} records/s, "
        "without the job's start and warm-up"
    )


def sources(plan: Plan) -> dict[str, str]:
    """Return, by source, which offsets of which partition a slice reads there."""
    found: dict[str, list[str]] = {}
    for span in plan.slice.spans if plan.slice else ():
        text = f"partition {span.partition} offsets {span.start:,} to {span.end - 1:,}"
        found.setdefault(span.source, []).append(text)
    return {source: _shortened(parts) for source, parts in found.items()}


def _shortened(parts: list[str]) -> str:
    more = f"; {len(parts) - SPANS_SHOWN} more" if len(parts) > SPANS_SHOWN else ""
    return "; ".join(parts[:SPANS_SHOWN]) + more
