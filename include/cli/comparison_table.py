"""A comparison in the terminal: what `headrace plan show`, `plan compare` and the demo print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from include.cli.checks_table import checks_table


def show_comparison(console: Console, found: Mapping[str, Any], *, samples: bool = True) -> None:
    """Print a comparison, table by table; with `samples` also sums that moved and the first keys that changed."""
    table = Table(
        "table", "", "rows before", "rows after", "added", "missing", "changed", box=None, header_style="bold"
    )
    table.columns[0].no_wrap = True
    for column in table.columns[2:]:
        column.justify = "right"
    for t in found["tables"]:
        mark = "[green]equal[/]" if t["equal"] else t["presence"] if t["presence"] != "both" else f"{t['share']:.2%}"
        counts = (f"{t[name]:,}" for name in ("old_rows", "new_rows", "added", "missing", "changed"))
        table.add_row(t["name"], mark, *counts)
    console.print(table)
    for t in found["tables"] if samples else ():
        _show_moved(console, t)
    if found.get("checks"):
        console.print(checks_table(found["checks"]))
    console.print(f"[bold]{found['verdict']}[/], both at bronze batch {found['batch']}", highlight=False)


def _show_moved(console: Console, table: Mapping[str, Any]) -> None:
    """Print the sums that moved and the first key that changed."""
    for d in table["drift"]:
        if d["old_sum"] != d["new_sum"]:
            line = f"  {table['name']}.{d['column']}: sum {_number(d['old_sum'])} → {_number(d['new_sum'])}"
            console.print(line, highlight=False, markup=False)
    for kind, samples in table["samples"].items():
        for sample in samples[:1]:
            key = ", ".join(f"{name}={value}" for name, value in sample["key"].items())
            console.print(f"  {table['name']}, first {kind}: {key}", highlight=False, markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:,.10g}"
