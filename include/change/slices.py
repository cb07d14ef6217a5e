"""What backfill, replay and reinstate plans share: a slice of history is recomputed, compared, and applied as a patch.

Planning reads logs and few columns and touches no table. Offsets that are not ingested, or in no source, make planning
fail.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from include.change.compare import Side, parquet_rows
from include.change.jobs import request_owner
from include.change.kind import (
    TRANSACTION,
    Confirmation,
    Given,
    PlanKind,
    Request,
    cost_of,
    published_gold_rows,
    refuse_conflict,
    refuse_unknown_dataset,
)
from include.change.plan_parameters import AS_OF
from include.declare.dataset import Dataset, released_dataset
from include.declare.history_slice import BRONZE, Slice, Span, SpanIndex, joined_spans
from include.declare.reference_tables import current_versions
from include.ground.app_ids import plan_app_id
from include.ground.delta_log import add_actions, commits_descending, transaction_version
from include.ground.errors import Refused
from include.ground.paths import patch_path, silver_path
from include.ground.record_coordinates import is_file_set
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.plans.plan import Applied, Plan, PlanRecord, Prediction, Published, RolledBack, SliceBuilt, Stage
from include.read.memory_database import files_sql, memory_database
from include.read.publication import Publication, PublishedTable, read_publication, tables_of
from include.read.published_tables import (
    BatchOffsets,
    PinnedTables,
    first_complete_batch,
    layer_order,
    open_dataset,
    open_table,
)
from include.read.published_tables import batch_offsets as read_batch_offsets
from include.state.owner_requests import OwnerRequest, RequestKind
from include.state.release_files import patch_in_progress_file


@dataclass(frozen=True)
class FileFacts:
    """One data file: path, rows, bytes, and the bounds of its columns as the log has them."""

    path: str
    rows: int
    size: int
    low: Mapping[str, Any]
    high: Mapping[str, Any]


@dataclass(frozen=True)
class PublishedHistory:
    """A dataset's published bronze and silver."""

    bronze: PublishedTable
    silver: PublishedTable
    file_sets: frozenset[int] = frozenset()
    """The sets of files that the release has; others are in bronze alone."""

    @cached_property
    def batch_offsets(self) -> list[BatchOffsets]:
        """The offsets that bronze's commits name, up to the published batch."""
        every = read_batch_offsets(self.bronze.path, self.bronze.batch)
        return [part for part in every if not is_file_set(part.partition) or part.partition in self.file_sets]

    @cached_property
    def bronze_files(self) -> list[FileFacts]:
        return list(files_of(self.bronze))

    @cached_property
    def silver_files(self) -> list[FileFacts]:
        return list(files_of(self.silver))

    @cached_property
    def ends(self) -> dict[int, int]:
        """The published end of each partition."""
        return {part.partition: part.end for part in sorted(self.batch_offsets, key=lambda part: part.end)}

    def missing(self, parts: Iterable[BatchOffsets]) -> list[BatchOffsets]:
        """Return the batches' offsets of which bronze has fewer rows than their commit counted."""
        found: Counter[tuple[int, int]] = Counter()
        for file in self.bronze_files:
            if _is_of_one_batch(file):
                found[file.low["_batch_id"], file.low["partition"]] += file.rows
        compacted = [file for file in self.bronze_files if not _is_of_one_batch(file)]
        counted = rows_of_files(self.bronze, compacted, '_batch_id, "partition", count(*)', "true", "group by all")
        found.update({(batch, partition): rows for batch, partition, rows in counted})
        return [part for part in parts if found[part.batch, part.partition] < part.rows]

    def absent(self, part: BatchOffsets) -> list[tuple[int, int]]:
        """Return the ranges [start, end) of a batch's offsets for which bronze has no row."""
        import pyarrow.compute as pc

        condition = (pc.field("_batch_id") == part.batch) & (pc.field("partition") == part.partition)
        found = open_dataset(self.bronze).to_table(columns=["offset"], filter=condition)["offset"]
        return list(holes(sorted(found.to_pylist()), part.start, part.end))

    def batches_with_events(self, columns: Sequence[str], since: datetime, until: datetime) -> set[int]:
        """Return the batches that may have a silver row with one of `columns` in [since, until)."""
        files = [f for f in self.silver_files if any(_may_lie(f, column, since, until) for column in columns)]
        low, high = (sql_literal(moment.isoformat()) for moment in (since, until))
        inside = " or ".join(f"({c} >= {low} and {c} < {high})" for c in map(sql_identifier, columns))
        mixed = [file for file in files if not _is_of_one_batch(file)]
        exact = rows_of_files(self.silver, mixed, "distinct _batch_id", inside)
        return {file.low["_batch_id"] for file in files if _is_of_one_batch(file)} | {batch for (batch,) in exact}


def holes(offsets: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of [start, end) between ascending `offsets`."""
    at = start
    for offset in offsets:
        if offset > at:
            yield at, offset
        at = offset + 1
    if at < end:
        yield at, end


def files_of(table: PublishedTable) -> Iterator[FileFacts]:
    """Yield the table's files at its published version."""
    found = add_actions(open_table(table))
    low, high = (_bounds(found, part) for part in ("min.", "max."))
    facts = (_values(found[name]) for name in ("path", "num_records", "size_bytes"))
    for path, rows, size, lower, upper in zip(*facts, low, high, strict=True):
        yield FileFacts(unquote(path), rows, size, lower, upper)


def rows_of_files(
    table: PublishedTable, files: Sequence[FileFacts], columns: str, condition: str, rest: str = ""
) -> list[tuple[Any, ...]]:
    """Return the result of a query over some of a table's files, which DuckDB reads; empty without files."""
    if not files:
        return []
    with memory_database() as database:
        source = files_sql(database, table.path, [file.path for file in files])
        return list(database.execute(f"select {columns} from {source} where {condition} {rest}").fetchall())


def _is_of_one_batch(file: FileFacts) -> bool:
    """Whether a file's rows are of one batch; false for compacted files, and for those of a run of several batches."""
    return bool(file.low["_batch_id"] == file.high["_batch_id"])


def _bounds(found: Any, part: str) -> list[dict[str, Any]]:
    """Return one of the two bounds of each file by column; thousands of files, so a column at a time."""
    names = [name for name in found.column_names if name.startswith(part)]
    columns = [name.removeprefix(part) for name in names]
    if not names:
        return [{} for _ in range(found.num_rows)]
    return [dict(zip(columns, row, strict=True)) for row in zip(*(_values(found[name]) for name in names), strict=True)]


def _values(column: Any) -> list[Any]:
    """Return a column as Python values. Arrow would return nanoseconds as pandas objects, and import pandas for it."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz))
    return list(column.to_pylist())


def _may_lie(file: FileFacts, column: str, since: datetime, until: datetime) -> bool:
    low, high = file.low.get(column), file.high.get(column)
    return low is None or high is None or (low < until and high >= since)


@dataclass(frozen=True)
class PublishedView:
    """A dataset's publication, as a planner reads it."""

    settings: Settings
    publication: Publication
    declared: Dataset
    history: PublishedHistory

    def refused(self, requested: str, why: str, remedy: str) -> Refused:
        """Return that a range cannot be recomputed; `requested` is the range in words."""
        what = f"{self.publication.dataset}, {requested}: {why}; nothing was planned"
        return Refused(what, remedy, code="range-refused")

    def empty(self, requested: str, why: str, remedy: str) -> Refused:
        """Return that nothing is published in a range that is valid."""
        what = f"{self.publication.dataset}, {requested}: {why}; nothing was planned"
        return Refused(what, remedy, code="range-empty")

    def lacks(self, spans: Sequence[Span], searched: str, remedy: str) -> Refused:
        """Return that records of the range are in none of the sources that may be read."""
        shown = ", ".join(f"partition {s.partition} offsets {s.start} to {s.end - 1}" for s in spans[:5])
        more = f" and {len(spans) - 5} more ranges" if len(spans) > 5 else ""
        what = f"{self.publication.dataset}: {shown}{more} are not in {searched}; nothing was planned"
        return Refused(what, remedy, code="records-missing", spans=tuple(spans))

    def plan(self, request: Request[Any], kind: str, slice_: Slice, requested: str) -> Plan:
        """Return a plan for a slice; `requested` is its range in words. Raises PlanConflict, Refused, Transient."""
        request.refuse_conflict(slice_)
        self.refuse_inherited(slice_)
        predicted, release = _predicted(self, slice_), self.publication.release
        request.refuse_small_disk(predicted, self.settings.state)
        requested += _reference_text(slice_.reference)
        return request.plan(kind, release, release, predicted, slice=slice_, requested=requested)

    def refuse_not_ingested(self, spans: Iterable[Span], requested: str) -> None:
        """Refuse when a span names offsets that are not published yet."""
        name, ends = self.publication.dataset, self.history.ends
        for span in spans:
            if span.partition not in ends:
                why = f"{name} has no partition {span.partition} (published: {sorted(ends)})"
                raise self.refused(requested, why, f"headrace ledger show --dataset {name}")
            if span.end > ends[span.partition]:
                why = f"partition {span.partition} is published up to offset {ends[span.partition] - 1}"
                raise self.refused(requested, why, "headrace wait --caught-up, or an earlier end")

    def from_bronze(self, spans: Sequence[Span]) -> list[Span]:
        """Return the spans with source BRONZE; refuse them when bronze lacks records of them, or some have expired."""
        self.refuse_expired(spans)
        missing = self.missing(spans)
        if missing:
            name = self.publication.dataset
            offsets = json.dumps({str(span.partition): [span.start, span.end] for span in missing})
            remedy = f"headrace replay run --dataset {name} --offsets '{offsets}'   (fills it from Kafka)"
            raise self.lacks(missing, f"bronze.{name}", remedy)
        return [Span(span.partition, span.start, span.end, BRONZE) for span in spans]

    @cached_property
    def complete(self) -> int:
        """The first batch that has expired from none of bronze, silver and rejected."""
        return first_complete_batch(PinnedTables(tables_of(self.settings, self.publication)), self.publication.dataset)

    def refuse_expired(self, spans: Sequence[Span]) -> None:
        """Refuse records of batches that have expired: silver or bronze lacks what the slice needs."""
        old = [part for part in self.history.batch_offsets if part.batch < self.complete] if self.complete else []
        if parts_within(old, spans):
            self._refuse_old()

    def refuse_expired_times(self, since: datetime, before: int) -> None:
        """Refuse unless each record of batches before `before` arrived before `since`."""
        times = (part.latest_ms for part in self.history.batch_offsets if part.batch < before) if before else ()
        if any(time is not None and time >= since.timestamp() * 1000 for time in times):
            self._refuse_old()

    def _refuse_old(self) -> None:
        why = "they have expired, as retention of pipeline.yaml declares"
        remedy = f"plan a range of records that batch {self.complete} or a later one has"
        raise self.refused(f"batches before {self.complete}", why, remedy)

    def refuse_inherited(self, slice_: Slice) -> None:
        """Refuse records that the release inherited instead of validating them."""
        start = self.declared.release_start
        if start is None:
            return
        if parts_within([part for part in self.history.batch_offsets if part.batch < start.batch], slice_.spans):
            why = f"release {self.declared.release} starts at batch {start.batch} and inherited earlier batches"
            remedy = "a later range, or a release from the first batch: headrace release run"
            raise self.refused(f"batches before {start.batch}", why, remedy)

    def reference(self, requested: str) -> dict[str, int] | None:
        """Return the versions of the reference tables to join with all records; None: those of each batch."""
        if requested == AS_OF:
            return None
        if not self.declared.pipeline.reference:
            why = "it joins no reference tables"
            raise self.refused("with today's reference tables", why, f"--reference {AS_OF}")
        return current_versions(self.settings, self.publication.dataset)

    def missing(self, spans: Sequence[Span]) -> list[Span]:
        """Return the parts of the spans that were ingested and are not in bronze."""
        requested = parts_within(self.history.batch_offsets, spans)
        holes = [
            Span(part.partition, start, end, BRONZE)
            for part in self.history.missing(requested)
            for start, end in self.history.absent(part)
        ]
        return [part for span in spans for hole in holes if (part := span.common(hole)) is not None]


def published_view(settings: Settings, dataset: str) -> PublishedView:
    """Return the published view of a dataset. Raises DatasetUnknown, NothingPublished."""
    refuse_unknown_dataset(settings, dataset)
    publication = read_publication(settings, dataset)
    tables = tables_of(settings, publication)
    declared = released_dataset(settings, dataset, publication.release)
    sets = frozenset(each.partition for each in declared.file_sets)
    history = PublishedHistory(tables[f"bronze.{dataset}"], tables[f"silver.{dataset}"], sets)
    return PublishedView(settings, publication, declared, history)


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
    gold = published_gold_rows(view.settings, view.publication)
    size, share = round(sum(file.size * share for file, share in shares)), records / every if every else 0.0
    return cost_of(view.settings, view.publication.dataset, records, size, len(files), round(gold * share))


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


def span_of(part: BatchOffsets) -> Span:
    """Return a batch's offsets of one partition as a span of bronze."""
    return Span(part.partition, part.start, part.end, BRONZE)


def slice_sides(settings: Settings, plan: Plan, dataset: Dataset) -> tuple[Side, Side]:
    """Return the rows of a slice of a dataset's release before and after its recomputation."""
    folder = patch_path(settings, plan.dataset, plan.release, plan.id)
    names = sorted((path.name for path in (folder / "after").iterdir()), key=layer_order)

    def side(state: str) -> Side:
        return Side(dataset, {name: parquet_rows(folder / state / name) for name in names})

    return side("before"), side("after")


class SliceKind(PlanKind[Given]):
    """A kind that recomputes a slice of history with the published release."""

    def explain_build(self, plan: Plan) -> str:
        return f"recompute {plan.requested} with release {plan.release}, in a separate folder"

    def explain_apply(self, plan: Plan) -> str:
        return "replace the rows that differ, all tables in one publication"

    def refuse_applied(self, settings: Settings, plan: Plan) -> None:
        """Refuse when the owner has begun the patch, or committed it to any table."""
        patch = patch_in_progress_file(settings, plan.dataset, plan.release).read()
        app_id = plan_app_id(plan.dataset, plan.release, plan.id)
        tables = self.patched_tables(settings, plan).values()
        is_begun = patch is not None and patch.plan == plan.id
        if is_begun or any(transaction_version(path, app_id) is not None for path in tables):
            raise self.already_applied(plan)

    def patched_tables(self, settings: Settings, plan: Plan) -> Mapping[str, Path]:
        """Return the tables to which each patch commits: silver, also when none of its rows differs."""
        return {f"silver.{plan.dataset}": silver_path(settings, plan.dataset, plan.release)}

    def build_job(self, plan: Plan) -> tuple[str, ...]:
        return "spark_jobs.jobs.slice_job", plan.dataset, plan.id

    def read_build(self, output: Mapping[str, Any], seconds: float) -> SliceBuilt:
        return SliceBuilt.model_validate({"built": output["built"], "seconds": seconds})

    def sides(self, settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
        return slice_sides(settings, record.plan, released_dataset(settings, record.plan.dataset, record.plan.release))

    def refuse_apply(self, settings: Settings, record: PlanRecord) -> None:
        """Refuse where the next owner may be a host that has neither the record of a patch in progress nor its rows."""
        if settings.lease_domain and not record.last(SliceBuilt).is_equal:
            what = f"plan {record.plan.id} is a patch, which only the host that began it can finish"
            raise Refused(
                f"{what}; HEADRACE_LEASE_DOMAIN is set, so another host may take over; nothing was changed",
                f"headrace plan show {record.plan.id}   (what differs); hosts that share a state folder may apply it",
                code="patch-on-own-disk",
                plan=record.plan.id,
            )

    def apply(self, settings: Settings, record: PlanRecord) -> Applied:
        """Have the owner apply the patch. An equal slice needs no request."""
        return Applied.model_validate(_patch(settings, record, RequestKind.APPLY_PATCH))

    def confirm(self, settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
        """Confirm that the patch is committed and published."""
        plan, versions = record.plan, dict[str, int]()
        if record.last(Published).changed == 0:
            return Confirmation.of(record, published, "verified")
        app_id, transaction = plan_app_id(plan.dataset, plan.release, plan.id), TRANSACTION[record.stage]
        for name, path in self.patched_tables(settings, plan).items():
            if (transaction_version(path, app_id) or 0) < transaction:
                raise Confirmation.missing(record, f"{name} has no commit of it")
            own = (c.version for c in commits_descending(path) if (c.app_id, c.app_version) == (app_id, transaction))
            versions[name] = next(own)
            shown = published.tables[name].version if published.release == plan.release else versions[name]
            if shown < versions[name]:
                why = f"{name} is published at version {shown}, before it ({versions[name]})"
                raise Confirmation.missing(record, why)
        result = "corrected" if record.stage is Stage.APPLIED else "rolled back"
        return Confirmation.of(record, published, result, versions.get(f"silver.{plan.dataset}"))

    def refuse_revert(self, settings: Settings, record: PlanRecord) -> None:
        """Refuse when bronze would lose records, when records have expired, or while a plan of them is open."""
        self.refuse_apply(settings, record)
        if record.last(SliceBuilt).filled:
            what = f"plan {record.plan.id} filled a gap in bronze; reverting it would lose records, so nothing was done"
            raise Refused(what, "headrace audit", code="gap-filled", plan=record.plan.id)
        published_view(settings, record.plan.dataset).refuse_expired(record.plan.records.spans)
        refuse_conflict(settings, record.plan.dataset, record.plan.records)

    def revert(self, settings: Settings, record: PlanRecord) -> RolledBack:
        return RolledBack.model_validate(_patch(settings, record, RequestKind.REVERT_PATCH))

    def drop_build(self, settings: Settings, plan: Plan) -> None:
        """Remove the slice's rows before and after; the comparison stays."""
        shutil.rmtree(patch_path(settings, plan.dataset, plan.release, plan.id), ignore_errors=True)


def _patch(settings: Settings, record: PlanRecord, kind: RequestKind) -> dict[str, int]:
    """Have the owner apply or revert a patch; return at which batch. Rows that are equal are only removed."""
    plan, built = record.plan, record.last(SliceBuilt)
    if built.is_equal:
        shutil.rmtree(patch_path(settings, plan.dataset, plan.release, plan.id), ignore_errors=True)
        return {"batch": built.batch, "changed": 0}
    return {
        "batch": request_owner(settings, plan.dataset, OwnerRequest(plan.id, kind, plan.release, built.attempt)).batch
    }
