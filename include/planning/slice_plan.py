"""Planning a backfill or a replay: what was asked becomes offsets, and where each of them is read is chosen.

No table is touched. What cannot be found anywhere, or was not ingested yet, refuses the plan and is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from include.catalog.dataset import Dataset, released_dataset
from include.catalog.history_slice import BRONZE, KAFKA, Slice, Span
from include.catalog.pipeline import time_columns
from include.clients.kafka import log_start_offsets, topic_id
from include.errors import Terminal
from include.planning.plan import BACKFILL, REINSTATE, REPLAY, Plan, PlanRecord, Prediction
from include.planning.plan_journal import find_plan, next_plan_id, planning_lock, save_plan
from include.planning.published_history import PublishedHistory
from include.planning.release_plan import refuse_conflict, refuse_small_disk, refuse_unknown_dataset, reported_rate
from include.reading.bronze_ranges import BatchOffsets
from include.reading.publication import Publication, read_publication, tables_of
from include.reading.published_tables import PinnedTables, open_dataset
from include.reference.reference_tables import current_versions
from include.settings import Settings
from include.state.broker_address import bootstrap_servers

AUTO = "auto"
SOURCES = (AUTO, KAFKA, BRONZE)
AS_OF, TODAY = "as-of", "today"
REFERENCES = (AS_OF, TODAY)


class RangeRefused(Terminal):
    """What was asked names nothing that could be done again; `asked` is it in words."""

    def __init__(self, dataset: str, asked: str, why: str, remedy: str) -> None:
        super().__init__(f"{dataset}, {asked}: {why}; nothing was planned", remedy)
        self.dataset, self.asked = dataset, asked


class RangeEmpty(RangeRefused):
    """What was asked may be asked, but nothing was published there so far."""


class RecordsMissing(Terminal):
    """Records that the range needs are neither where they are to be read nor anywhere else that was looked at."""

    def __init__(self, dataset: str, spans: Sequence[Span], looked: str, remedy: str) -> None:
        shown = ", ".join(f"partition {s.partition} offsets {s.start} to {s.end - 1}" for s in spans[:5])
        more = f" and {len(spans) - 5} more ranges" if len(spans) > 5 else ""
        super().__init__(f"{dataset}: {shown}{more} are not in {looked}; nothing was planned", remedy)
        self.dataset, self.spans = dataset, tuple(spans)


@dataclass(frozen=True)
class ReplayRange:
    """What a replay asks for, one of three: offsets [start, end) by partition, Kafka's times, batches (inclusive)."""

    offsets: Mapping[int, tuple[int, int]] | None = None
    times: tuple[datetime, datetime] | None = None
    batches: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.offsets is not None:
            return "offsets " + ", ".join(f"{p}: {start} to {end - 1}" for p, (start, end) in self.offsets.items())
        if self.times is not None:
            return f"records of Kafka time {format_range(*self.times)}"
        assert self.batches is not None
        return f"batches {self.batches[0]} to {self.batches[1]}"


def format_range(since: datetime, until: datetime) -> str:
    """Return a half-open range of times in words."""
    return f"from {since.astimezone(UTC):%Y-%m-%d %H:%M} to before {until.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def plan_backfill(
    settings: Settings,
    dataset: str,
    since: datetime,
    until: datetime,
    by: str,
    now: datetime,
    threshold: float = 0.0,
    reference: str = AS_OF,
    origin: str = "",
) -> PlanRecord:
    """Plan to do the events of [since, until) again, with the release that readers see, from bronze.

    `reference` AS_OF joins the reference tables as they were at each batch, TODAY as they are now. Asked again with the
    same `origin` it returns the plan that was made before.
    Errors: NothingPublished, RangeRefused, NothingThere, RecordsNowhere, PlanInTheWay, PlanBusy.
    """
    asked = f"events {format_range(since, until)}"
    if since >= until:
        raise RangeRefused(dataset, asked, "the range ends before it begins", "give --from an earlier time than --to")
    with planning_lock(settings):
        if known := find_plan(settings, origin):
            return known
        view = _view(settings, dataset)
        batches = view.history.batches_with_events(time_columns(view.declared.pipeline), since, until)
        tiles = [tile for tile in view.history.tiles if tile.batch in batches]
        if not tiles:
            raise RangeEmpty(dataset, asked, "no published event lies there", "headrace tables")
        parts = view.from_bronze(_joined(tiles, BRONZE))
        slice_ = Slice(parts, since, until, view.reference(reference))
        return _kept(view, BACKFILL, slice_, asked, by, now, threshold, origin)


def plan_replay(
    settings: Settings,
    dataset: str,
    wanted: ReplayRange,
    source: str,
    by: str,
    now: datetime,
    threshold: float = 0.0,
    reference: str = AS_OF,
    origin: str = "",
) -> PlanRecord:
    """Plan to do records again with the release that readers see: from Kafka where it has them, else from bronze.

    `source` KAFKA or BRONZE forbids the other. What bronze lacks is filled. `reference`, `origin`: as in
    `plan_backfill`. Errors: as there, and BrokerUnreachable.
    """
    with planning_lock(settings):
        if known := find_plan(settings, origin):
            return known
        view = _view(settings, dataset)
        spans = _asked_spans(view, wanted)
        if not spans:
            raise RangeEmpty(dataset, str(wanted), "no published record lies there", "headrace status")
        _refuse_not_ingested(view, spans, str(wanted))
        parts = view.from_bronze(spans) if source == BRONZE else _across_the_seam(settings, view, spans, source)
        slice_ = Slice(parts, reference=view.reference(reference))
        return _kept(view, REPLAY, slice_, str(wanted), by, now, threshold, origin)


def plan_reinstatement(
    settings: Settings, dataset: str, spans: Sequence[Span], asked: str, by: str, now: datetime, threshold: float = 0.0
) -> PlanRecord:
    """Plan to do exactly these spans again, from bronze, where a rejected record stays.

    Errors: NothingPublished, RangeRefused, RecordsNowhere, PlanInTheWay, PlanBusy.
    """
    with planning_lock(settings):
        view = _view(settings, dataset)
        _refuse_not_ingested(view, spans, asked)
        slice_ = Slice(view.from_bronze(spans), reference=view.reference(AS_OF))
        return _kept(view, REINSTATE, slice_, asked, by, now, threshold, "")


@dataclass(frozen=True)
class _View:
    """What is published of a dataset, as the planner sees it."""

    settings: Settings
    seen: Publication
    declared: Dataset
    history: PublishedHistory

    def from_bronze(self, spans: Sequence[Span]) -> list[Span]:
        """Return the spans, to be read from bronze; RecordsNowhere when it lacks some of their records."""
        lacking = self.lacking(spans)
        if lacking:
            name = self.seen.dataset
            ends = {span.partition: [span.start, span.end] for span in lacking}
            remedy = f"headrace replay run --dataset {name} --offsets '{_as_argument(ends)}'   (fills it from Kafka)"
            raise RecordsMissing(name, lacking, f"bronze.{name}", remedy)
        return [Span(span.partition, span.start, span.end, BRONZE) for span in spans]

    def refuse_inherited(self, wanted: Slice) -> None:
        """Raise RangeRefused for records that the release did not judge: it took them over as they were."""
        beginning = self.declared.release_start
        if beginning is None:
            return
        before = (tile for tile in self.history.tiles if tile.batch < beginning.batch)
        if any(span.overlaps(_span(tile)) for tile in before for span in wanted.spans):
            why = (
                f"release {self.declared.release} begins with batch {beginning.batch} and took over what was before it"
            )
            remedy = "a later range; or ship the folder from the start: headrace release run"
            raise RangeRefused(self.seen.dataset, f"batches before {beginning.batch}", why, remedy)

    def reference(self, wanted: str) -> dict[str, int] | None:
        """Return the versions of the reference tables that all records are joined with; None: each batch's own."""
        if wanted == AS_OF:
            return None
        if not self.declared.pipeline.reference:
            why = "it joins no reference tables"
            raise RangeRefused(self.seen.dataset, "with today's reference tables", why, f"--reference {AS_OF}")
        return current_versions(self.settings, self.seen.dataset)

    def lacking(self, spans: Sequence[Span]) -> list[Span]:
        """Return the parts of the spans that bronze was to have and has not."""
        asked = [tile for tile in self.history.tiles if any(span.overlaps(_span(tile)) for span in spans)]
        holes = [
            Span(tile.partition, start, end, BRONZE)
            for tile in self.history.missing(asked)
            for start, end in self.history.absent(tile)
        ]
        return [part for span in spans for hole in holes if (part := _common(span, hole)) is not None]


def _view(settings: Settings, dataset: str) -> _View:
    refuse_unknown_dataset(settings, dataset)
    seen = read_publication(settings, dataset)
    tables = tables_of(settings, seen)
    history = PublishedHistory(tables[f"bronze.{dataset}"], tables[f"silver.{dataset}"])
    return _View(settings, seen, released_dataset(settings, dataset, seen.release), history)


def _kept(
    view: _View, kind: str, slice_: Slice, asked: str, by: str, now: datetime, threshold: float, origin: str
) -> PlanRecord:
    name = view.seen.dataset
    refuse_conflict(view.settings, name, slice_)
    view.refuse_inherited(slice_)
    wanted = _predicted(view, slice_)
    refuse_small_disk(view.settings, name, wanted)
    plan = Plan(
        id=next_plan_id(view.settings, kind, name),
        kind=kind,
        dataset=name,
        base=view.seen.release,
        release=view.seen.release,
        planned_at=now,
        planned_by=by,
        threshold=threshold,
        changes=(),
        predicted=wanted,
        slice=slice_,
        asked=asked + _said_reference(slice_.reference),
        origin=origin,
    )
    return save_plan(view.settings, plan)


def _said_reference(versions: Mapping[str, int] | None) -> str:
    if versions is None:
        return ""
    return ", joined with " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _predicted(view: _View, slice_: Slice) -> Prediction:
    """Files by their bounds; gold rows by the share of the records."""
    files = [file for file in view.history.bronze_files if any(_within(file.low, file.high, s) for s in slice_.spans)]
    records, every = sum(file.rows for file in files), sum(file.rows for file in view.history.bronze_files)
    reading = PinnedTables(tables_of(view.settings, view.seen))
    gold = sum(reading.facts(name).rows or 0 for name in reading.tables if name.startswith("gold."))
    rate = reported_rate(view.settings, view.seen.dataset)
    share = records / every if every else 0.0
    size = sum(file.size for file in files)
    return Prediction(records, size, len(files), round(gold * share), round(records / rate, 1), rate)


def _within(low: Mapping[str, int], high: Mapping[str, int], span: Span) -> bool:
    return low["partition"] == span.partition and low["offset"] < span.end and high["offset"] >= span.start


def _asked_spans(view: _View, wanted: ReplayRange) -> list[Span]:
    """Return the offsets that were asked for, by partition."""
    if wanted.offsets is not None:
        if any(start >= end or start < 0 for start, end in wanted.offsets.values()):
            raise RangeRefused(
                view.seen.dataset, str(wanted), "a range ends before it begins", "START,END with START < END"
            )
        return [Span(part, start, end, BRONZE) for part, (start, end) in sorted(wanted.offsets.items())]
    if wanted.times is not None:
        return _spans_of_times(view, *wanted.times)
    assert wanted.batches is not None
    first, last = wanted.batches
    return _joined([tile for tile in view.history.tiles if first <= tile.batch <= last], BRONZE)


def _spans_of_times(view: _View, since: datetime, until: datetime) -> list[Span]:
    """Kafka's times ascend with the offsets (the broker sets them), so a range of times is a range of offsets."""
    import pyarrow.compute as pc

    if since >= until:
        raise RangeRefused(
            view.seen.dataset, format_range(since, until), "it ends before it begins", "an earlier --from-timestamp"
        )
    inside = (pc.field("timestamp") >= since) & (pc.field("timestamp") < until)
    found = open_dataset(view.history.bronze).to_table(columns=["partition", "offset"], filter=inside)
    ends = found.group_by("partition").aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    return [Span(row["partition"], row["offset_min"], row["offset_max"] + 1, BRONZE) for row in ends]


def _refuse_not_ingested(view: _View, spans: Iterable[Span], asked: str) -> None:
    name, ends = view.seen.dataset, view.history.ends
    for span in spans:
        if span.partition not in ends:
            why = f"{name} has no partition {span.partition} (published: {sorted(ends)})"
            raise RangeRefused(name, asked, why, "headrace status")
        if span.end > ends[span.partition]:
            why = f"partition {span.partition} is published up to offset {ends[span.partition] - 1}"
            raise RangeRefused(name, asked, why, "headrace wait --caught-up, or an earlier end")


def _across_the_seam(settings: Settings, view: _View, spans: Sequence[Span], source: str) -> list[Span]:
    """Cut each span where Kafka's retention ends: below it bronze, from it on Kafka."""
    bootstrap, topic = bootstrap_servers(settings), view.declared.pipeline.topic
    strange = {tile.topic_id for tile in view.history.tiles} - {topic_id(bootstrap, topic)}
    if strange:
        why = f"bronze was read from topic {topic} with id {min(strange)}, which was deleted and made anew since"
        raise RangeRefused(view.seen.dataset, "from Kafka", why, "--source bronze")
    starts = log_start_offsets(bootstrap, topic)
    below = [_common(span, Span(span.partition, 0, starts[span.partition], BRONZE)) for span in spans]
    above = [_common(span, Span(span.partition, starts[span.partition], span.end, KAFKA)) for span in spans]
    old, fresh = [part for part in below if part], [part for part in above if part]
    if source == KAFKA and old:
        remedy = "--source auto takes bronze for what Kafka has deleted"
        raise RecordsMissing(view.seen.dataset, old, "Kafka any more", remedy)
    lacking = view.lacking(old)
    if lacking:
        where = f"Kafka any more, nor in bronze.{view.seen.dataset}"
        raise RecordsMissing(view.seen.dataset, lacking, where, "a range without them, or a backup of bronze")
    kept = [Span(span.partition, span.start, span.end, BRONZE) for span in old]
    return sorted(
        [*kept, *(Span(s.partition, s.start, s.end, KAFKA) for s in fresh)], key=lambda s: (s.partition, s.start)
    )


def _common(one: Span, other: Span) -> Span | None:
    """Return the offsets that both name, with `one`'s source."""
    start, end = max(one.start, other.start), min(one.end, other.end)
    return Span(one.partition, start, end, one.source) if one.partition == other.partition and start < end else None


def _joined(tiles: Iterable[BatchOffsets], source: str) -> list[Span]:
    """Return the tiles' offsets with what adjoins made one span."""
    spans: list[Span] = []
    for tile in sorted(tiles, key=lambda tile: (tile.partition, tile.start)):
        last = spans[-1] if spans else None
        if last is not None and last.partition == tile.partition and last.end >= tile.start:
            spans[-1] = Span(tile.partition, last.start, max(last.end, tile.end), source)
        elif tile.end > tile.start:
            spans.append(Span(tile.partition, tile.start, tile.end, source))
    return spans


def _span(tile: BatchOffsets) -> Span:
    return Span(tile.partition, tile.start, tile.end, BRONZE)


def _as_argument(ranges: Mapping[int, Sequence[int]]) -> str:
    return json.dumps({str(partition): list(span) for partition, span in ranges.items()})
