"""Plans that recompute a range: backfills of event time, from bronze, and replays of Kafka records.

An equal backfill verifies its range. A replay also fills what bronze lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from include.change.compare import Side
from include.change.jobs import project_now
from include.change.kind import Confirmation, PlanKind, Request, refuse_conflict
from include.change.plan_parameters import AS_OF, BackfillParameters, ReplayParameters, format_range
from include.change.release import predicted_of_sources
from include.change.slices import PublishedView, SliceKind, is_whole_history, published_view, slice_sides, span_of
from include.declare.dataset import released_dataset
from include.declare.derived_dataset import as_dataset, released_derived
from include.declare.event_times import before
from include.declare.grain_range import GrainRange, grain_range
from include.declare.history_slice import BRONZE, KAFKA, Slice, Span, joined_spans
from include.declare.windows import Window
from include.ground.errors import Refused, Terminal
from include.ground.kafka import log_start_offsets, topic_id
from include.ground.paths import verified_path, warehouse
from include.ground.record_coordinates import is_file_set
from include.ground.settings import Settings
from include.plans.comparison import EQUAL, Comparison
from include.plans.plan import (
    BACKFILL,
    DERIVED_BACKFILL,
    REPLAY,
    Applied,
    Plan,
    PlanRecord,
    Prediction,
    Published,
    RolledBack,
    SliceBuilt,
)
from include.read.publication import Publication, find_publication, read_publication, tables_of
from include.read.published_tables import first_unexpired_batch, open_dataset
from include.state.release_files import VerifiedRange, verified_file
from include.state.run_files import bootstrap_servers


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
    """Refuse when silver may have lost events of `since` or later: none lies further ahead of its arrival
    than the contract allows."""
    pipeline, columns = view.declared.pipeline, view.declared.contract.columns
    ahead = max((column.future for column in columns if column.name in pipeline.time_columns), default=timedelta())
    silver = tables_of(view.settings, view.publication)[f"silver.{view.publication.dataset}"]
    view.refuse_expired_times(before(since, ahead), first_unexpired_batch(silver))


class BackfillPlan(SliceKind[BackfillParameters]):
    """Recomputes the events of a range of time from bronze; an equal result verifies the range."""

    name = BACKFILL
    parameters = BackfillParameters

    def over_sources(self) -> PlanKind[BackfillParameters]:
        return DerivedBackfillPlan()

    def draft(self, request: Request[BackfillParameters]) -> Plan:
        """Plan to recompute the events of a range. Raises Refused, PlanConflict, NothingPublished."""
        dataset, since, until = request.dataset, request.parameters.start, request.parameters.end
        requested = f"events {format_range(since, until)}"
        view = published_view(request.settings, dataset)
        _refuse_expired_events(view, since)
        batches = view.history.batches_with_events(view.declared.pipeline.time_columns, since, until)
        parts = [part for part in view.history.batch_offsets if part.batch in batches]
        if not parts:
            raise view.empty(requested, "no event is published there", "headrace tables")
        spans = view.from_bronze(joined_spans(map(span_of, parts)))
        slice_ = Slice(spans, since, until, view.reference(request.parameters.reference))
        return view.plan(request, BACKFILL, slice_, requested)

    def record_comparison(self, settings: Settings, record: PlanRecord, found: Comparison) -> None:
        """Record the range as verified when it is equal with each batch's own reference tables."""
        if found.verdict == EQUAL and record.plan.records.reference is None:
            built = record.last(SliceBuilt)
            write_verified(settings, record.plan, built.batch, built.read_at_ms)
            project_now(settings, record.plan.dataset)

    def confirm(self, settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
        """Confirm a backfill like any slice; an equal one by the file that verifies its range.

        With other reference tables than each batch's own, an equal range is not verified and has no such file.
        """
        plan = record.plan
        if record.last(Published).changed == 0:
            if plan.records.reference is not None:
                return Confirmation.of(record, published, "equal with the current reference tables")
            if not verified_path(settings, plan.dataset, plan.release, plan.id).is_file():
                raise Confirmation.missing(record, "its range was not recorded as verified")
            return Confirmation.of(record, published, "verified")
        return super().confirm(settings, record, published)


class DerivedBackfillPlan(BackfillPlan):
    """Recomputes the grains of a range of a derived dataset from the published sources.

    Equal rows verify the range; others become a patch. A table without a time in its grain is recomputed whole.
    """

    name = DERIVED_BACKFILL

    def draft(self, request: Request[BackfillParameters]) -> Plan:
        """Plan to recompute the grains of a range from the versions of the sources that the publication names."""
        settings, dataset = request.settings, request.dataset
        slice_ = Slice((), request.parameters.start, request.parameters.end)
        requested = f"grains {format_range(request.parameters.start, request.parameters.end)}"
        if request.parameters.reference != AS_OF:
            what = f"{dataset}, {requested}: it is derived and joins no reference tables; nothing was planned"
            raise Refused(what, f"--reference {AS_OF}", code="range-refused")
        publication = read_publication(settings, dataset)
        request.refuse_conflict()
        ranges = dict(_ranges(settings, publication, slice_))
        predicted, release = _predicted(settings, publication, ranges), publication.release
        request.refuse_small_disk(predicted, settings.state)
        if whole := [name for name, inside in ranges.items() if inside is None]:
            requested += f", and all of {', '.join(whole)}"
        return request.plan(DERIVED_BACKFILL, release, release, predicted, slice=slice_, requested=requested)

    def explain_build(self, plan: Plan) -> str:
        return f"recompute {plan.requested} from its sources with release {plan.release}, in a separate folder"

    def patched_tables(self, settings: Settings, plan: Plan) -> Mapping[str, Path]:
        """Return all tables of the release while it is published: each gets a commit."""
        found = read_publication(settings, plan.dataset)
        tables = found.tables if found.release == plan.release else {}
        return {name: warehouse(settings) / each.path for name, each in tables.items()}

    def sides(self, settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
        return slice_sides(
            settings, record.plan, as_dataset(released_derived(settings, record.plan.dataset, record.plan.release))
        )

    def apply(self, settings: Settings, record: PlanRecord) -> Applied:
        """Apply the patch; an equal slice is entered into the ledger at once too."""
        done = super().apply(settings, record)
        project_now(settings, record.plan.dataset)
        return done

    def refuse_revert(self, settings: Settings, record: PlanRecord) -> None:
        """Raise PlanConflict: a patch of grains is reverted whole, so no other plan of the dataset may be open."""
        self.refuse_apply(settings, record)
        refuse_conflict(settings, record.plan.dataset)

    def revert(self, settings: Settings, record: PlanRecord) -> RolledBack:
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


class ReplayPlan(SliceKind[ReplayParameters]):
    """Recomputes Kafka records with the published release, and fills what bronze lacks of them."""

    name = REPLAY
    parameters = ReplayParameters

    def draft(self, request: Request[ReplayParameters]) -> Plan:
        """Plan to recompute records. Raises Refused, PlanConflict, NothingPublished, BrokerUnreachable."""
        dataset, parameters, source = request.dataset, request.parameters, request.parameters.source
        view, requested = published_view(request.settings, dataset), parameters.requested
        spans = _requested_spans(view, parameters)
        if not spans:
            remedy = f"headrace ledger show --dataset {dataset}"
            raise view.empty(requested, "no record is published there", remedy)
        view.refuse_not_ingested(spans, requested)
        parts = view.from_bronze(spans) if source == BRONZE else _split_by_retention(view, spans, source)
        return view.plan(request, REPLAY, Slice(parts, reference=view.reference(parameters.reference)), requested)


def _requested_spans(view: PublishedView, parameters: ReplayParameters) -> list[Span]:
    if parameters.offsets is not None:
        return [Span(part, start, end, BRONZE) for part, (start, end) in sorted(parameters.offsets.items())]
    if parameters.start is not None and parameters.end is not None:
        return _spans_of_times(view, parameters.start, parameters.end)
    first, last = parameters.first_batch or 0, parameters.last_batch or 0
    return joined_spans(span_of(part) for part in view.history.batch_offsets if first <= part.batch <= last)


def _spans_of_times(view: PublishedView, since: datetime, until: datetime) -> list[Span]:
    """Kafka's times ascend with the offsets (the broker sets them), so a range of times is a range of offsets."""
    import pyarrow.compute as pc

    view.refuse_expired_times(since, view.complete)
    inside = (pc.field("timestamp") >= since) & (pc.field("timestamp") < until)
    found = open_dataset(view.history.bronze).to_table(columns=["partition", "offset"], filter=inside)
    own = set(view.history.ends)
    ends = found.group_by("partition").aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    found_spans = (Span(row["partition"], row["offset_min"], row["offset_max"] + 1, BRONZE) for row in ends)
    return [span for span in found_spans if span.partition in own]


def _split_by_retention(view: PublishedView, spans: Sequence[Span], source: str) -> list[Span]:
    """Cut each span where Kafka's retention ends: below it bronze, from it on Kafka."""
    view.refuse_expired(spans)
    bootstrap, topic = bootstrap_servers(view.settings), view.declared.pipeline.topic
    other_ids = {part.topic_id for part in view.history.batch_offsets} - {topic_id(bootstrap, topic)}
    if other_ids:
        why = f"bronze was read from topic {topic} with id {min(other_ids)}, which was deleted and created again"
        raise view.refused("from Kafka", why, "--source bronze")
    # Kafka has none of a file's records.
    of_files = {span.partition: span.end for span in spans if is_file_set(span.partition)}
    starts = {**log_start_offsets(bootstrap, topic), **of_files}
    below = [span.common(Span(span.partition, 0, starts[span.partition], BRONZE)) for span in spans]
    above = [span.common(Span(span.partition, starts[span.partition], span.end, KAFKA)) for span in spans]
    old, fresh = [part for part in below if part], [part for part in above if part]
    if source == KAFKA and old:
        remedy = "--source auto takes bronze for what Kafka has deleted"
        raise view.lacks(old, "Kafka any longer", remedy)
    missing = view.missing(old)
    if missing:
        where = f"Kafka any longer, nor in bronze.{view.publication.dataset}"
        raise view.lacks(missing, where, "a range without them, or a backup of bronze")
    kept = [Span(span.partition, span.start, span.end, BRONZE) for span in old]
    return sorted(
        [*kept, *(Span(s.partition, s.start, s.end, KAFKA) for s in fresh)], key=lambda s: (s.partition, s.start)
    )
