"""A dataset's page: its journey with counts per layer, rejected records over time, gold tables, contract and rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.declare.contract import Column, Contract
from include.declare.contract_rules import LISTS, Rule
from include.declare.dataset import Dataset, DatasetUnknown, ReleaseUnknown, declared_dataset, released_dataset
from include.declare.derived_dataset import (
    DerivedDataset,
    as_dataset,
    declared_derived,
    described_gold,
    released_derived,
)
from include.declare.payload_text import shown_payload
from include.declare.row_expectations import PAIR
from include.declare.writer_schemas import known_schemas
from include.ground.paths import snapshot_path
from include.ground.settings import Settings
from include.observe.progress import DatasetProgress, DerivedProgress
from include.observe.watermark import WatermarkStatus
from include.read.plain_values import text_of
from include.read.published_tables import pinned
from include.read.rejected_records import RejectedFilter, RejectedRecord, decided_records, rejected_records
from include.serve.chart_shapes import BarChart, bar_chart
from include.serve.display_values import UNKNOWN, duration, moment, percent, short, whole
from include.serve.live_observer import LiveObserver, LiveSnapshot, TimeRange
from include.serve.overview_view import StreamCard, derived_card, stream_card

NAMES_OF_COLUMNS = ("column", *PAIR, *LISTS)
"""Arguments of rules; their values are in a rule's `columns`."""
MOST_SAMPLES = 20
MOST_PAYLOAD = 4_000


@dataclass(frozen=True)
class LayerStep:
    """A layer of the journey: rows, and its share of the records in bronze (0 to 1)."""

    name: str
    rows: str
    share: float | None
    detail: str
    table: str


@dataclass(frozen=True)
class GoldLine:
    """A gold table: `complete` is the watermark: windows that end before it are closed.

    `refresh`: when it gets its rows, and what it waits for.
    """

    name: str
    how: str
    rows: str
    complete: str
    is_published: bool
    refresh: str = ""


@dataclass(frozen=True)
class WatermarkView:
    """The watermark, in a sentence what holds it, and each partition as cells: number, latest row, state, since."""

    complete: str
    held: str
    partitions: Sequence[Sequence[str]]


@dataclass(frozen=True)
class ReasonLine:
    """A reason of rejection, or a rule that warned, with its records since the release began."""

    reason: str
    records: str
    share: str
    is_warning: bool


@dataclass(frozen=True)
class DatasetView:
    """All that the page of a dataset with a topic shows; `changes`: how its folder differs from the release."""

    card: StreamCard
    release: str
    topic: str
    journey: Sequence[LayerStep]
    reasons: Sequence[ReasonLine]
    rejected: BarChart
    gold: Sequence[GoldLine]
    watermark: WatermarkView
    changes: Sequence[str]
    at: str
    notes: Sequence[str]


@dataclass(frozen=True)
class DerivedView:
    """All that the page of a derived dataset shows; `sources`: name in queries, table, published batches not used."""

    card: StreamCard
    release: str
    sources: Sequence[tuple[str, str, str]]
    gold: Sequence[GoldLine]
    at: str
    notes: Sequence[str]


@dataclass(frozen=True)
class ContractView:
    """A contract for people: version, columns and rules as rows of text."""

    version: str
    levels: Sequence[str]
    columns: Sequence[Sequence[str]]
    rules: Sequence[Sequence[str]]


_releases: dict[Path, Dataset] = {}


def release_of(settings: Settings, name: str, release: str) -> Dataset:
    """Return the dataset as a release's snapshot declares it (cached). Raises ReleaseUnknown, IsDerived."""
    place = snapshot_path(settings, name, release)
    if place not in _releases:
        _releases[place] = released_dataset(settings, name, release)
    return _releases[place]


def described_dataset(settings: Settings, name: str, release: str | None) -> Dataset:
    """Return the dataset as its release declares it, or as its folder does when there is no snapshot."""
    with suppress(ReleaseUnknown):
        if release is not None:
            return release_of(settings, name, release)
    return declared_dataset(settings, name)


def described_contract(settings: Settings, each: DatasetProgress | DerivedProgress) -> Contract:
    """Return the contract as the release declares it, or as the folder does; a derived one has rules of tables only."""
    if isinstance(each, DerivedProgress):
        return as_dataset(_derived(settings, each)).contract
    return described_dataset(settings, each.dataset, each.release).contract


def progress_of(now: LiveSnapshot, name: str) -> DatasetProgress | DerivedProgress:
    """Return the progress of a dataset. Raises DatasetUnknown."""
    known: dict[str, DatasetProgress | DerivedProgress] = {each.dataset: each for each in now.progress.datasets}
    known |= {each.dataset: each for each in now.progress.derived}
    if name not in known:
        raise DatasetUnknown(name, sorted(known))
    return known[name]


def dataset_view(observer: LiveObserver, each: DatasetProgress, chosen: TimeRange) -> DatasetView:
    """Return the page of a dataset with a topic."""
    now = observer.snapshot()
    declared = described_dataset(observer.settings, each.dataset, each.release)
    return DatasetView(
        card=stream_card(observer, now, each, chosen),
        release=each.release or "none yet",
        topic=declared.pipeline.topic,
        journey=list(_journey(each, declared)),
        reasons=list(_reasons(each)),
        rejected=rejected_chart(observer, each.dataset, chosen, now.at),
        gold=[_gold_line(now, each, declared, n) for n in range(len(declared.pipeline.gold))],
        watermark=watermark_view(now.watermarks.get(each.dataset)),
        changes=[f"{change.kind} {change.table}: {change.why}" for change in each.changes],
        at=moment(now.at),
        notes=now.notes,
    )


def rejected_chart(
    observer: LiveObserver, dataset: str, chosen: TimeRange, at: datetime, reason: str | None = None
) -> BarChart:
    """Return the chart of rejected records over time, of all reasons or of one."""
    intervals = observer.intervals(dataset, chosen, at)
    labels = [f"{interval.since:{chosen.label_format}}" for interval in intervals]
    counts = [interval.minute.reasons for interval in intervals]
    if reason is not None:
        return bar_chart(f"Rejected by {reason}", labels, [{reason: each[reason]} for each in counts], short)
    return bar_chart("Rejected records by reason", labels, counts, short)


def _journey(each: DatasetProgress, declared: Dataset) -> Iterator[LayerStep]:
    rows, name = each.rows, each.dataset
    bronze = rows.get("bronze") or 0
    silver, rejected = rows.get("silver"), rows.get("rejected")
    yield LayerStep("Kafka", whole(rows.get("kafka")), None, f"offsets of topic {declared.pipeline.topic}", "")
    yield LayerStep("bronze", whole(rows.get("bronze")), None, "every record, byte for byte", f"bronze.{name}")
    yield LayerStep("silver", whole(silver), _share(silver, bronze), "accepted, each identity once", f"silver.{name}")
    why = "with the reason; nothing is dropped"
    yield LayerStep("rejected", whole(rejected), _share(rejected, bronze), why, f"rejected.{name}")
    gold = [count for table, count in rows.items() if table.startswith("gold.")]
    total = None if not gold or None in gold else sum(count or 0 for count in gold)
    yield LayerStep("gold", whole(total), None, f"final rows in {len(declared.pipeline.gold)} tables", "")


def _share(part: int | None, whole_: int) -> float | None:
    return None if part is None or not whole_ else min(part / whole_, 1.0)


def _reasons(each: DatasetProgress) -> Iterator[ReasonLine]:
    bronze = each.rows.get("bronze") or 0
    for reason, count in sorted(each.rejected.items(), key=lambda item: (-item[1], item[0])):
        yield ReasonLine(reason, whole(count), percent(count / bronze if bronze else None), False)
    for rule, count in sorted(each.warned.items()):
        yield ReasonLine(rule, whole(count), percent(count / bronze if bronze else None), True)


def _gold_line(now: LiveSnapshot, each: DatasetProgress, declared: Dataset, number: int) -> GoldLine:
    gold = declared.pipeline.gold[number]
    name, publication = f"gold.{gold.name}", now.published.get(each.dataset)
    found = now.watermarks.get(each.dataset)
    complete = moment(found.watermark if found else None) if gold.timed_by else "newest row per key"
    published = publication is not None and name in publication.tables
    wait = next((wait for wait in found.waits if wait.table == name), None) if found else None
    refresh = gold.described_refresh if wait is None else f"on close: {wait.sentence.removeprefix(name).lstrip(': ')}"
    return GoldLine(name, described_gold(gold), whole(each.rows.get(name)), complete, published, refresh)


def watermark_view(found: WatermarkStatus | None) -> WatermarkView:
    """Return the watermark as text."""
    if found is None or found.holder is None:
        return WatermarkView(UNKNOWN, "No row of silver has moved it yet.", ())
    after = "never" if found.idle_after is None else f"after {duration(found.idle_after.total_seconds())}"
    held = f"{found.holder.sentence}. A partition that was read to its end and brings nothing is idle {after}."
    cells = [
        (str(each.partition), moment(each.latest), str(each.state), moment(each.since), "holds it" * each.holds)
        for each in found.partitions
    ]
    return WatermarkView(moment(found.watermark), held[0].upper() + held[1:], cells)


def derived_view(observer: LiveObserver, each: DerivedProgress) -> DerivedView:
    """Return the page of a derived dataset."""
    now = observer.snapshot()
    declared = _derived(observer.settings, each)
    publication = now.published.get(each.dataset)
    gold = [
        GoldLine(
            f"gold.{table.name}",
            f"derived by {', '.join(table.grain)}",
            whole(each.rows.get(f"gold.{table.name}")),
            "as of the used batches",
            publication is not None and f"gold.{table.name}" in publication.tables,
        )
        for table in declared.pipeline.gold
    ]
    sources = [
        (name, table, "0" if table not in each.behind else whole(each.behind[table]))
        for name, table in declared.pipeline.sources.items()
    ]
    return DerivedView(derived_card(now, each), each.release or "none yet", sources, gold, moment(now.at), now.notes)


def _derived(settings: Settings, each: DerivedProgress) -> DerivedDataset:
    with suppress(ReleaseUnknown):
        if each.release is not None:
            return released_derived(settings, each.dataset, each.release)
    return declared_derived(settings, each.dataset)


def contract_view(contract: Contract) -> ContractView:
    """Return a contract's columns and rules as text."""
    tables = [(contract.dataset, rule) for rule in contract.rules]
    tables += [(table, rule) for table, rules in contract.gold.items() for rule in rules]
    return ContractView(
        contract.version,
        [f"{level.name}: at most {level.seconds:g} s" for level in contract.levels],
        [_column_cells(column, contract) for column in contract.columns],
        [_rule_cells(table, rule) for table, rule in tables],
    )


def _column_cells(column: Column, contract: Contract) -> Sequence[str]:
    limits = [
        "" if column.minimum is None else f"≥ {column.minimum}",
        "" if column.maximum is None else f"≤ {column.maximum}",
        "" if column.pattern is None else f"matches {column.pattern}",
        f"one of {', '.join(column.values)}" if column.values else "",
    ]
    role = "identity" if column.name in contract.identity else ""
    return column.name, column.type_text, "required" if column.required else "", role, "; ".join(filter(None, limits))


def _rule_cells(table: str, rule: Rule) -> Sequence[str]:
    written = {key: value for key, value in rule.written.items() if key not in NAMES_OF_COLUMNS}
    details = ", ".join(f"{key}: {json.dumps(value, default=str)}" for key, value in written.items())
    return table, rule.name, rule.action, rule.severity, rule.expectation, ", ".join(rule.columns), details


@dataclass(frozen=True)
class SampleLine:
    """A rejected record: position, time, status, the broken rules, and its payload (shortened)."""

    position: str
    rejected_at: str
    status: str
    reasons: Sequence[str]
    payload: str
    decisions: Sequence[str]


def rejected_samples(settings: Settings, dataset: str, reason: str | None) -> list[SampleLine]:
    """Return the newest rejected records, of one reason if it is given. Raises TableUnknown."""
    chosen, decided = RejectedFilter(reason=reason), decided_records(settings, dataset)
    schemas = known_schemas(settings, dataset)
    found = rejected_records(pinned(settings), dataset, chosen, decided, MOST_SAMPLES)
    return [_sample(record, shown_payload(record.payload, schemas)) for record in found]


def _sample(record: RejectedRecord, value: bytes | None) -> SampleLine:
    payload = "(no value)" if value is None else text_of(value[:MOST_PAYLOAD])
    cut = value is not None and len(value) > MOST_PAYLOAD
    return SampleLine(
        f"partition {record.partition}, offset {record.offset:,}, batch {record.batch:,}",
        moment(record.first_seen),
        record.status,
        [" · ".join(filter(None, (each.rule, each.column, each.found))) for each in record.reasons],
        f"{payload}…" if cut else payload,
        [f"{each.act} by {each.by} at {moment(each.at)}: {each.why}" for each in record.decisions],
    )
