"""A comparison in the terminal: what `headrace plan show`, `plan compare` and the demo print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.cli.checks_table import checks_table

if TYPE_CHECKING:
    from include.planning.comparison_view import TableView
    from include.plans.comparison import Comparison


def show_comparison(console: Console, comparison: Comparison, *, details: bool = True) -> None:
    """Print a comparison, table by table; with `details` also changed columns, sums and the first keys that differ."""
    from include.planning.comparison_view import comparison_view

    view = comparison_view(comparison)
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
    for t in view.tables if details else ():
        for line in _details(t):
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    if view.checks:
        console.print(checks_table(comparison.checks))
    for line in view.dependants:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"[bold]{view.verdict}[/], {view.summary}", highlight=False)


def _details(table: TableView) -> list[str]:
    columns = [f"{table.name}.{column}: {change}" for column, change in table.columns]
    by_column: dict[str, list[str]] = {}
    for s in table.statistics:
        by_column.setdefault(s.column, []).append(f"{s.statistic} {s.before} → {s.after}")
    statistics = [f"{table.name}.{column}: {'; '.join(found)}" for column, found in by_column.items()]
    samples = [f"{table.name}, first {group.kind}: {group.samples[0].key}" for group in table.samples if group.samples]
    return [*columns, *statistics, *samples]
