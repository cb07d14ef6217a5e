"""One line for each workload: what it declares, how much it has computed, and what equals its oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from workloads.analyses import AnalysisResult
from workloads.outcome import WorkloadResult
from workloads.registry import DERIVED

NO_TOPIC = "no topic"
"""Why a derived dataset is not replayed."""
NOT_SENT = "sent before"
"""Why the latency from a record to a derived dataset was not measured."""


def print_results(console: Console, results: list[WorkloadResult]) -> None:
    """Print the table, and what its short texts mean."""
    columns = ("dataset", "lines", "events", "rows", "stream", "batch", "replay", "orders", "p95 s")
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for number in (1, 2, 3, 8):
        table.columns[number].justify = "right"
    for each in results:
        rows = sum(map(len, each.tables.values()))
        counts = f"{each.declared_lines}", f"{each.events:,}", f"{rows:,}"
        table.add_row(each.name, *counts, *_verdicts(each), _p95(each))
    console.print(table)
    if analyses := [each for result in results for each in result.analyses]:
        console.print(_analyses(analyses))
    for line in _notes(results):
        console.print(line, highlight=False, soft_wrap=True)


def _analyses(results: Sequence[AnalysisResult]) -> Table:
    table = Table("analysis", "algorithm", "rows", "oracle", "figures", box=None, header_style="bold", pad_edge=False)
    for each in results:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in each.figures.items())
        table.add_row(each.name, each.algorithm, f"{each.rows:,}", _verdict(each.differing), figures)
    return table


def _verdicts(result: WorkloadResult) -> tuple[str, str, str, str]:
    """Return the cells of stream, batch, replay and orders: equal, the number of rows that differ, or - (not run)."""
    replay = NO_TOPIC if result.name in DERIVED else _verdict(result.replay)
    equal, count = result.orders or (0, 0)
    orders = f"{equal} of {count}" if count else "-"
    wrong = sum(result.differing.values())
    return _verdict(wrong), _verdict(result.batch), replay, f"[red]{orders}[/]" if equal < count else orders


def _verdict(differing: int | None) -> str:
    if differing is None:
        return "-"
    return f"[red]{differing:,} rows[/]" if differing else "equal"


def _p95(result: WorkloadResult) -> str:
    return NOT_SENT if result.freshness is None else f"{result.freshness:.1f}"


def _notes(results: list[WorkloadResult]) -> list[str]:
    """Return the meaning of texts that the table has."""
    derived = [each for each in results if each.name in DERIVED]
    sources = [each for each in results if each.name not in DERIVED]
    is_partial = any(each.orders is None for each in results) or any(each.replay is None for each in sources)
    notes = ["-: not run; --replay --permutations 10 runs it"] if is_partial else []
    if derived:
        notes += [f"{NO_TOPIC}: a derived dataset reads published tables, so a replay of its sources reaches it"]
    if any(each.freshness is None for each in results):
        notes += [f"{NOT_SENT}: records of an earlier run waited for the dataset to be started"]
    notes += [f"{each.name}: no batch, {each.audit.unchecked[0].reason}" for each in derived if each.batch is None]
    return notes + [
        f"{each.name}: audit with {len(each.audit.findings)} findings" for each in results if each.audit.findings
    ]


def json_row(result: WorkloadResult) -> dict[str, Any]:
    """Return a line of the table as JSON values; null: not checked."""
    equal, count = result.orders or (None, None)
    return {
        "dataset": result.name,
        "derived_from": list(DERIVED[result.name].sources) if result.name in DERIVED else [],
        "declared_lines": result.declared_lines,
        "events": result.events,
        "gold_rows": {table: len(rows) for table, rows in result.tables.items()},
        "differing_rows": {
            "stream": sum(result.differing.values()),
            "batch": result.batch,
            "replay": result.replay,
        },
        "orders": {"equal": equal, "sent": count},
        "p95_seconds": result.freshness,
        "audit_findings": len(result.audit.findings),
        "analyses": [asdict(each) for each in result.analyses],
    }
