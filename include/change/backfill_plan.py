"""Backfill plans: recompute the events of a range of time from bronze; an equal result verifies the range."""

from __future__ import annotations

from datetime import datetime, timedelta

from include.change.confirm_applied import confirm_backfill
from include.change.owner_client import project_now
from include.change.plan_parameters import SliceParameters, UtcTime
from include.change.slice_plan import (
    PlanRequest,
    PublishedView,
    RangeEmpty,
    create_slice_plan,
    format_range,
    published_view,
    slice_kind,
    span_of,
)
from include.change.verified_ranges import write_verified
from include.declare.event_times import before
from include.declare.history_slice import Slice, joined_spans
from include.ground.settings import Settings
from include.plans.comparison import EQUAL, Comparison
from include.plans.plan import BACKFILL, PlanRecord
from include.plans.plan_journal import planning_lock
from include.plans.plan_lookup import find_plan
from include.plans.stage_results import SliceBuilt
from include.read.publication import tables_of
from include.read.published_tables import first_unexpired_batch


class BackfillParameters(SliceParameters):
    """A range of event time [start, end)."""

    start: UtcTime
    end: UtcTime


def plan_backfill(
    settings: Settings, dataset: str, parameters: BackfillParameters, by: str, now: datetime, origin: str = ""
) -> PlanRecord:
    """Plan to recompute the events of a range. A second call with the same `origin` returns the first call's plan.

    Raises NothingPublished, RangeRefused, RangeEmpty, RecordsMissing, PlanConflict, PlanBusy, DiskTooSmall.
    """
    since, until = parameters.start, parameters.end
    requested = f"events {format_range(since, until)}"
    with planning_lock(settings):
        if known := find_plan(settings, origin):
            return known
        view = published_view(settings, dataset)
        _refuse_expired_events(view, since)
        batches = view.history.batches_with_events(view.declared.pipeline.time_columns, since, until)
        parts = [part for part in view.history.batch_offsets if part.batch in batches]
        if not parts:
            raise RangeEmpty(dataset, requested, "no event is published there", "headrace tables")
        spans = view.from_bronze(joined_spans(map(span_of, parts)))
        slice_ = Slice(spans, since, until, view.reference(parameters.reference))
        request = PlanRequest(requested, by, now, parameters.threshold, origin, parameters.dry_run)
        return create_slice_plan(view, BACKFILL, slice_, request)


def _refuse_expired_events(view: PublishedView, since: datetime) -> None:
    """Raise RangeRefused when silver may have lost events of `since` or later: none lies further ahead of its arrival
    than the contract allows."""
    pipeline, columns = view.declared.pipeline, view.declared.contract.columns
    ahead = max((column.future for column in columns if column.name in pipeline.time_columns), default=timedelta())
    silver = tables_of(view.settings, view.publication)[f"silver.{view.publication.dataset}"]
    view.refuse_expired_times(before(since, ahead), first_unexpired_batch(silver))


def record_verified(settings: Settings, record: PlanRecord, found: Comparison) -> None:
    """Record the range as verified when it is equal with each batch's own reference tables."""
    if found.verdict == EQUAL and record.plan.records.reference is None:
        built = record.last(SliceBuilt)
        write_verified(settings, record.plan, built.batch, built.read_at_ms)
        project_now(settings, record.plan.dataset)


KIND = slice_kind(
    BACKFILL,
    BackfillParameters,
    record_comparison=record_verified,
    confirm=confirm_backfill,
)
