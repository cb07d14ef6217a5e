"""What backfill, replay and reinstate plans share: a slice of history is recomputed, compared, and applied as a patch.

Planning reads logs and few columns and touches no table. Offsets that are not ingested, or in no source, make planning
fail.
"""

from __future__ import annotations

import json
import shutil
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from include.change.compare import Side
from include.change.history import PublishedHistory
from include.change.jobs import request_owner
from include.change.kind import (
    TRANSACTION,
    AlreadyPublished,
    Confirmation,
    Given,
    NotConfirmed,
    PlanKind,
    confirmation,
    refuse_conflict,
    refuse_small_disk,
    refuse_unknown_dataset,
    reported_rate,
    write_new_plan,
)
from include.change.plan_parameters import AS_OF
from include.change.sides import slice_sides
from include.declare.dataset import Dataset, released_dataset
from include.declare.history_slice import BRONZE, Slice, Span, SpanIndex, joined_spans
from include.declare.reference_tables import current_versions
from include.ground.app_ids import plan_app_id
from include.ground.delta_log import commits_descending, transaction_version
from include.ground.errors import Terminal
from include.ground.paths import patch_path, silver_path
from include.ground.settings import Settings
from include.plans.plan import DRY_RUN, Plan, PlanRecord, Prediction
from include.plans.stage_results import Applied, Published, RolledBack, SliceBuilt, Stage
from include.read.publication import Publication, read_publication, tables_of
from include.read.published_tables import BatchOffsets, PinnedTables, first_complete_batch
from include.state.owner_requests import OwnerRequest, RequestKind
from include.state.release_files import patch_in_progress_file


class RangeRefused(Terminal):
    """The requested range cannot be recomputed; `requested` is the range in words."""

    def __init__(self, dataset: str, requested: str, why: str, remedy: str) -> None:
        super().__init__(f"{dataset}, {requested}: {why}; nothing was planned", remedy)
        self.dataset, self.requested = dataset, requested


class RangeEmpty(RangeRefused):
    """The range is valid, but nothing is published in it."""


class RecordsMissing(Terminal):
    """Records of the range are in none of the sources that may be read."""

    def __init__(self, dataset: str, spans: Sequence[Span], searched: str, remedy: str) -> None:
        shown = ", ".join(f"partition {s.partition} offsets {s.start} to {s.end - 1}" for s in spans[:5])
        more = f" and {len(spans) - 5} more ranges" if len(spans) > 5 else ""
        super().__init__(f"{dataset}: {shown}{more} are not in {searched}; nothing was planned", remedy)
        self.dataset, self.spans = dataset, tuple(spans)


class GapFilled(Terminal):
    """The plan restored records that bronze had lost: reverting it would lose them again."""

    def __init__(self, plan: str) -> None:
        super().__init__(
            f"plan {plan} filled a gap in bronze; reverting it would lose records, so nothing was done",
            "headrace audit",
        )
        self.plan = plan


@dataclass(frozen=True)
class PublishedView:
    """A dataset's publication, as a planner reads it."""

    settings: Settings
    publication: Publication
    declared: Dataset
    history: PublishedHistory

    def from_bronze(self, spans: Sequence[Span]) -> list[Span]:
        """Return the spans with source BRONZE. Raises RecordsMissing when bronze lacks some of their records,
        RangeRefused when some have expired.
        """
        self.refuse_expired(spans)
        missing = self.missing(spans)
        if missing:
            name = self.publication.dataset
            ends = {span.partition: [span.start, span.end] for span in missing}
            remedy = f"headrace replay run --dataset {name} --offsets '{as_argument(ends)}'   (fills it from Kafka)"
            raise RecordsMissing(name, missing, f"bronze.{name}", remedy)
        return [Span(span.partition, span.start, span.end, BRONZE) for span in spans]

    @cached_property
    def complete(self) -> int:
        """The first batch that has expired from none of bronze, silver and rejected."""
        return first_complete_batch(PinnedTables(tables_of(self.settings, self.publication)), self.publication.dataset)

    def refuse_expired(self, spans: Sequence[Span]) -> None:
        """Raise RangeRefused for records of batches that have expired: silver or bronze lacks what the slice needs."""
        old = [part for part in self.history.batch_offsets if part.batch < self.complete] if self.complete else []
        if parts_within(old, spans):
            self._refuse_old()

    def refuse_expired_times(self, since: datetime, before: int) -> None:
        """Raise RangeRefused unless each record of batches before `before` arrived before `since`."""
        times = (part.latest_ms for part in self.history.batch_offsets if part.batch < before) if before else ()
        if any(time is not None and time >= since.timestamp() * 1000 for time in times):
            self._refuse_old()

    def _refuse_old(self) -> None:
        why = "they have expired, as retention of pipeline.yaml declares"
        remedy = f"plan a range of records that batch {self.complete} or a later one has"
        raise RangeRefused(self.publication.dataset, f"batches before {self.complete}", why, remedy)

    def refuse_inherited(self, slice_: Slice) -> None:
        """Raise RangeRefused for records that the release inherited instead of validating them."""
        start = self.declared.release_start
        if start is None:
            return
        if parts_within([part for part in self.history.batch_offsets if part.batch < start.batch], slice_.spans):
            why = f"release {self.declared.release} starts at batch {start.batch} and inherited earlier batches"
            remedy = "a later range, or a release from the first batch: headrace release run"
            raise RangeRefused(self.publication.dataset, f"batches before {start.batch}", why, remedy)

    def reference(self, requested: str) -> dict[str, int] | None:
        """Return the versions of the reference tables to join with all records; None: those of each batch."""
        if requested == AS_OF:
            return None
        if not self.declared.pipeline.reference:
            why = "it joins no reference tables"
            raise RangeRefused(self.publication.dataset, "with today's reference tables", why, f"--reference {AS_OF}")
        return current_versions(self.settings, self.publication.dataset)

    def missing(self, spans: Sequence[Span]) -> list[Span]:
        """Return the parts of the spans that were ingested and are not in bronze."""
        requested = parts_within(self.history.batch_offsets, spans)
        holes = [
            Span(part.partition, start, end, BRONZE)
            for part in self.history.missing(requested)
            for start, end in self.history.absent(part)
        ]
        return [part for span in spans for hole in holes if (part := overlap(span, hole)) is not None]


def published_view(settings: Settings, dataset: str) -> PublishedView:
    """Return the published view of a dataset. Raises DatasetUnknown, NothingPublished."""
    refuse_unknown_dataset(settings, dataset)
    publication = read_publication(settings, dataset)
    tables = tables_of(settings, publication)
    history = PublishedHistory(tables[f"bronze.{dataset}"], tables[f"silver.{dataset}"])
    return PublishedView(settings, publication, released_dataset(settings, dataset, publication.release), history)


@dataclass(frozen=True)
class PlanRequest:
    """Who requested a slice plan, when, in words, with which threshold, and for which Airflow run.

    `dry_run`: the plan is returned without being stored.
    """

    requested: str
    by: str
    now: datetime
    threshold: float = 0.0
    origin: str = ""
    dry_run: bool = False


def create_slice_plan(view: PublishedView, kind: str, slice_: Slice, request: PlanRequest) -> PlanRecord:
    """Write a plan for a slice, unless it is a dry run. Raises PlanConflict, RangeRefused, DiskTooSmall."""
    name = view.publication.dataset
    if not request.dry_run:
        refuse_conflict(view.settings, name, slice_)
    view.refuse_inherited(slice_)
    predicted = _predicted(view, slice_)
    refuse_small_disk(view.settings, name, predicted)
    draft = Plan(
        id=DRY_RUN,
        kind=kind,
        dataset=name,
        base=view.publication.release,
        release=view.publication.release,
        planned_at=request.now,
        planned_by=request.by,
        threshold=request.threshold,
        changes=(),
        predicted=predicted,
        slice=slice_,
        requested=request.requested + _reference_text(slice_.reference),
        origin=request.origin,
    )
    return write_new_plan(view.settings, draft, dry_run=request.dry_run)


def _reference_text(versions: Mapping[str, int] | None) -> str:
    if versions is None:
        return ""
    return ", joined with " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _predicted(view: PublishedView, slice_: Slice) -> Prediction:
    """Count records by the share of each file's offsets in the slice, gold rows by the share of the records."""
    spans = SpanIndex(slice_.spans)
    shares = [(file, _share(file.low, file.high, spans)) for file in view.history.bronze_files]
    files = [file for file, share in shares if share]
    records, every = round(sum(f.rows * share for f, share in shares)), sum(f.rows for f in view.history.bronze_files)
    reading = PinnedTables(tables_of(view.settings, view.publication))
    gold = sum(reading.facts(name).rows or 0 for name in reading.tables if name.startswith("gold."))
    rate = reported_rate(view.settings, view.publication.dataset)
    share = records / every if every else 0.0
    size = round(sum(file.size * share for file, share in shares))
    return Prediction(records, size, len(files), round(gold * share), round(records / rate, 1), rate)


def _share(low: Mapping[str, int], high: Mapping[str, int], spans: SpanIndex) -> float:
    """Return which share of a file's range of offsets lies in the spans."""
    start, end = low["offset"], high["offset"] + 1
    return spans.count(low["partition"], start, end) / (end - start)


def parts_within(parts: Sequence[BatchOffsets], spans: Iterable[Span]) -> list[BatchOffsets]:
    """Return the batches' offsets of which some lie in the spans."""
    index = SpanIndex(spans)
    return [part for part in parts if index.overlaps(part.partition, part.start, part.end)]


def is_whole_history(settings: Settings, plan: Plan) -> bool:
    """Return whether a plan recomputes every published record of its dataset that has not expired."""
    view, spans = published_view(settings, plan.dataset), defaultdict[int, list[Span]](list)
    for span in joined_spans(replace(span, source=BRONZE) for span in plan.records.spans):
        spans[span.partition].append(span)
    parts = [part for part in view.history.batch_offsets if part.batch >= view.complete]
    is_every_record = bool(parts) and all(_lies_in(part, spans[part.partition]) for part in parts)
    return is_every_record and _has_all_events(view, plan.records)


def _has_all_events(view: PublishedView, slice_: Slice) -> bool:
    """Whether no event lies outside a slice's range of event time, by the bounds of silver's files."""
    if slice_.since is None or slice_.until is None:
        return True
    column = view.declared.pipeline.event_time
    dated = [file for file in view.history.silver_files if column in file.low and column in file.high]
    return all(file.low[column] >= slice_.since and file.high[column] < slice_.until for file in dated)


def _lies_in(part: BatchOffsets, spans: Sequence[Span]) -> bool:
    """Whether one of the spans, which are in order and not adjacent, has all offsets of a batch."""
    following = bisect_right(spans, part.start, key=lambda span: span.start)
    return part.start == part.end or (following > 0 and part.end <= spans[following - 1].end)


def refuse_not_ingested(view: PublishedView, spans: Iterable[Span], requested: str) -> None:
    """Raise RangeRefused when a span names offsets that are not published yet."""
    name, ends = view.publication.dataset, view.history.ends
    for span in spans:
        if span.partition not in ends:
            why = f"{name} has no partition {span.partition} (published: {sorted(ends)})"
            raise RangeRefused(name, requested, why, f"headrace ledger show --dataset {name}")
        if span.end > ends[span.partition]:
            why = f"partition {span.partition} is published up to offset {ends[span.partition] - 1}"
            raise RangeRefused(name, requested, why, "headrace wait --caught-up, or an earlier end")


def overlap(one: Span, other: Span) -> Span | None:
    """Return the offsets that both spans contain, with `one`'s source; None when there are none."""
    start, end = max(one.start, other.start), min(one.end, other.end)
    return Span(one.partition, start, end, one.source) if one.partition == other.partition and start < end else None


def span_of(part: BatchOffsets) -> Span:
    """Return a batch's offsets of one partition as a span of bronze."""
    return Span(part.partition, part.start, part.end, BRONZE)


def as_argument(ranges: Mapping[int, Sequence[int]]) -> str:
    """Return offsets as the value of `--offsets`."""
    return json.dumps({str(partition): list(span) for partition, span in ranges.items()})


class SliceKind(PlanKind[Given]):
    """A kind that recomputes a slice of history with the published release."""

    def explain_build(self, plan: Plan) -> str:
        """Say what is built from what."""
        return f"recompute {plan.requested} with release {plan.release}, in a separate folder"

    def explain_apply(self, plan: Plan) -> str:
        """Say what replaces what."""
        return "replace the rows that differ, all tables in one publication"

    def refuse_applied(self, settings: Settings, plan: Plan) -> None:
        """Refuse when the owner has begun or committed the patch."""
        patch = patch_in_progress_file(settings, plan.dataset, plan.release).read()
        app_id = plan_app_id(plan.dataset, plan.release, plan.id)
        committed = transaction_version(silver_path(settings, plan.dataset, plan.release), app_id)
        if (patch is not None and patch.plan == plan.id) or committed is not None:
            raise AlreadyPublished(plan.id)

    def build_job(self, plan: Plan) -> tuple[str, ...]:
        """Return the job and the names of what it builds."""
        return "spark_jobs.jobs.slice_job", plan.dataset, plan.id

    def read_build(self, output: Mapping[str, Any], seconds: float) -> SliceBuilt:
        """Return the job's figures."""
        return SliceBuilt.model_validate({"built": output["built"], "seconds": seconds})

    def sides(self, settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
        """Return both sides at the build's batch."""
        return slice_sides(settings, record.plan, released_dataset(settings, record.plan.dataset, record.plan.release))

    def apply(self, settings: Settings, record: PlanRecord) -> Applied:
        """Have the owner apply the patch; return how many rows changed. An equal slice needs no request."""
        if record.last(SliceBuilt).is_equal:
            drop_rows(settings, record.plan)
            return Applied(batch=record.last(SliceBuilt).batch, changed=0)
        batch, seconds = _patch(settings, record, RequestKind.APPLY_PATCH)
        return Applied(batch=batch, seconds=seconds)

    def confirm(self, settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
        """Confirm that the patch is committed and published. Raises NotConfirmed.

        Every patch commits to silver, also when no row of silver differs, and is published after that.
        """
        plan, name = record.plan, f"silver.{record.plan.dataset}"
        if record.last(Published).changed == 0:
            return confirmation(record, published, "verified")
        app_id = plan_app_id(plan.dataset, plan.release, plan.id)
        transaction, silver = TRANSACTION[record.stage], silver_path(settings, plan.dataset, plan.release)
        if (transaction_version(silver, app_id) or 0) < transaction:
            raise NotConfirmed(plan.id, record.stage, f"{name} has no commit of it")
        own = (c.version for c in commits_descending(silver) if (c.app_id, c.app_version) == (app_id, transaction))
        version = next(own)
        shown = published.tables[name].version if published.release == plan.release else version
        if shown < version:
            raise NotConfirmed(plan.id, record.stage, f"{name} is published at version {shown}, before it ({version})")
        result = "corrected" if record.stage is Stage.APPLIED else "rolled back"
        return confirmation(record, published, result, version)

    def refuse_revert(self, settings: Settings, record: PlanRecord) -> None:
        """Raise GapFilled when bronze would lose records, RangeRefused when records have expired, PlanConflict."""
        if record.last(SliceBuilt).filled:
            raise GapFilled(record.plan.id)
        published_view(settings, record.plan.dataset).refuse_expired(record.plan.records.spans)
        refuse_conflict(settings, record.plan.dataset, record.plan.records)

    def revert(self, settings: Settings, record: PlanRecord) -> RolledBack:
        """Have the owner revert the patch; return at which batch, and how long it took."""
        built = record.last(SliceBuilt)
        if built.is_equal:
            drop_rows(settings, record.plan)
            return RolledBack(batch=built.batch, changed=0)
        batch, seconds = _patch(settings, record, RequestKind.REVERT_PATCH)
        return RolledBack(batch=batch, seconds=seconds)

    def drop_build(self, settings: Settings, plan: Plan) -> None:
        """Remove the slice's rows."""
        drop_rows(settings, plan)


def drop_rows(settings: Settings, plan: Plan) -> None:
    """Remove the slice's rows before and after; the comparison stays."""
    shutil.rmtree(patch_path(settings, plan.dataset, plan.release, plan.id), ignore_errors=True)


def _patch(settings: Settings, record: PlanRecord, kind: RequestKind) -> tuple[int, float]:
    plan, began = record.plan, time.monotonic()
    request = OwnerRequest(plan.id, kind, plan.release, record.last(SliceBuilt).attempt)
    return request_owner(settings, plan.dataset, request).batch, round(time.monotonic() - began, 2)
