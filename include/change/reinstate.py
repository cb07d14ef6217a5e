"""Rejected records: a fix, a discard, or a plan that validates them again with their fixes and the published release.

A decision is stored before it takes effect. Reinstating recomputes exactly these offsets from bronze: records that keep
the contract now are added to silver, others stay rejected with their current reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from include.change.kind import Request
from include.change.plan_parameters import AS_OF, HIDDEN, PlanParameters
from include.change.slices import SliceKind, published_view
from include.declare.envelopes import TOMBSTONE
from include.declare.history_slice import BRONZE, Slice, Span, SpanIndex, joined_spans
from include.ground.errors import Refused
from include.ground.settings import Settings
from include.plans.plan import REINSTATE, Plan, PlanRecord
from include.read.publication import read_publication, tables_of
from include.read.published_tables import PinnedTables
from include.read.rejected_records import (
    DISCARD,
    DISCARDED,
    DUPLICATE,
    FIX,
    FIXED,
    OPEN,
    Decision,
    Position,
    RejectedFilter,
    RejectedRecord,
    append_decisions,
    decided_records,
    rejected_coordinates,
    rejected_records,
    status_of,
)
from include.read.rejected_records import REINSTATE as REINSTATED

LARGEST = 1_048_576


def _not_rejected(dataset: str, position: Position, why: str) -> Refused:
    """Return that a record to decide on is not in `rejected`, or is a duplicate there."""
    what = f"{dataset}: partition {position[0]} offset {position[1]} {why}; nothing was decided"
    return Refused(what, f"headrace rejected list --dataset {dataset}", code="not-rejected", position=position)


@dataclass(frozen=True)
class Author:
    """Who decides, when, and why."""

    by: str
    at: datetime
    why: str


def fix(settings: Settings, dataset: str, payloads: Mapping[Position, bytes], who: Author) -> int:
    """Store payloads that are validated instead of the records' own; return how many fixes are new.

    It is used when the records are reinstated or validated again. Raises Refused.
    """
    for position, payload in payloads.items():
        if not payload or len(payload) > LARGEST:
            record = f"partition {position[0]} offset {position[1]}"
            why = f"the payload for {record} has {len(payload)} bytes (1 to {LARGEST})"
            remedy = "give the whole record, corrected, as one JSON object"
            raise Refused(f"{dataset}: {why}; nothing was fixed", remedy, code="fix-refused")
    batches = {position: _record(settings, dataset, position).batch for position in payloads}
    return append_decisions(
        settings,
        dataset,
        [decision(FIX, position, batches[position], who, payloads[position]) for position in payloads],
    )


def discard(settings: Settings, dataset: str, selection: RejectedFilter, who: Author) -> int:
    """Decide that records stay rejected, whatever later code accepts; return how many decisions are new."""
    positions = selected_records(settings, dataset, selection, (OPEN, FIXED))
    return append_decisions(
        settings, dataset, [decision(DISCARD, position, batch, who) for position, batch in positions.items()]
    )


def selected_records(
    settings: Settings, dataset: str, selection: RejectedFilter, statuses: Iterable[str]
) -> dict[Position, int]:
    """Return the selected invalid records with one of these statuses, and their batches. Raises Refused."""
    reading = PinnedTables(tables_of(settings, read_publication(settings, dataset)))
    decided, allowed = decided_records(settings, dataset), set(statuses)
    invalid = replace(selection, disposition="invalid")
    found = {
        position: batch
        for position, batch in rejected_coordinates(reading, dataset, invalid, decided).items()
        if status_of("invalid", decided.get(position)) in allowed
    }
    if not found:
        what = f"{dataset}: no rejected record matches; nothing was done"
        raise Refused(what, f"headrace rejected summary --dataset {dataset}", code="nothing-selected")
    return found


def record_spans(positions: Iterable[Position]) -> list[Span]:
    """Return the records as spans of bronze; adjacent ones are joined."""
    return joined_spans(Span(partition, offset, offset + 1, BRONZE) for partition, offset in positions)


def _record(settings: Settings, dataset: str, position: Position) -> RejectedRecord:
    reading = PinnedTables(tables_of(settings, read_publication(settings, dataset)))
    partition, offset = position
    found = rejected_records(reading, dataset, RejectedFilter(offsets={partition: (offset, offset + 1)}))
    if not found:
        raise _not_rejected(dataset, position, "is not a rejected record that readers see")
    if found[0].status == DUPLICATE:
        winner = found[0].reasons[0].detail
        raise _not_rejected(dataset, position, f"is a duplicate of {winner} (batch/partition/offset)")
    if found[0].status == TOMBSTONE:
        raise _not_rejected(dataset, position, "is a tombstone: it has no value, and follows a deletion")
    return found[0]


def decision(act: str, position: Position, batch: int, who: Author, payload: bytes | None = None) -> Decision:
    """Return a decision about one record."""
    return Decision(act, *position, batch=batch, at=who.at, by=who.by, why=who.why, payload=payload)


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


class ReinstateParameters(PlanParameters):
    """Which rejected records to validate again.

    Discarded records are included only when the filter names their status or their offsets.
    """

    records: Annotated[RejectedFilter, HIDDEN]
    why: str = Field("validated again", description="The reason; stored with the decision.")


class ReinstatePlan(SliceKind[ReinstateParameters]):
    """Validates rejected records again."""

    name = REINSTATE
    parameters = ReinstateParameters

    def draft(self, request: Request[ReinstateParameters]) -> Plan:
        """Plan to recompute exactly these records from bronze; those that are still invalid stay rejected."""
        records = self._records(request)
        spans, requested = record_spans(records), f"{len(records):,} rejected records, again ({request.parameters.why})"
        view = published_view(request.settings, request.dataset)
        view.refuse_not_ingested(spans, requested)
        slice_ = Slice(view.from_bronze(spans), reference=view.reference(AS_OF))
        return view.plan(request, REINSTATE, slice_, requested)

    def write(self, request: Request[ReinstateParameters], draft: Plan) -> PlanRecord:
        """Write the plan, and the decisions after it: without a plan, discarded records stay discarded."""
        record = super().write(request, draft)
        if not request.parameters.dry_run:
            who, planned = Author(request.by, request.now, request.parameters.why), SpanIndex(draft.records.spans)
            records = self._records(request).items()
            decisions = [
                decision(REINSTATED, (partition, offset), batch, who)
                for (partition, offset), batch in records
                if planned.overlaps(partition, offset, offset + 1)
            ]
            append_decisions(request.settings, request.dataset, decisions)
        return record

    def _records(self, request: Request[ReinstateParameters]) -> dict[Position, int]:
        selection = request.parameters.records
        named = selection.offsets is not None or selection.status == DISCARDED
        statuses = (OPEN, FIXED, DISCARDED) if named else (OPEN, FIXED)
        return selected_records(request.settings, request.dataset, selection, statuses)

    def undo_decisions(self, settings: Settings, plan: Plan, by: str) -> None:
        restore_discards(settings, plan, by, datetime.now(UTC))
