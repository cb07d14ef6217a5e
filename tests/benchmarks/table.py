"""Renders the result of a benchmark as tables: medians with their spread, goals, the ratio to a baseline, systems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from benchmarks.goals import goal_of, is_met
from benchmarks.machine import Machine
from benchmarks.result import PLATFORM, BenchResult, invalid_runs
from benchmarks.spread import (
    Key,
    Ratio,
    Spread,
    compared,
    differing_conditions,
    is_higher_better,
    only_in_one,
    spreads,
    systems,
)

BUSY = 0.5
COLOURS = {"better": "green", "worse": "bold red", "same": "dim", "other": "dim", "one run": "yellow"}
SIDE_BY_SIDE = {"all": "CPU s/M", "JVM": "JVM", "Python": "Python", "broker": "broker"}
"""CPU figures that are compared between systems, with their heading."""
RATE = "events/s"


def as_text(result: BenchResult, baseline: BenchResult | None = None) -> RenderableType:
    """Return the result as tables and lines of markup, with the ratio to a baseline if one is given."""
    found = spreads(result.measurements)
    ratios = {(each.key, each.figure): each for each in compared(result, baseline)} if baseline else {}
    parts: list[RenderableType] = [machine_line(result.machine)]
    parts += [figures_table(key, figures, ratios) for key, figures in found.items() if key[3] == PLATFORM]
    if len(systems(result.measurements)) > 1:
        parts += systems_tables(found)
    if baseline is not None:
        parts += [escape(f"other than in the baseline: {line}") for line in differing_conditions(result, baseline)]
        parts += [escape(line) for line in only_in_one(result, baseline)]
    parts += [f"[bold red]INVALID[/] {escape(line)}" for line in invalid_runs(result.measurements)]
    return Group(*parts, f"command: {escape(result.command)}")


def machine_line(m: Machine) -> str:
    """Return the machine as a sentence, with a warning if it was busy before the start."""
    busy = " [bold yellow](the machine is busy)[/]" if m.load > BUSY else ""
    return f"measured on {escape(machine_facts(m))}{busy}"


def machine_facts(m: Machine) -> str:
    """Return machine, versions, settings and load in one line."""
    given = "".join(f", {name}={value}" for name, value in m.settings.items())
    packages = "".join(f", {name} {version}" for name, version in m.packages.items())
    facts = f"{m.cores} cores, {m.memory_gib:g} GiB, {m.system}, Java {m.java}, Python {m.python}"
    return f"{facts}{packages}{given}, load {m.load} before the start"


def figures_table(key: Key, figures: Mapping[str, Spread], ratios: Mapping[tuple[Key, str], Ratio]) -> Table:
    """Return all figures of one mode and setting."""
    dataset, mode, setting, _ = key
    table = _table(f"{dataset} {mode}, {setting}", "median", "lowest", "highest", "goal", "")
    if ratios:
        table.add_column("to the baseline", justify="right")
    for name, spread in figures.items():
        goal = goal_of(key, name)
        row = [escape(name), f"[bold]{shown(spread.median)}[/]", shown(spread.low), shown(spread.high)]
        row += ["", ""] if goal is None else [bound(name, goal), _verdict(is_met(name, spread.median, goal))]
        table.add_row(*row, *([_ratio(ratios.get((key, name)))] if ratios else []))
    return table


def systems_tables(found: Mapping[Key, Mapping[str, Spread]]) -> Iterator[Table]:
    """Yield for each mode that several systems were measured in a table of them, side by side."""
    for mode in dict.fromkeys(key[:3] for key in found):
        measured = {key[3]: figures for key, figures in found.items() if key[:3] == mode}
        if len(measured) > 1:
            yield _side_by_side(f"{mode[0]} {mode[1]}, {mode[2]}", measured)


def _side_by_side(title: str, measured: Mapping[str, Mapping[str, Spread]]) -> Table:
    table = _table(title, RATE, "lowest–highest", *SIDE_BY_SIDE.values(), f"× its {RATE}")
    ours = measured.get(PLATFORM, {}).get(RATE)
    for system, figures in measured.items():
        rate = figures.get(RATE)
        cells = [f"[bold]{shown(rate.median)}[/]", f"{shown(rate.low)}–{shown(rate.high)}"] if rate else ["", ""]
        cpu = [figures.get(f"CPU s/M, {role}") for role in SIDE_BY_SIDE]
        table.add_row(escape(system), *cells, *(shown(each.median) if each else "" for each in cpu), times(ours, rate))
    return table


def times(ours: Spread | None, theirs: Spread | None) -> str:
    """Return the platform's median as a multiple of another system's; "" when one is not known."""
    return f"{ours.median / theirs.median:.2f}" if ours and theirs and theirs.median else ""


def shown(value: float) -> str:
    """Return a figure with three digits that matter."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bound(name: str, goal: float) -> str:
    """Return a goal as text."""
    return f"{'≥' if is_higher_better(name) else '≤'} {shown(goal)}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    bounds = f"{ratio.low:.2f}–{ratio.high:.2f}"
    return f"× {ratio.ratio:.2f} ({bounds}) [{COLOURS[ratio.verdict]}]{ratio.verdict}[/]"


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=SIMPLE_HEAD, pad_edge=False)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _verdict(met: bool) -> str:
    return "[green]met[/]" if met else "[bold red]missed[/]"
