"""The overview: every stream with its figures over time, health, open plans and last audit; every process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from include.audit.run import AuditOutcome
from include.observe.progress import DatasetProgress, DerivedProgress
from include.observe.stream_history import Interval
from include.plans.plan import PlanRecord
from include.serve.charts import (
    BAD,
    GOOD,
    IDLE,
    WARNING,
    Badge,
    LineChart,
    duration,
    line_chart,
    moment,
    percent,
    short,
    whole,
)
from include.serve.observer import LiveObserver, LiveSnapshot, TimeRange
from include.serve.pages import Chosen, Shared, events, page, part, refuse_many
from include.state.process_states import ProcessState, ProcessStatus

TONES = {
    ProcessState.RUNNING: GOOD,
    ProcessState.STARTING: WARNING,
    ProcessState.WAITING: WARNING,
    ProcessState.DRAINING: WARNING,
    ProcessState.PENDING: WARNING,
    ProcessState.ASLEEP: IDLE,
    ProcessState.STOPPED: IDLE,
}
AnyProgress = DatasetProgress | DerivedProgress
routes = APIRouter()


@routes.get("/")
def overview(request: Request, console: Shared, chosen: Chosen) -> HTMLResponse:
    """Return the overview of all streams."""
    shown, live = overview_part(console.observer, chosen), f"/live/overview?range={chosen.name}"
    return page(request, "overview", "Overview", "Overview", live=live, chosen=chosen.name, **shown)


@routes.get("/live/overview", response_class=EventSourceResponse, dependencies=[Depends(refuse_many)])
async def live_overview(request: Request, console: Shared, chosen: Chosen) -> AsyncIterator[ServerSentEvent]:
    """Stream the overview."""
    async for event in events(request, lambda: part("overview", **overview_part(console.observer, chosen))):
        yield event


@dataclass(frozen=True)
class StreamCard:
    """One dataset: `facts` are label and value, `charts` its figures over time (none of a derived dataset)."""

    dataset: str
    badges: Sequence[Badge]
    facts: Sequence[tuple[str, str]]
    charts: Sequence[LineChart]
    plans: Sequence[PlanRecord]
    audit: Badge


def overview_part(observer: LiveObserver, chosen: TimeRange) -> dict[str, Any]:
    """Return what the overview shows; `unused` datasets have neither records nor a requested stream."""
    now = observer.snapshot()
    cards = [stream_card(observer, now, each, chosen) for each in now.progress.datasets if _is_used(each, now)]
    cards += [derived_card(now, each) for each in now.progress.derived if each.run is not None or each.process.pid]
    shown = {card.dataset for card in cards}
    declared: list[AnyProgress] = [*now.progress.datasets, *now.progress.derived]
    return {
        "now": now,
        "cards": cards,
        "unused": [each.dataset for each in declared if each.dataset not in shown],
        "processes": [(each, process_badge(each)) for each in now.progress.processes if _is_shown(each)],
    }


def _is_used(each: DatasetProgress, now: LiveSnapshot) -> bool:
    return bool(each.process.pid or each.dataset in now.published or each.process.state is not ProcessState.STOPPED)


def _is_shown(process: ProcessStatus) -> bool:
    return process.state is not ProcessState.STOPPED or not process.name.startswith("stream:")


def stream_card(observer: LiveObserver, now: LiveSnapshot, each: DatasetProgress, chosen: TimeRange) -> StreamCard:
    """Return the card of a dataset that has a topic."""
    charts = _stream_charts(observer.intervals(each.dataset, chosen, now.at), chosen)
    return _card(now, each, _health_badges(now, each), _stream_facts(now, each), charts)


def derived_card(now: LiveSnapshot, each: DerivedProgress) -> StreamCard:
    """Return the card of a derived dataset."""
    behind = ", ".join(f"{source}: {whole(n) if n is not None else 'all'}" for source, n in each.behind.items())
    facts = [
        ("run", whole(each.run)),
        ("batches of its sources not used yet", behind or "none"),
        *((f"rows of {table}", whole(rows)) for table, rows in each.rows.items()),
    ]
    badges = [process_badge(each.process), *([Badge("folder differs", WARNING)] if each.folder_differs else [])]
    return _card(now, each, badges, facts, ())


def _card(
    now: LiveSnapshot,
    each: AnyProgress,
    badges: Sequence[Badge],
    facts: Sequence[tuple[str, str]],
    charts: Sequence[LineChart],
) -> StreamCard:
    plans = [record for record in now.plans if each.dataset in record.plan.datasets]
    return StreamCard(each.dataset, badges, facts, charts, plans, _audit_badge(now.audits.get(each.dataset), now.at))


def _health_badges(now: LiveSnapshot, each: DatasetProgress) -> list[Badge]:
    found = [process_badge(each.process)]
    promised, behind = now.latencies.get(each.dataset), each.lag.seconds
    if promised is not None and behind is not None and behind > promised:
        found.append(Badge("late", BAD, f"{duration(behind)} behind; its contract promises {duration(promised)}"))
    if each.lag.uncommitted:
        found.append(Badge("open transaction", WARNING, f"{whole(each.lag.uncommitted)} offsets cannot be read yet"))
    if each.folder_differs:
        found.append(Badge("folder differs", WARNING, "the dataset's folder is not the release that runs"))
    if each.reported.event:
        found.append(Badge("note", WARNING, each.reported.event))
    return found


def _stream_facts(now: LiveSnapshot, each: DatasetProgress) -> list[tuple[str, str]]:
    rejected, silver = each.rows.get("rejected"), each.rows.get("silver")
    total = None if rejected is None or silver is None else rejected + silver
    watermark = now.watermarks.get(each.dataset)
    holder = watermark.holder if watermark else None
    return [
        ("not published yet", f"{whole(each.lag.offsets)} records"),
        ("oldest of them", duration(each.lag.seconds)),
        ("complete up to", moment(watermark.watermark if watermark else None)),
        ("held by", f"partition {holder.partition}, {holder.state}" if holder else whole(None)),
        ("published batch", whole(each.batches.published)),
        ("in silver", whole(silver)),
        ("rejected", f"{whole(rejected)} ({percent(rejected / total if total and rejected is not None else 0.0)})"),
    ]


def _stream_charts(intervals: Sequence[Interval], chosen: TimeRange) -> list[LineChart]:
    labels = interval_labels(intervals, chosen)
    rates: list[float | None] = [each.minute.published / each.seconds for each in intervals]
    return [
        line_chart("Records published, per second", labels, rates, short),
        line_chart("Lag when published", labels, [each.lag_seconds for each in intervals], duration),
        line_chart("Age of the newest record", labels, [each.freshness_seconds for each in intervals], duration),
    ]


def interval_labels(intervals: Sequence[Interval], chosen: TimeRange) -> list[str]:
    """Return the label of each interval, its begin."""
    return [f"{each.since:{chosen.label_format}}" for each in intervals]


def _audit_badge(found: AuditOutcome | None, now: datetime) -> Badge:
    if found is None:
        return Badge("not audited yet", IDLE, "headrace audit counts every record from outside")
    age = f"{duration(max((now - found.at).total_seconds(), 0.0))} ago, batch {whole(found.batch)}"
    if found.findings:
        return Badge(f"not balanced, {age}", BAD, found.first)
    if found.unchecked:
        return Badge(f"not fully audited, {age}", WARNING, found.first)
    if found.standing:
        return Badge(f"balanced, not complete, {age}", WARNING, found.standing)
    return Badge(f"balanced, {age}", GOOD)


def process_badge(process: ProcessStatus) -> Badge:
    """Return a process's state."""
    return Badge(process.state.label, TONES.get(process.state, BAD), process.detail or process.state.meaning)
