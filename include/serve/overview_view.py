"""The overview: every stream with its figures over time, health, open plans and last audit; every process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from include.audit.run import AuditOutcome
from include.observe.progress import DatasetProgress, DerivedProgress
from include.observe.stream_history import Interval
from include.observe.watermark import WatermarkStatus
from include.plans.plan import PlanRecord
from include.serve.chart_shapes import LineChart, line_chart
from include.serve.display_values import UNKNOWN, duration, moment, percent, short, whole
from include.serve.live_observer import LiveObserver, LiveSnapshot, TimeRange
from include.state.process_states import ProcessState, ProcessStatus

GOOD, WARNING, BAD, IDLE = "good", "warning", "bad", "idle"
TONES = {
    ProcessState.RUNNING: GOOD,
    ProcessState.STARTING: WARNING,
    ProcessState.WAITING: WARNING,
    ProcessState.DRAINING: WARNING,
    ProcessState.PENDING: WARNING,
    ProcessState.STOPPED: IDLE,
}


@dataclass(frozen=True)
class Badge:
    """A short text with a tone (good, warning, bad, idle) and the reason behind it."""

    text: str
    tone: str
    why: str = ""


@dataclass(frozen=True)
class StreamCard:
    """One dataset: `facts` are label and value, `charts` its figures over time (none of a derived dataset)."""

    dataset: str
    badges: Sequence[Badge]
    facts: Sequence[tuple[str, str]]
    charts: Sequence[LineChart]
    plans: Sequence[tuple[str, str]]
    audit: Badge


@dataclass(frozen=True)
class ProcessRow:
    """One process of the state folder."""

    name: str
    badge: Badge
    pid: str
    restarts: str
    detail: str


@dataclass(frozen=True)
class OverviewView:
    """All that the overview shows."""

    at: str
    streams: Sequence[StreamCard]
    unused: Sequence[str]
    """Datasets that have neither records nor a requested stream."""
    processes: Sequence[ProcessRow]
    notes: Sequence[str]


def overview_view(observer: LiveObserver, chosen: TimeRange) -> OverviewView:
    """Return the overview as it is now."""
    now = observer.snapshot()
    used = [each for each in now.progress.datasets if is_used(each, now)]
    derived = [each for each in now.progress.derived if each.run is not None or each.process.pid]
    cards = [stream_card(observer, now, each, chosen) for each in used]
    cards += [derived_card(now, each) for each in derived]
    shown = {card.dataset for card in cards}
    names = [*(each.dataset for each in now.progress.datasets), *(each.dataset for each in now.progress.derived)]
    return OverviewView(
        at=moment(now.at),
        streams=cards,
        unused=[name for name in names if name not in shown],
        processes=[process_row(each) for each in now.progress.processes if _is_shown(each)],
        notes=now.notes,
    )


def is_used(each: DatasetProgress, now: LiveSnapshot) -> bool:
    """Whether a dataset has a stream, records or a publication."""
    return bool(each.process.pid or each.dataset in now.published or each.process.state is not ProcessState.STOPPED)


def stream_card(observer: LiveObserver, now: LiveSnapshot, each: DatasetProgress, chosen: TimeRange) -> StreamCard:
    """Return the card of a dataset that has a topic."""
    return StreamCard(
        dataset=each.dataset,
        badges=health_badges(now, each),
        facts=stream_facts(now, each),
        charts=stream_charts(observer.intervals(each.dataset, chosen, now.at), chosen),
        plans=plan_links(now.plans, each.dataset),
        audit=audit_badge(now.audits.get(each.dataset), now.at),
    )


def derived_card(now: LiveSnapshot, each: DerivedProgress) -> StreamCard:
    """Return the card of a derived dataset."""
    behind = ", ".join(f"{source}: {whole(n) if n is not None else 'all'}" for source, n in each.behind.items())
    facts = [
        ("run", whole(each.run)),
        ("batches of its sources not used yet", behind or "none"),
        *((f"rows of {table}", whole(rows)) for table, rows in each.rows.items()),
    ]
    badges = [process_badge(each.process), *([Badge("folder differs", WARNING)] if each.folder_differs else [])]
    audit = audit_badge(now.audits.get(each.dataset), now.at)
    return StreamCard(each.dataset, badges, facts, (), plan_links(now.plans, each.dataset), audit)


def health_badges(now: LiveSnapshot, each: DatasetProgress) -> list[Badge]:
    """Return the state of a stream, and what is wrong with it."""
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


def stream_facts(now: LiveSnapshot, each: DatasetProgress) -> list[tuple[str, str]]:
    """Return what is true of a stream now, as labels and values."""
    rejected, silver = each.rows.get("rejected"), each.rows.get("silver")
    total = None if rejected is None or silver is None else rejected + silver
    watermark = now.watermarks.get(each.dataset)
    return [
        ("not published yet", f"{whole(each.lag.offsets)} records"),
        ("oldest of them", duration(each.lag.seconds)),
        ("complete up to", moment(watermark.watermark if watermark else None)),
        ("held by", held_by(watermark)),
        ("published batch", whole(each.batches.published)),
        ("in silver", whole(silver)),
        ("rejected", f"{whole(rejected)} ({percent(rejected / total if total and rejected is not None else 0.0)})"),
    ]


def held_by(found: WatermarkStatus | None) -> str:
    """Return which partition holds the watermark, in a few words."""
    holder = found.holder if found else None
    return UNKNOWN if holder is None else f"partition {holder.partition}, {holder.state}"


def stream_charts(intervals: Sequence[Interval], chosen: TimeRange) -> list[LineChart]:
    """Return rate, lag and freshness over time."""
    labels = [f"{each.since:{chosen.label_format}}" for each in intervals]
    rates: list[float | None] = [each.minute.published / each.seconds for each in intervals]
    return [
        line_chart("Records published, per second", labels, rates, short),
        line_chart("Lag when published", labels, [each.lag_seconds for each in intervals], duration),
        line_chart("Age of the newest record", labels, [each.freshness_seconds for each in intervals], duration),
    ]


def plan_links(plans: Sequence[PlanRecord], dataset: str) -> list[tuple[str, str]]:
    """Return id and stage of each open plan of a dataset."""
    return [(record.plan.id, record.stage.value) for record in plans if dataset in record.plan.datasets]


def audit_badge(found: AuditOutcome | None, now: datetime) -> Badge:
    """Return the outcome of the last audit, with its age."""
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


def process_row(process: ProcessStatus) -> ProcessRow:
    """Return a process as a row of the table."""
    detail = process.detail or process.last_error
    restarts = str(process.restarts) if process.restarts else ""
    return ProcessRow(process.name, process_badge(process), str(process.pid or ""), restarts, detail)


def _is_shown(process: ProcessStatus) -> bool:
    return process.state is not ProcessState.STOPPED or not process.name.startswith("stream:")
