"""Backfill plans: recompute the events of a range of time from bronze; an equal result verifies the range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from include.change.compare import Side
from include.change.jobs import project_now
from include.change.kind import (
    TRANSACTION,
    AlreadyPublished,
    Confirmation,
    NotConfirmed,
    confirmation,
    refuse_conflict,
    refuse_small_disk,
    write_new_plan,
)
from include.change.plan_parameters import AS_OF, BackfillParameters, format_range
from include.change.release import predicted_of_sources
from include.change.sides import slice_sides
from include.change.slices import (
    PlanRequest,
    PublishedView,
    RangeEmpty,
    RangeRefused,
    SliceKind,
    create_slice_plan,
    is_whole_history,
    published_view,
    span_of,
)
from include.declare.dataset import released_dataset
from include.declare.derived_dataset import as_dataset, derived_names, released_derived
from include.declare.event_times import before
from include.declare.grain_range import GrainRange, grain_range
from include.declare.history_slice import Slice, joined_spans
from include.declare.windows import Window
from include.ground.app_ids import plan_app_id
from include.ground.delta_log import commits_descending, transaction_version
from include.ground.errors import Terminal
from include.ground.paths import verified_path, warehouse
from include.ground.settings import Settings
from include.plans.comparison import EQUAL, Comparison
from include.plans.journal import planning_lock
from include.plans.lookup import find_plan
from include.plans.plan import BACKFILL, DERIVED_BACKFILL, DRY_RUN, Plan, PlanRecord, Prediction
from include.plans.stage_results import Applied, Published, RolledBack, SliceBuilt, Stage
from include.read.publication import Publication, find_publication, read_publication, tables_of
from include.read.published_tables import first_unexpired_batch, open_dataset
from include.state.release_files import VerifiedRange, patch_in_progress_file, verified_file


def write_verified(settings: Settings, plan: Plan, batch: int, read_at_ms: int) -> None:
    """Record that the events of the plan's range, recomputed at `batch`, equal the published ones.

    `read_at_ms` is when the publication was read: later patches are not verified by it. Raises Terminal if it has none.
    """
    slice_ = plan.records
    if slice_.since is None or slice_.until is None:
        raise Terminal(f"plan {plan.id} has no range of time that could be verified", f"headrace plan show {plan.id}")
    since, until = slice_.since.astimezone(UTC), slice_.until.astimezone(UTC)
    path = verified_path(settings, plan.dataset, plan.release, plan.id)
    verified_file(path).write(VerifiedRange(plan.id, batch, since, until, read_at_ms))


def _refuse_expired_events(view: PublishedView, since: datetime) -> None:
    """Raise RangeRefused when silver may have lost events of `since` or later: none lies further ahead of its arrival
    than the contract allows."""
    pipeline, columns = view.declared.pipeline, view.declared.contract.columns
    ahead = max((column.future for column in columns if column.name in pipeline.time_columns), default=timedelta())
    silver = tables_of(view.settings, view.publication)[f"silver.{view.publication.dataset}"]
    view.refuse_expired_times(before(since, ahead), first_unexpired_batch(silver))


class BackfillPlan(SliceKind[BackfillParameters]):
    """Recomputes the events of a range of time from bronze; an equal result verifies the range."""

    name = BACKFILL
    parameters = BackfillParameters

    def plan(
        self, settings: Settings, dataset: str, parameters: BackfillParameters, by: str, now: datetime, origin: str = ""
    ) -> PlanRecord:
        """Plan to recompute the events of a range. A second call with the same `origin` returns the first call's plan.

        Raises NothingPublished, RangeRefused, RangeEmpty, RecordsMissing, PlanConflict, PlanBusy, DiskTooSmall.
        """
        if dataset in derived_names(settings):
            return DerivedBackfillPlan().plan(settings, dataset, parameters, by, now, origin)
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

    def record_comparison(self, settings: Settings, record: PlanRecord, found: Comparison) -> None:
        """Record the range as verified when it is equal with each batch's own reference tables."""
        if found.verdict == EQUAL and record.plan.records.reference is None:
            built = record.last(SliceBuilt)
            write_verified(settings, record.plan, built.batch, built.read_at_ms)
            project_now(settings, record.plan.dataset)

    def confirm(self, settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
        """Confirm a backfill like any slice; an equal one by the file that verifies its range. Raises NotConfirmed.

        With other reference tables than each batch's own, an equal range is not verified and has no such file.
        """
        plan = record.plan
        if record.last(Published).changed == 0:
            if plan.records.reference is not None:
                return confirmation(record, published, "equal with the current reference tables")
            if not verified_path(settings, plan.dataset, plan.release, plan.id).is_file():
                raise NotConfirmed(plan.id, record.stage, "its range was not recorded as verified")
            return confirmation(record, published, "verified")
        return super().confirm(settings, record, published)


class DerivedBackfillPlan(BackfillPlan):
    """Recomputes the grains of a range of a derived dataset from the published sources.

    Equal rows verify the range; others become a patch. A table without a time in its grain is recomputed whole.
    """

    name = DERIVED_BACKFILL

    def plan(
        self, settings: Settings, dataset: str, parameters: BackfillParameters, by: str, now: datetime, origin: str = ""
    ) -> PlanRecord:
        """Plan to recompute the grains of a range from the versions of the sources that the publication names.

        A second call with the same `origin` returns the first call's plan. Raises NothingPublished, RangeRefused,
        PlanConflict, PlanBusy, DiskTooSmall.
        """
        since, until = parameters.start, parameters.end
        requested = f"grains {format_range(since, until)}"
        with planning_lock(settings):
            if known := find_plan(settings, origin):
                return known
            if parameters.reference != AS_OF:
                why = "it is derived and joins no reference tables"
                raise RangeRefused(dataset, requested, why, f"--reference {AS_OF}")
            publication = read_publication(settings, dataset)
            if not parameters.dry_run:
                refuse_conflict(settings, dataset)
            ranges = dict(_ranges(settings, publication, Slice((), since, until)))
            predicted = _predicted(settings, publication, ranges)
            refuse_small_disk(settings, dataset, predicted)
            whole = [name for name, inside in ranges.items() if inside is None]
            draft = Plan(
                id=DRY_RUN,
                kind=DERIVED_BACKFILL,
                dataset=dataset,
                base=publication.release,
                release=publication.release,
                planned_at=now,
                planned_by=by,
                threshold=parameters.threshold,
                changes=(),
                predicted=predicted,
                slice=Slice((), since, until),
                requested=requested + (f", and all of {', '.join(whole)}" if whole else ""),
                origin=origin,
            )
            return write_new_plan(settings, draft, dry_run=parameters.dry_run)

    def explain_build(self, plan: Plan) -> str:
        """Say what is built from what."""
        return f"recompute {plan.requested} from its sources with release {plan.release}, in a separate folder"

    def refuse_applied(self, settings: Settings, plan: Plan) -> None:
        """Raise AlreadyPublished when a table has a commit of the plan, or its patch was begun."""
        patch = patch_in_progress_file(settings, plan.dataset, plan.release).read()
        app_id = plan_app_id(plan.dataset, plan.release, plan.id)
        paths = [table.path for table in read_publication(settings, plan.dataset).tables.values()]
        committed = [transaction_version(warehouse(settings) / path, app_id) is not None for path in paths]
        if (patch is not None and patch.plan == plan.id) or any(committed):
            raise AlreadyPublished(plan.id)

    def build_job(self, plan: Plan) -> tuple[str, ...]:
        """Return the job and the names of what it builds."""
        return "spark_jobs.jobs.derived_slice_job", plan.dataset, plan.id

    def sides(self, settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
        """Return both sides at the build's batch."""
        return slice_sides(
            settings, record.plan, as_dataset(released_derived(settings, record.plan.dataset, record.plan.release))
        )

    def apply(self, settings: Settings, record: PlanRecord) -> Applied:
        """Apply the patch; an equal slice is entered into the ledger at once too."""
        done = super().apply(settings, record)
        project_now(settings, record.plan.dataset)
        return done

    def confirm(self, settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
        """Confirm an equal backfill by the file that verifies its range, a patch by its commit in each table.

        Raises NotConfirmed.
        """
        plan, root = record.plan, warehouse(settings)
        if record.last(Published).changed == 0:
            return super().confirm(settings, record, published)
        app_id, transaction = plan_app_id(plan.dataset, plan.release, plan.id), TRANSACTION[record.stage]
        for name, table in published.tables.items() if published.release == plan.release else ():
            if (transaction_version(root / table.path, app_id) or 0) < transaction:
                raise NotConfirmed(plan.id, record.stage, f"{name} has no commit of it")
            newest = next((c.version for c in commits_descending(root / table.path) if c.app_id == app_id), None)
            if newest is not None and table.version < newest:
                raise NotConfirmed(plan.id, record.stage, f"{name} is published at version {table.version}, before it")
        return confirmation(record, published, "corrected" if record.stage is Stage.APPLIED else "rolled back")

    def refuse_revert(self, settings: Settings, record: PlanRecord) -> None:
        """Raise PlanConflict: a patch of grains is reverted whole, so no other plan of the dataset may be open."""
        refuse_conflict(settings, record.plan.dataset)

    def revert(self, settings: Settings, record: PlanRecord) -> RolledBack:
        """Publish the state of before."""
        done = super().revert(settings, record)
        project_now(settings, record.plan.dataset)
        return done


def published_windows(settings: Settings, dataset: str) -> tuple[Window, ...]:
    """Return the windows of a dataset's published gold; none of a derived one: its days are in UTC."""
    publication = find_publication(settings, dataset)
    if publication is None or publication.is_derived:
        return ()
    return released_dataset(settings, dataset, publication.release).pipeline.windows


def recomputes_everything(settings: Settings, plan: Plan) -> bool:
    """Return whether a backfill or replay recomputes all that is published of its dataset, or of one of its tables."""
    if plan.kind != DERIVED_BACKFILL:
        return is_whole_history(settings, plan)
    publication = read_publication(settings, plan.dataset)
    tables = tables_of(settings, publication)
    ranges = dict(_ranges(settings, publication, plan.records))
    outside = [_rows(tables[name], inside, outside=True) for name, inside in ranges.items() if inside is not None]
    return len(outside) < len(ranges) or not any(outside)


def _ranges(settings: Settings, publication: Publication, slice_: Slice) -> Iterator[tuple[str, GrainRange | None]]:
    """Yield each table with its grains in the slice's range; None: all of them."""
    derived = released_derived(settings, publication.dataset, publication.release)
    tables = tables_of(settings, publication)
    assert slice_.since is not None
    assert slice_.until is not None
    for gold in derived.pipeline.gold:
        schema = open_dataset(tables[f"gold.{gold.name}"]).schema
        yield f"gold.{gold.name}", grain_range(gold.grain, schema, slice_.since, slice_.until)


def _rows(table: Any, inside: GrainRange | None, *, outside: bool = False) -> int:
    """Return how many published rows of a table lie in a range, or outside of it."""
    import pyarrow.compute as pc

    if inside is None:
        return 0 if outside else int(open_dataset(table).count_rows())
    condition = (pc.field(inside.column) >= inside.low) & (pc.field(inside.column) < inside.high)
    return int(open_dataset(table).count_rows(filter=~condition if outside else condition))


def _predicted(settings: Settings, publication: Publication, ranges: Mapping[str, GrainRange | None]) -> Prediction:
    """Return the cost: of the sources the share that the range has of the gold rows."""
    tables = tables_of(settings, publication)
    gold = sum(_rows(tables[name], inside) for name, inside in ranges.items())
    every = sum(_rows(tables[name], None) for name in ranges)
    derived = released_derived(settings, publication.dataset, publication.release)
    return predicted_of_sources(settings, derived, gold, gold / every if every else 1.0)
