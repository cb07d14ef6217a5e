"""A comparison in the terminal: what `headrace plan show`, `plan compare` and the demo print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.cli.checks_table import checks_table

if TYPE_CHECKING:
    from include.change.comparison_view import TableView
    from include.plans.comparison import Comparison


MOST_DIFFERENCES = 3


def show_comparison(console: Console, comparison: Comparison, *, details: bool = False) -> None:
    """Print the verdict, the tables, and the differences that matter most; with `details` all of them."""
    from include.change.comparison_view import comparison_view

    view = comparison_view(comparison)
    console.print(f"[bold]{view.verdict}[/], {view.summary}", highlight=False)
    counts = ("rows before", "rows after", "added", "missing", "changed")
    table = Table(box=None, header_style="bold", collapse_padding=True, pad_edge=False)
    table.add_column("table", no_wrap=True)
    table.add_column("difference", overflow="fold")
    for count in counts:
        table.add_column(count, justify="right", no_wrap=True)
    for t in view.tables:
        numbers = (f"{number:,}" for number in (t.old_rows, t.new_rows, t.added, t.missing, t.changed))
        table.add_row(Text(t.name), Text(t.difference, "green" if t.is_equal else ""), *numbers)
    console.print(table)
    _show_differences(console, view.tables, details=details)
    if view.checks:
        console.print(checks_table(comparison.checks))
    for line in view.dependants:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _show_differences(console: Console, tables: Sequence[TableView], *, details: bool) -> None:
    found = [each for table in tables for each in table.details]
    shown = found if details else sorted(found, key=lambda each: -each[0])[:MOST_DIFFERENCES]
    for _, line in shown:
        fitting = line if details else _shortened(line, console.width - 2)
        console.print(f"  {fitting}", highlight=False, markup=False, soft_wrap=True)
    if more := len(found) - len(shown):
        differences = "difference" if more == 1 else "differences"
        console.print(f"  {more} more {differences}: headrace plan show ID --details, or the page", highlight=False)


def _shortened(line: str, width: int) -> str:
    """Return a line that fits the terminal."""
    return line if len(line) <= width else f"{line[: width - 1]}…"
