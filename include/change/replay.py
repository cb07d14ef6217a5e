"""Replay plans: recompute Kafka records with the published release, and fill what bronze lacks of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from include.change.plan_parameters import ReplayParameters
from include.change.slices import (
    PlanRequest,
    PublishedView,
    RangeEmpty,
    RangeRefused,
    RecordsMissing,
    SliceKind,
    create_slice_plan,
    overlap,
    published_view,
    refuse_not_ingested,
    span_of,
)
from include.declare.history_slice import BRONZE, KAFKA, Slice, Span, joined_spans
from include.ground.kafka import log_start_offsets, topic_id
from include.ground.settings import Settings
from include.plans.journal import planning_lock
from include.plans.lookup import find_plan
from include.plans.plan import REPLAY, PlanRecord
from include.read.published_tables import open_dataset
from include.state.run_files import bootstrap_servers


class ReplayPlan(SliceKind[ReplayParameters]):
    """Recomputes Kafka records with the published release, and fills what bronze lacks of them."""

    name = REPLAY
    parameters = ReplayParameters

    def plan(
        self, settings: Settings, dataset: str, parameters: ReplayParameters, by: str, now: datetime, origin: str = ""
    ) -> PlanRecord:
        """Plan to recompute records. A second call with the same `origin` returns the first call's plan.

        Raises NothingPublished, RangeRefused, RangeEmpty, RecordsMissing, PlanConflict, PlanBusy, DiskTooSmall,
        BrokerUnreachable.
        """
        with planning_lock(settings):
            if known := find_plan(settings, origin):
                return known
            view, requested = published_view(settings, dataset), parameters.requested
            spans = _requested_spans(view, parameters)
            if not spans:
                raise RangeEmpty(
                    dataset, requested, "no record is published there", f"headrace ledger show --dataset {dataset}"
                )
            refuse_not_ingested(view, spans, requested)
            source = parameters.source
            parts = view.from_bronze(spans) if source == BRONZE else _split_by_retention(settings, view, spans, source)
            slice_ = Slice(parts, reference=view.reference(parameters.reference))
            request = PlanRequest(requested, by, now, parameters.threshold, origin, parameters.dry_run)
            return create_slice_plan(view, REPLAY, slice_, request)


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
    ends = found.group_by("partition").aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    return [Span(row["partition"], row["offset_min"], row["offset_max"] + 1, BRONZE) for row in ends]


def _split_by_retention(settings: Settings, view: PublishedView, spans: Sequence[Span], source: str) -> list[Span]:
    """Cut each span where Kafka's retention ends: below it bronze, from it on Kafka."""
    view.refuse_expired(spans)
    bootstrap, topic = bootstrap_servers(settings), view.declared.pipeline.topic
    other_ids = {part.topic_id for part in view.history.batch_offsets} - {topic_id(bootstrap, topic)}
    if other_ids:
        why = f"bronze was read from topic {topic} with id {min(other_ids)}, which was deleted and created again"
        raise RangeRefused(view.publication.dataset, "from Kafka", why, "--source bronze")
    starts = log_start_offsets(bootstrap, topic)
    below = [overlap(span, Span(span.partition, 0, starts[span.partition], BRONZE)) for span in spans]
    above = [overlap(span, Span(span.partition, starts[span.partition], span.end, KAFKA)) for span in spans]
    old, fresh = [part for part in below if part], [part for part in above if part]
    if source == KAFKA and old:
        remedy = "--source auto takes bronze for what Kafka has deleted"
        raise RecordsMissing(view.publication.dataset, old, "Kafka any longer", remedy)
    missing = view.missing(old)
    if missing:
        where = f"Kafka any longer, nor in bronze.{view.publication.dataset}"
        raise RecordsMissing(view.publication.dataset, missing, where, "a range without them, or a backup of bronze")
    kept = [Span(span.partition, span.start, span.end, BRONZE) for span in old]
    return sorted(
        [*kept, *(Span(s.partition, s.start, s.end, KAFKA) for s in fresh)], key=lambda s: (s.partition, s.start)
    )
