"""Reinstate plans: validate rejected records again, with their fixes and the published release."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from include.change.plan_parameters import AS_OF, PlanParameters
from include.change.rejected_decisions import Author, decision, record_spans, selected_records
from include.change.slice_plan import (
    PlanRequest,
    create_slice_plan,
    published_view,
    refuse_not_ingested,
    slice_kind,
)
from include.declare.history_slice import Slice
from include.ground.settings import Settings
from include.plans.plan import REINSTATE, Plan, PlanRecord
from include.plans.plan_journal import planning_lock
from include.read.rejected_records import (
    DISCARD,
    DISCARDED,
    FIX,
    FIXED,
    OPEN,
    Decision,
    RejectedFilter,
    append_decisions,
    decided_records,
)
from include.read.rejected_records import REINSTATE as REINSTATED


class ReinstateParameters(PlanParameters):
    """Which rejected records to validate again.

    Discarded records are included only when the filter names their status or their offsets.
    """

    records: RejectedFilter


def plan_reinstate(settings: Settings, dataset: str, parameters: ReinstateParameters, who: Author) -> PlanRecord:
    """Plan to recompute exactly these records from bronze; those that are still invalid stay rejected.

    Raises NothingSelected, NothingPublished, RangeRefused, RecordsMissing, PlanConflict, PlanBusy, DiskTooSmall.
    """
    named = parameters.records.offsets is not None or parameters.records.status == DISCARDED
    statuses = (OPEN, FIXED, DISCARDED) if named else (OPEN, FIXED)
    records = selected_records(settings, dataset, parameters.records, statuses)
    spans, requested = record_spans(records), f"{len(records):,} rejected records, again ({who.why})"
    with planning_lock(settings):
        view = published_view(settings, dataset)
        refuse_not_ingested(view, spans, requested)
        slice_ = Slice(view.from_bronze(spans), reference=view.reference(AS_OF))
        request = PlanRequest(requested, who.by, who.at, parameters.threshold)
        record = create_slice_plan(view, REINSTATE, slice_, request)
    # After the plan exists and before it is built: without a plan, discarded records stay discarded.
    append_decisions(
        settings, dataset, [decision(REINSTATED, position, batch, who) for position, batch in records.items()]
    )
    return record


def restore_discards(settings: Settings, plan: Plan, by: str, at: datetime) -> int:
    """Discard again what the plan had reinstated; return how many records that are.

    For a plan that was dropped or rolled back. A record with a later decision is left alone.
    """
    restored: list[Decision] = []
    for record in decided_records(settings, plan.dataset).values():
        *_, before, last = [None, None, *(each for each in record.decisions if each.act != FIX)]
        is_own = last is not None and (last.act, last.at, last.by) == (REINSTATED, plan.planned_at, plan.planned_by)
        if is_own and before is not None and before.act == DISCARD:
            restored.append(replace(before, by=by, at=at))
    return append_decisions(settings, plan.dataset, restored) if restored else 0


def _undo_decisions(settings: Settings, plan: Plan, by: str) -> None:
    restore_discards(settings, plan, by, datetime.now(UTC))


KIND = slice_kind(REINSTATE, ReinstateParameters, undo_decisions=_undo_decisions)
