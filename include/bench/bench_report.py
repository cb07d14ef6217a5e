"""Renders a benchmark as tables of figures and targets, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from include.bench.bench_changes import ChangeFigures
from include.bench.bench_latency import Latency
from include.bench.bench_machine import Machine
from include.bench.bench_throughput import Throughput, WarmUp
from include.reading.plain_values import iso_time

TARGET_EVENTS_PER_SECOND = 80_000
TARGET_P95_SECONDS = 3.0
# The latency target applies to this rate.
TARGET_RATE = 2_000
BUSY = 0.5
# Of changing history: times the live rate, times the p95 without a rebuild, seconds of a read, seconds of planning.
TARGET_REBUILD, TARGET_REBUILDING, TARGET_MOVE, TARGET_PLAN = 3.0, 2.0, 1.0, 3.0


@dataclass(frozen=True)
class Report:
    """All of a benchmark; a part that was not requested is None. `balanced`: the audit of the measured records."""

    command: str
    machine: Machine
    at: datetime
    warm_up: WarmUp
    throughput: Throughput | None
    latency: Latency | None
    balanced: bool
    changing: ChangeFigures | None = None


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values, with each target and whether it was met."""
    values = asdict(report) | {"at": iso_time(report.at), "targets": {}}
    values["warm_up"]["events_per_second"] = report.warm_up.events_per_second
    if report.throughput is not None:
        figure = report.throughput.events_per_second
        values["throughput"]["events_per_second"] = figure
        values["targets"]["events_per_second"] = _target(TARGET_EVENTS_PER_SECOND, figure >= TARGET_EVENTS_PER_SECOND)
    if report.latency is not None and report.latency.rate == TARGET_RATE:
        met = report.latency.quantiles["p95"] <= TARGET_P95_SECONDS
        values["targets"]["p95_seconds"] = _target(TARGET_P95_SECONDS, met)
    return values


def _target(target: float, met: bool) -> dict[str, float | bool]:
    return {"target": target, "met": met}


def as_text(report: Report) -> RenderableType:
    """Return the report as tables and lines of markup."""
    parts: list[RenderableType] = [machine_line(report)]
    if report.throughput is not None:
        parts += [throughput_table(report.throughput, report.warm_up), costs_table(report.throughput)]
    if report.latency is not None:
        parts.append(latency_table(report.latency))
    if report.changing is not None and report.throughput is not None:
        parts.append(changing_table(report.changing, report.throughput))
    audit = "[green]balanced[/]" if report.balanced else "[bold red]NOT BALANCED: the figures are invalid[/]"
    return Group(*parts, f"audit of all that was sent: {audit}", f"command: {escape(report.command)}")


def machine_line(report: Report) -> str:
    """Return the machine as a sentence, with a warning if it was busy before the start."""
    m = report.machine
    given = "".join(f", {name}={value}" for name, value in m.settings.items())
    facts = f"{m.cores} cores, {m.memory_gib:g} GiB, {m.system}, Java {m.java}, Spark {m.spark}, Python {m.python}"
    busy = f" [bold yellow](the machine is busy: load {m.load})[/]" if m.load > BUSY else f", load {m.load}"
    return f"measured on {escape(facts)}{escape(given)}{busy}"


def throughput_table(t: Throughput, warm: WarmUp) -> Table:
    """Return the throughput with its target, and related rates."""
    table = _table("topic to gold, driver warm", "events/s", "target", "")
    met = t.events_per_second >= TARGET_EVENTS_PER_SECOND
    preload = t.preload.events / t.preload.seconds
    table.add_row(
        f"{t.events:,} events in {t.seconds:.1f} s",
        f"[bold]{t.events_per_second:,.0f}[/]",
        f"≥ {TARGET_EVENTS_PER_SECOND:,}",
        _verdict(met),
    )
    table.add_row(f"all in bronze after {t.ingest_seconds:.1f} s", f"{t.events / t.ingest_seconds:,.0f}", "", "")
    table.add_row(f"producer alone, {t.preload.events:,} events", f"{preload:,.0f}", "", "")
    table.add_row(f"warm-up, {warm.events:,} events, producer running", f"{warm.events_per_second:,.0f}", "", "")
    return table


def costs_table(t: Throughput) -> Table:
    """Return CPU seconds per million events by process, and wall seconds per million rows by step of refine."""
    both = Table.grid(padding=(0, 4))
    cpu = _table("CPU s per million events", "")
    for role, seconds in sorted(t.cpu.items(), key=lambda item: -item[1]):
        cpu.add_row(role, f"{seconds:.2f}")
    cpu.add_row("[bold]all but the producer[/]", f"[bold]{sum(t.cpu.values()):.2f}[/]")
    cpu.add_row("producer, beforehand", f"{1e6 * t.preload.cpu_seconds / t.preload.events:.2f}")
    steps = _table("s per million rows, by step", "")
    for name, seconds in t.steps.items():
        steps.add_row(escape(name), f"{seconds:.2f}")
    steps.add_row(f"[dim]{t.runs_seen} runs observed, {t.rows_seen:,} rows[/]", "")
    both.add_row(cpu, steps)
    return both


def latency_table(latency: Latency) -> Table:
    """Return the quantiles; p95 with its target if the rate is the target's."""
    table = _table(f"Kafka timestamp to gold, {latency.rate:,.0f} events/s", "seconds", "target", "")
    for name, seconds in latency.quantiles.items():
        has_target = name == "p95" and latency.rate == TARGET_RATE
        target = f"≤ {TARGET_P95_SECONDS:g}" if has_target else ""
        table.add_row(name, f"{seconds:.2f}", target, _verdict(seconds <= TARGET_P95_SECONDS) if has_target else "")
    lines: Mapping[str, str] = {
        f"{latency.records:,} records in {latency.publications} publications": "",
        "producer behind its schedule at worst": f"{latency.behind:.2f}",
    }
    for name, value in lines.items():
        table.add_row(f"[dim]{name}[/]", value, "", "")
    return table


def changing_table(c: ChangeFigures, live: Throughput) -> Table:
    """Return the figures of changing history with their targets."""
    table = _table("changing history, stream running", "", "target", "")

    def row(name: str, shown: str, target: str = "", met: bool | None = None) -> None:
        table.add_row(name, shown, target, "" if met is None else _verdict(met))

    ratio = c.rebuild.rate / live.events_per_second
    row(f"rebuild of {c.rebuild.records:,} records, {c.rebuild.rate:,.0f}/s: times the live rate", f"{ratio:.2f}",
        f"≥ {TARGET_REBUILD:g}", ratio >= TARGET_REBUILD)  # fmt: skip
    row("  command to done, with its job's start, s", f"{c.rebuild.seconds:.1f}")
    row(
        "  planning it, s", f"{c.rebuild.plan_seconds:.2f}", f"≤ {TARGET_PLAN:g}", c.rebuild.plan_seconds <= TARGET_PLAN
    )
    quiet, rebuilding = c.quiet.quantiles["p95"], c.rebuilding.quantiles["p95"]
    row(f"p95 at {c.quiet.rate:,.0f} events/s, s", f"{quiet:.2f}")
    row(f"  with {c.rebuilds} rebuilds meanwhile: times that", f"{rebuilding / quiet:.2f}",
        f"≤ {TARGET_REBUILDING:g}", rebuilding <= TARGET_REBUILDING * quiet)  # fmt: skip
    for move in c.moves:
        row(f"{move.name}: longest of {move.reads} reads meanwhile, s", f"{move.longest_read:.2f}",
            f"≤ {TARGET_MOVE:g}", move.longest_read <= TARGET_MOVE)  # fmt: skip
        row("  command to done, s", f"{move.seconds:.1f}")
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=SIMPLE_HEAD, pad_edge=False)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _verdict(met: bool) -> str:
    return "[green]met[/]" if met else "[bold red]missed[/]"
