"""The stages of a plan, done: each is recorded when it is done, and done again when its command was killed before.

Production goes on all the while: a build is a process of its own, and only the publication's owner moves it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from include.clients.delta_log import commits
from include.errors import Terminal
from include.paths import patch_in_progress_path, patch_path, silver_path
from include.planning.bounded_jobs import JobFailed, Reporter, run_job
from include.planning.comparison import EQUAL, HELD, NEEDS_APPROVAL, Comparison, compare
from include.planning.comparison_page import page
from include.planning.comparison_sides import comparison_sides
from include.planning.contract_checks import blocking_rules, refuse_held, run_checks
from include.planning.owner_client import project_now, request_owner
from include.planning.plan import BACKFILL, Plan, PlanRecord, Stage, validate_stage
from include.planning.plan_journal import comparison_path, record_stage
from include.planning.rejected_decisions import restore_discards
from include.planning.release_plan import refuse_conflict
from include.planning.verified_ranges import write_verified
from include.reading.publication import find_publication, read_publication
from include.settings import Settings
from include.state.atomic_files import write_atomically
from include.state.owner_requests import OwnerRequest, RequestKind, pending_request, withdraw_request
from include.status.process_status import is_expected, observe_stream


class StreamNotRunning(Terminal):
    """Only a running stream keeps releases up, so only it can stop doing so."""

    def __init__(self, plan: str, dataset: str) -> None:
        super().__init__(
            f"plan {plan}: the stream of {dataset} does not run; nothing was done", f"headrace up {dataset}"
        )
        self.plan = plan


class GapFilled(Terminal):
    """The plan brought back records that bronze had lost: to take it back would lose them again."""

    def __init__(self, plan: str) -> None:
        super().__init__(
            f"plan {plan} filled a gap in bronze; taking that back would lose records, so nothing was done",
            "headrace audit tells what is there",
        )
        self.plan = plan


class AlreadyPublished(Terminal):
    """Readers see what the plan is about: the command that applied it was killed before it could write that down."""

    def __init__(self, plan: str) -> None:
        super().__init__(
            f"plan {plan} cannot be built again or cancelled: readers see what came of it already",
            f"headrace plan apply {plan} writes that down, then headrace plan rollback {plan}",
        )
        self.plan = plan


class OtherReleasePublished(Terminal):
    """Readers see neither of the two releases of the plan: another plan came between."""

    def __init__(self, plan: Plan, seen: str) -> None:
        super().__init__(
            f"plan {plan.id} is about releases {plan.base} and {plan.release}, readers see {seen}; nothing was done",
            "headrace plan list",
        )
        self.plan, self.seen = plan.id, seen


def build(settings: Settings, record: PlanRecord, by: str, say: Reporter) -> PlanRecord:
    """Build beside production: a release, up to a batch that readers see; or what a slice is when it is done again.

    JobFailed, JobDied; a release goes on where it was killed, a slice is done again.
    """
    validate_stage(record, Stage.BUILT)
    plan, began = record.plan, time.monotonic()
    _refuse_corrected(settings, plan)
    _withdraw(settings, plan)
    if plan.slice is None:
        done = run_job(settings, plan.id, ("spark_jobs.jobs.shadow_job", plan.dataset, plan.release), say)
    else:
        done = run_job(settings, plan.id, ("spark_jobs.jobs.slice_job", plan.dataset, plan.id), say)
    if "built" not in done:
        why = str(done.get("failed", "the build was stopped"))
        raise JobFailed(plan.id, why, str(done.get("remedy") or f"headrace plan apply {plan.id} goes on with it"))
    seconds = round(time.monotonic() - began, 1)
    facts = {"built": done["built"], "seconds": seconds, "batch": done["built"]["batch"]}
    facts |= {"seen": done["seen"]} if "seen" in done else {}
    return record_stage(settings, plan.id, Stage.BUILT, by, **facts)


def compare_built(settings: Settings, record: PlanRecord, by: str, say: Reporter) -> tuple[PlanRecord, Comparison]:
    """Compare what was built with what readers saw at the same batch; the report is kept as JSON and as a page."""
    validate_stage(record, Stage.COMPARED)
    plan, sides, built = record.plan, comparison_sides(settings, record), record.facts_of(Stage.BUILT)["built"]
    batch = int(built["batch"])
    found = compare(*sides, batch, plan.threshold, lambda table: say({"comparing": table}))
    if plan.slice is None or not found.is_equal:
        say({"comparing": "the contract's rules"})
        found = replace(found, checks=run_checks(settings, plan, sides[1]))
    said = found.as_json()
    write_atomically(comparison_path(settings, plan.id, "json"), json.dumps(said, indent=1))
    write_atomically(comparison_path(settings, plan.id, "html"), page(plan.id, plan.about, said))
    counts = {table.name: table.differing for table in found.tables}
    as_it_was = plan.slice is not None and plan.slice.reference is None
    if plan.kind == BACKFILL and as_it_was and found.verdict == EQUAL:
        write_verified(settings, plan, batch, int(built.get("read_at_ms", 0)))
        project_now(settings, plan.dataset)
    facts = {"verdict": found.verdict, "differing": counts, "held": blocking_rules(found.checks)}
    record = record_stage(settings, plan.id, Stage.COMPARED, by, **facts)
    return record, found


def approve(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Write down that the change is wanted as the comparison shows it; PlanHeld."""
    refuse_held(record)
    verdict = record.facts_of(Stage.COMPARED).get("verdict")
    return record_stage(settings, record.plan.id, Stage.APPROVED, by, verdict=verdict)


def needs_approval(record: PlanRecord) -> bool:
    """Whether the comparison found more than the plan's policy lets pass, or bronze gets what is never taken back."""
    if record.facts_of(Stage.BUILT).get("built", {}).get("filled"):
        return True
    return bool(record.facts_of(Stage.COMPARED).get("verdict", NEEDS_APPROVAL) in (NEEDS_APPROVAL, HELD))


def apply(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Let readers see the plan's release, or the slice as it came out: all tables in one move. Twice is once."""
    validate_stage(record, Stage.APPLIED)
    if record.plan.slice is not None:
        return _corrected(settings, record, RequestKind.APPLY_PATCH, Stage.APPLIED, by)
    return _moved(settings, record, record.plan.release, Stage.APPLIED, by)


def roll_back(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Let readers see the release from before again, which was kept up meanwhile; or the rows. Twice is once."""
    validate_stage(record, Stage.ROLLED_BACK)
    if record.plan.slice is not None:
        if record.facts_of(Stage.BUILT)["built"]["filled"]:
            raise GapFilled(record.plan.id)
        refuse_conflict(settings, record.plan.dataset, record.plan.slice)
        restore_discards(settings, record.plan, by, datetime.now(UTC))
        return _corrected(settings, record, RequestKind.REVERT_PATCH, Stage.ROLLED_BACK, by)
    return _moved(settings, record, record.plan.base, Stage.ROLLED_BACK, by)


def retire(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Keep the release that readers do not see up no longer; going back to it then takes as long as catching up."""
    validate_stage(record, Stage.RETIRED)
    plan = record.plan
    if not is_expected(observe_stream(settings, plan.dataset)):
        raise StreamNotRunning(plan.id, plan.dataset)
    seen = read_publication(settings, plan.dataset).release
    others = sorted({plan.base, plan.release} - {seen})
    batches = [_ordered(settings, plan, OwnerRequest(plan.id, RequestKind.RETIRE, other))["batch"] for other in others]
    return record_stage(settings, plan.id, Stage.RETIRED, by, releases=others, batch=batches[-1])


def reject(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Write down that the change is not wanted; what was built stays, unseen."""
    validate_stage(record, Stage.REJECTED)
    restore_discards(settings, record.plan, by, datetime.now(UTC))
    return record_stage(settings, record.plan.id, Stage.REJECTED, by)


def cancel(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    """Drop the plan; what was built stays, and is used when the same release is planned again."""
    validate_stage(record, Stage.CANCELLED)
    seen = find_publication(settings, record.plan.dataset)
    if record.plan.slice is None and seen is not None and seen.release == record.plan.release:
        raise AlreadyPublished(record.plan.id)
    _withdraw(settings, record.plan)
    _refuse_corrected(settings, record.plan)
    _forget_rows(settings, record.plan)
    restore_discards(settings, record.plan, by, datetime.now(UTC))
    return record_stage(settings, record.plan.id, Stage.CANCELLED, by)


def _forget_rows(settings: Settings, plan: Plan) -> None:
    """A slice's rows before and after are of no use once nothing can come of them; the comparison stays."""
    if plan.slice is not None:
        shutil.rmtree(patch_path(settings, plan.dataset, plan.release, plan.id), ignore_errors=True)


def _withdraw(settings: Settings, plan: Plan) -> None:
    """Take the plan's order back, if it waits."""
    order = pending_request(settings, plan.dataset)
    if order is not None and order.plan == plan.id:
        withdraw_request(settings, plan.dataset)


def _refuse_corrected(settings: Settings, plan: Plan) -> None:
    """Raise SeenAlready when the slice's rows are in, or being put in, though nobody wrote down that it is applied."""
    if plan.slice is None:
        return
    marker, app_id = patch_in_progress_path(settings, plan.dataset, plan.release), f"/plan/{plan.id}"
    under_way = marker.exists() and json.loads(marker.read_text("utf-8"))["plan"] == plan.id
    made = (commit.app_id or "" for commit in commits(silver_path(settings, plan.dataset, plan.release)))
    if under_way or any(name.endswith(app_id) for name in made):
        raise AlreadyPublished(plan.id)


def _corrected(settings: Settings, record: PlanRecord, kind: RequestKind, stage: Stage, by: str) -> PlanRecord:
    """Have the rows put in, or taken back; nothing is asked of anybody when no row differs."""
    plan, began = record.plan, time.monotonic()
    built = record.facts_of(Stage.BUILT)["built"]
    if not built["filled"] and not any(built["differing"].values()):
        _forget_rows(settings, plan)
        return record_stage(settings, plan.id, stage, by, batch=built["batch"], changed=0)
    answered = _ordered(settings, plan, OwnerRequest(plan.id, kind, plan.release, built["attempt"]))
    seconds = round(time.monotonic() - began, 2)
    return record_stage(settings, plan.id, stage, by, batch=answered["batch"], seconds=seconds)


def _moved(settings: Settings, record: PlanRecord, release: str, stage: Stage, by: str) -> PlanRecord:
    plan, began = record.plan, time.monotonic()
    _freshen(settings, record, release)
    if _seen(settings, plan) == release:
        answered: Mapping[str, Any] = {"batch": read_publication(settings, plan.dataset).batch}
    else:
        answered = _ordered(settings, plan, OwnerRequest(plan.id, RequestKind.PROMOTE, release))
    seconds = round(time.monotonic() - began, 2)
    return record_stage(settings, plan.id, stage, by, batch=answered["batch"], seconds=seconds)


def _freshen(settings: Settings, record: PlanRecord, release: str) -> None:
    """What was built long ago catches up beside the stream first, so that the stream has a run left at most."""
    seen = read_publication(settings, record.plan.dataset)
    built = record.facts_of(Stage.BUILT).get("built", {})
    behind = sum(seen.offsets.values()) - sum(built.get("offsets", {}).values())
    if record.stage is Stage.APPROVED and release != seen.release and behind > settings.refine_records:
        done = run_job(
            settings, record.plan.id, ("spark_jobs.jobs.shadow_job", record.plan.dataset, release), lambda _: None
        )
        if "built" not in done:
            raise JobFailed(record.plan.id, str(done.get("failed")), str(done.get("remedy", "")))


def _seen(settings: Settings, plan: Plan) -> str:
    """Return which of the plan's two releases readers see; SeenOtherwise."""
    seen = read_publication(settings, plan.dataset).release
    if seen not in (plan.base, plan.release):
        raise OtherReleasePublished(plan, seen)
    return seen


def _ordered(settings: Settings, plan: Plan, order: OwnerRequest) -> Mapping[str, Any]:
    return {"batch": request_owner(settings, plan.dataset, order).batch}
