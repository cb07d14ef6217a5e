"""The pages of a dataset: its journey with counts by layer, rejected records, runs, quality over time, contract."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from include.declare.contract import Column, Contract
from include.declare.contract_rules import LISTS, Rule, RuleResult
from include.declare.dataset import Dataset, DatasetUnknown, ReleaseUnknown, declared_dataset, released_dataset
from include.declare.derived_dataset import (
    DerivedDataset,
    as_dataset,
    declared_derived,
    described_gold,
    released_derived,
)
from include.declare.gold import Gold
from include.declare.payloads import shown_payload
from include.declare.row_expectations import PAIR
from include.declare.writer_schemas import WriterSchemas, known_schemas
from include.ground.paths import snapshot_path
from include.ground.settings import Settings
from include.observe.progress import DatasetProgress, DerivedProgress
from include.observe.stream_history import Interval, StoredValidation, stored_validations
from include.read.plain_values import text_of
from include.read.published_tables import pinned
from include.read.rejected_records import RejectedFilter, RejectedRecord, decided_records, rejected_records
from include.serve.charts import (
    BAD,
    GOOD,
    IDLE,
    WARNING,
    Badge,
    BarChart,
    LineChart,
    bar_chart,
    line_chart,
    moment,
    percent,
    short,
)
from include.serve.observer import LiveObserver, LiveSnapshot, TimeRange
from include.serve.overview import AnyProgress, derived_card, interval_labels, stream_card
from include.serve.pages import Chosen, Shared, events, page, part, refuse_many

DATASETS = "Overview"
BatchNumber = Annotated[int | None, Query(ge=-1, le=2**62)]
routes = APIRouter()


def progress_of(now: LiveSnapshot, name: str) -> AnyProgress:
    """Return the progress of a dataset. Raises DatasetUnknown."""
    known: dict[str, AnyProgress] = {each.dataset: each for each in now.progress.datasets}
    known |= {each.dataset: each for each in now.progress.derived}
    if name not in known:
        raise DatasetUnknown(name, sorted(known))
    return known[name]


def named_progress(console: Shared, name: str) -> AnyProgress:
    """Return the progress of the dataset that the address names. Raises DatasetUnknown."""
    return progress_of(console.observer.snapshot(), name)


Named = Annotated[Any, Depends(named_progress)]


@routes.get("/datasets/{name}")
def dataset(request: Request, console: Shared, each: Named, chosen: Chosen) -> HTMLResponse:
    """Return the page of a dataset. Raises DatasetUnknown."""
    template, shown = dataset_part(console.observer, each, chosen)
    live = f"/live/datasets/{each.dataset}?range={chosen.name}"
    return page(request, template, DATASETS, each.dataset, live=live, chosen=chosen.name, **shown)


@routes.get("/live/datasets/{name}", response_class=EventSourceResponse, dependencies=[Depends(refuse_many)])
async def live_dataset(
    request: Request, console: Shared, each: Named, chosen: Chosen
) -> AsyncIterator[ServerSentEvent]:
    """Stream the page of a dataset. Raises DatasetUnknown."""

    def render() -> str:
        now = progress_of(console.observer.snapshot(), each.dataset)
        template, shown = dataset_part(console.observer, now, chosen)
        return part(template, **shown)

    async for event in events(request, render):
        yield event


def dataset_part(observer: LiveObserver, each: AnyProgress, chosen: TimeRange) -> tuple[str, dict[str, Any]]:
    """Return the template of a dataset's page, and what it shows."""
    now, release = observer.snapshot(), each.release or "none yet"
    if isinstance(each, DerivedProgress):
        return "derived", {"now": now, "release": release, **_derived_part(observer.settings, now, each)}
    return "dataset", {"now": now, "release": release, **_topic_part(observer, now, each, chosen)}


@dataclass(frozen=True)
class LayerStep:
    """A layer of the journey: rows, and its share of the records in bronze (0 to 1)."""

    name: str
    rows: int | None
    share: float | None
    detail: str
    table: str = ""


@dataclass(frozen=True)
class GoldLine:
    """A gold table: windows that end before `complete` are closed; `refresh`: when it gets rows, and waits for what."""

    name: str
    how: str
    rows: int | None
    complete: str
    is_published: bool
    refresh: str = ""


def _topic_part(observer: LiveObserver, now: LiveSnapshot, each: DatasetProgress, chosen: TimeRange) -> dict[str, Any]:
    declared = described_dataset(observer.settings, each.dataset, each.release)
    return {
        "card": stream_card(observer, now, each, chosen),
        "topic": declared.pipeline.topic,
        "journey": list(_journey(each, declared)),
        "reasons": list(_reasons(each)),
        "rejected": rejected_chart(observer, each.dataset, chosen, now.at),
        "gold": [_gold_line(now, each, gold) for gold in declared.pipeline.gold if not gold.only_adds],
        "watermark": now.watermarks.get(each.dataset),
        "changes": each.changes,
    }


def _journey(each: DatasetProgress, declared: Dataset) -> Iterator[LayerStep]:
    rows, name = each.rows, each.dataset
    bronze, silver, rejected = (rows.get(layer) for layer in ("bronze", "silver", "rejected"))
    yield LayerStep("Kafka", rows.get("kafka"), None, f"offsets of topic {declared.pipeline.topic}")
    yield LayerStep("bronze", bronze, None, "every record, byte for byte", f"bronze.{name}")
    yield LayerStep("silver", silver, _share(silver, bronze), "accepted, each identity once", f"silver.{name}")
    why = "with the reason; nothing is dropped"
    yield LayerStep("rejected", rejected, _share(rejected, bronze), why, f"rejected.{name}")
    of_children = [gold for gold in declared.pipeline.gold if gold.only_adds]
    for each_of in of_children:
        short = each_of.table.replace(f"{name}__", "")
        yield LayerStep(short, rows.get(each_of.table), None, described_gold(each_of), each_of.table)
    gold = [count for table, count in rows.items() if table.startswith("gold.")]
    total = None if not gold or None in gold else sum(count or 0 for count in gold)
    yield LayerStep("gold", total, None, f"final rows in {len(declared.pipeline.gold) - len(of_children)} tables")


def _share(part_: int | None, whole_: int | None) -> float | None:
    return None if part_ is None or not whole_ else min(part_ / whole_, 1.0)


def _reasons(each: DatasetProgress) -> Iterator[tuple[str, int, float | None, bool]]:
    """Yield reasons of rejection and rules that warned, with records, share of bronze, and whether it is a warning."""
    bronze = each.rows.get("bronze")
    for reason, count in sorted(each.rejected.items(), key=lambda item: (-item[1], item[0])):
        yield reason, count, count / bronze if bronze else None, False
    for rule, count in sorted(each.warned.items()):
        yield rule, count, count / bronze if bronze else None, True


def _gold_line(now: LiveSnapshot, each: DatasetProgress, gold: Gold) -> GoldLine:
    name, publication, found = gold.table, now.published.get(each.dataset), now.watermarks.get(each.dataset)
    complete = moment(found.watermark if found else None) if gold.timed_by else "newest row per key"
    published = publication is not None and name in publication.tables
    wait = next((wait for wait in found.waits if wait.table == name), None) if found else None
    refresh = gold.described_refresh if wait is None else f"on close: {wait.sentence.removeprefix(name).lstrip(': ')}"
    return GoldLine(name, described_gold(gold), each.rows.get(name), complete, published, refresh)


def _derived_part(settings: Settings, now: LiveSnapshot, each: DerivedProgress) -> dict[str, Any]:
    pipeline, publication = _derived(settings, each).pipeline, now.published.get(each.dataset)
    published = publication.tables if publication else {}
    names = [(f"gold.{table.name}", f"derived by {', '.join(table.grain)}") for table in pipeline.gold]
    used = "as of the used batches"
    return {
        "card": derived_card(now, each),
        "sources": [(name, table, each.behind.get(table, 0)) for name, table in pipeline.sources.items()],
        "gold": [GoldLine(name, how, each.rows.get(name), used, name in published) for name, how in names],
    }


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


def _derived(settings: Settings, each: DerivedProgress) -> DerivedDataset:
    with suppress(ReleaseUnknown):
        if each.release is not None:
            return released_derived(settings, each.dataset, each.release)
    return declared_derived(settings, each.dataset)


MOST_SAMPLES = 20
MOST_PAYLOAD = 4_000


@routes.get("/datasets/{name}/rejected")
def rejected(
    request: Request, console: Shared, each: Named, chosen: Chosen, name: str, reason: str | None = None
) -> HTMLResponse:
    """Return rejected records over time, and samples with their payloads. Raises DatasetUnknown, TableUnknown."""
    known, settings = getattr(each, "rejected", {}), console.settings
    return page(
        *(request, "rejected", DATASETS, f"{name}: rejected records"),
        dataset=name,
        reason=reason,
        reasons=sorted(known.items(), key=lambda item: (-item[1], item[0])),
        chart=rejected_chart(console.observer, name, chosen, console.observer.snapshot().at, reason),
        chosen=chosen.name,
        samples=rejected_samples(settings, name, reason),
    )


def rejected_chart(
    observer: LiveObserver, name: str, chosen: TimeRange, at: datetime, reason: str | None = None
) -> BarChart:
    """Return the chart of rejected records over time, of all reasons or of one."""
    intervals = observer.intervals(name, chosen, at)
    counts: list[Mapping[str, float]] = [interval.minute.reasons for interval in intervals]
    title = "Rejected records by reason"
    if reason is not None:
        title, counts = f"Rejected by {reason}", [{reason: each[reason]} for each in counts]
    return bar_chart(title, interval_labels(intervals, chosen), counts, short)


def rejected_samples(settings: Settings, name: str, reason: str | None) -> list[tuple[RejectedRecord, str]]:
    """Return the newest rejected records with their payloads, of one reason if it is given. Raises TableUnknown."""
    chosen, decided = RejectedFilter(reason=reason), decided_records(settings, name)
    found, schemas = (
        rejected_records(pinned(settings), name, chosen, decided, MOST_SAMPLES),
        known_schemas(settings, name),
    )
    return [(record, _payload_text(record, schemas)) for record in found]


def _payload_text(record: RejectedRecord, schemas: WriterSchemas) -> str:
    value = shown_payload(record.payload, schemas)
    if value is None:
        return "(no value)"
    return text_of(value[:MOST_PAYLOAD]) + ("…" if len(value) > MOST_PAYLOAD else "")


RUNS_SHOWN = 50


@routes.get("/datasets/{name}/runs")
def runs(
    request: Request,
    console: Shared,
    each: Named,
    release: str | None = None,
    before: BatchNumber = None,
    after: BatchNumber = None,
) -> HTMLResponse:
    """Return the runs that end before or after a batch; the newest without either. Raises DatasetUnknown.

    The ledger finds them by key: the cost of a page does not depend on how many runs there are.
    """
    ledger, name, chosen = console.observer.ledger, each.dataset, release or each.release
    found, newer, older = [], False, False
    if chosen is not None:
        if after is not None:
            found = ledger.runs_after(name, chosen, after, RUNS_SHOWN)
        else:
            found = ledger.runs_before(name, chosen, before, RUNS_SHOWN)
        newer = bool(found and ledger.runs_after(name, chosen, found[0].last_batch, 1))
        older = bool(found and ledger.runs_before(name, chosen, found[-1].last_batch, 1))
    title = f"{name}: runs"
    return page(*(request, "runs", DATASETS, title), dataset=name, release=chosen, runs=found, newer=newer, older=older)


MOST_VALIDATIONS, MOST_RULES = 12, 12


@routes.get("/datasets/{name}/quality")
def quality(request: Request, console: Shared, each: Named, chosen: Chosen) -> HTMLResponse:
    """Return what rules rejected and warned of over time, and the results of table rules. Raises DatasetUnknown."""
    observer, name = console.observer, each.dataset
    intervals = observer.intervals(name, chosen, observer.snapshot().at)
    stored = stored_validations(console.settings, name, MOST_VALIDATIONS)
    return page(
        *(request, "quality", DATASETS, f"{name}: quality"),
        dataset=name,
        derived=isinstance(each, DerivedProgress),
        chosen=chosen.name,
        records=sum(interval.minute.published for interval in intervals),
        charts=_rule_charts(intervals, chosen),
        validations=stored,
        rules=_rules(stored),
    )


def _rule_charts(intervals: Sequence[Interval], chosen: TimeRange) -> list[tuple[LineChart, int, bool]]:
    """Return for each rule, the most violated first, its share over time, its records, and whether it only warns."""
    found, labels = [], interval_labels(intervals, chosen)
    for kind in ("reasons", "warned"):
        totals: Counter[str] = sum((getattr(each.minute, kind) for each in intervals), Counter())
        for name, count in totals.most_common(MOST_RULES):
            counts = [(getattr(each.minute, kind)[name], each.minute.published) for each in intervals]
            shares = [part_ / whole_ if whole_ else None for part_, whole_ in counts]
            found.append((line_chart(name, labels, shares, percent), count, kind == "warned"))
    return found


def _rules(stored: Sequence[StoredValidation]) -> list[tuple[RuleResult, list[Badge]]]:
    """Return the last result of each table rule, and its outcomes in the last validations, oldest first."""
    by_validation = [{(c.table, c.rule, c.expectation): c for c in each.checks} for each in stored]
    last = by_validation[-1] if by_validation else {}
    return [(check, [_outcome(known.get(key)) for known in by_validation]) for key, check in last.items()]


def _outcome(check: RuleResult | None) -> Badge:
    if check is None:
        return Badge("–", IDLE, "the rule was not evaluated then")
    tone = {"passed": GOOD, "failed": BAD}.get(check.outcome, WARNING)
    return Badge(check.outcome, tone, check.observed)


NAMES_OF_COLUMNS = ("column", *PAIR, *LISTS)
"""Arguments of rules; their values are in a rule's `columns`."""


@routes.get("/datasets/{name}/contract")
def contract(request: Request, console: Shared, each: Named) -> HTMLResponse:
    """Return the contract of the running release, else that of the folder; of a derived dataset, the rules of its
    tables. Raises DatasetUnknown."""
    found, name = described_contract(console.settings, each), each.dataset
    rules = [(found.dataset, rule) for rule in found.rules]
    rules += [(table, rule) for table, declared in found.gold.items() for rule in declared]
    return page(
        *(request, "contract", DATASETS, f"{name}: contract"),
        dataset=name,
        derived=isinstance(each, DerivedProgress),
        release=each.release or "none yet",
        contract=found,
        columns=[_column_cells(column, found) for column in found.all_columns],
        rules=[_rule_cells(table, rule) for table, rule in rules],
    )


def described_contract(settings: Settings, each: AnyProgress) -> Contract:
    """Return the contract as the release declares it, or as the folder does; a derived one has rules of tables only."""
    if isinstance(each, DerivedProgress):
        return as_dataset(_derived(settings, each)).contract
    return described_dataset(settings, each.dataset, each.release).contract


def _column_cells(column: Column, found: Contract) -> Sequence[str]:
    limits = [
        "" if column.minimum is None else f"≥ {column.minimum}",
        "" if column.maximum is None else f"≤ {column.maximum}",
        "" if column.pattern is None else f"matches {column.pattern}",
        f"one of {', '.join(column.values)}" if column.values else "",
    ]
    role = "identity" if column.name in found.identity else ""
    return (
        column.name,
        column.type_text,
        "required" if column.required or column.absent_in else "",
        role,
        "; ".join(filter(None, limits)),
    )


def _rule_cells(table: str, rule: Rule) -> Sequence[str]:
    written = {key: value for key, value in rule.written.items() if key not in NAMES_OF_COLUMNS}
    details = ", ".join(f"{key}: {json.dumps(value, default=str)}" for key, value in written.items())
    return table, rule.name, rule.action, rule.severity, rule.expectation, ", ".join(rule.columns), details
