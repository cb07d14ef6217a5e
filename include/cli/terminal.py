"""What commands share: option values, usage errors that name the value, and tables as they are printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from include.ground import strict_values
from include.ground.strict_values import MAX_OFFSET, MAX_PARTITION

Value = TypeVar("Value")


def parser_of(parse: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return `parse` as a Typer parser: its ValueError becomes typer.BadParameter with the same text."""

    def parsed(given: Any) -> Value:
        try:
            return parse(given)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


utc_time = parser_of(strict_values.utc_time)
share = parser_of(strict_values.share)
output_file = parser_of(strict_values.output_file)
sample_file = parser_of(strict_values.sample_file)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Partition = Annotated[int, typer.Argument(min=0, max=MAX_PARTITION)]
Offset = Annotated[int, typer.Argument(min=0, max=MAX_OFFSET)]


WIDE = 4_000
Cell = Text | str | float | None


def wide_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or so wide that nothing is cut or wrapped when the output is a file."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDE, highlight=False)


def line_console(*, stderr: bool = False, markup: bool = False) -> Console:
    """Return a console for lines, which a terminal wraps between words. Without markup all is shown as it is."""
    console = Console(stderr=stderr, highlight=False, markup=markup)
    console.soft_wrap = not console.is_terminal
    return console


def print_json(values: Any, indent: int | None = 1) -> None:
    """Print values as JSON: records as objects, times in ISO 8601. Without indentation it is one line."""
    typer.echo(json.dumps(values, indent=indent, ensure_ascii=False, default=_json_value))


def _json_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


class FittingTable(Table):
    """A table that is shown row by row, as lines of name and value, in a terminal too narrow for its longest words."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or a grid of two columns for each row."""
        sizes = [(each, self._measure_column(console, options.update(max_width=WIDE), each)) for each in self.columns]
        spare = options.max_width - self._extra_width - sum(size.minimum for _, size in sizes)
        # Rich would narrow the widest column also below its longest word.
        for column, size in sorted(sizes, key=lambda each: each[1].span):
            given = max(0, min(size.span, spare))
            column.width = size.minimum + given - self._get_padding_width(column._index)
            spare -= given
        if spare >= 0:
            yield from super().__rich_console__(console, options)
            return
        for row in zip(*(column.cells for column in self.columns), strict=True):
            grid = Table.grid(padding=(0, 2))
            grid.add_column(no_wrap=True, style="dim")
            grid.add_column(overflow="fold")
            for column, cell in zip(self.columns, row, strict=True):
                if str(cell):
                    grid.add_row(column.header, cell)
            yield grid
            yield ""


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Cell]], right: Container[str] = (), **style: Any) -> Table:
    """Return a table. Numbers have separators and stand right, as do the columns `right`; None is empty."""
    cells = [tuple(row) for row in rows]
    shown = FittingTable(**{"header_style": "bold", "box": None, **style})
    for place, name in enumerate(columns):
        values = [row[place] for row in cells]
        is_number = any(isinstance(v, int | float) for v in values) and not any(isinstance(v, str) for v in values)
        justify: JustifyMethod = "right" if is_number or name in right else "left"
        is_word = not any(" " in str(text) for text in (name, *values))
        shown.add_column(Text(name), justify=justify, overflow="fold", no_wrap=is_word)
    for row in cells:
        shown.add_row(*map(_shown, row))
    return shown


def _shown(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text("" if cell is None else cell if isinstance(cell, str) else f"{cell:,}")


if TYPE_CHECKING:
    from include.declare.contract_rules import RuleResult


def checks_table(checks: Sequence[RuleResult]) -> Table:
    """Return the results as a table, one rule per row."""
    columns = ("table", "rule", "action", "result", "observed")
    rows = []
    for check in checks:
        colour = "green" if check.passed else "red" if check.blocks else "yellow"
        rows.append((check.table, check.rule, check.action, Text(check.outcome, colour), check.observed))
    return table_of(columns, rows, collapse_padding=True, pad_edge=False)


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
    rows = []
    for shown in view.tables:
        t, difference = shown.of, Text(shown.difference, "green" if shown.of.is_equal else "")
        rows.append((t.name, difference, t.old_rows, t.new_rows, t.added, t.missing, t.changed))
    console.print(table_of(("table", "difference", *counts), rows, counts, collapse_padding=True, pad_edge=True))
    _show_differences(console, view.tables, details=details)
    if view.checks:
        console.print(checks_table(comparison.checks))
    for line in view.dependants:
        console.print(f"  {line}", highlight=False, markup=False)


def _show_differences(console: Console, tables: Sequence[TableView], *, details: bool) -> None:
    found = [each for table in tables for each in table.details]
    shown = found if details else sorted(found, key=lambda each: -each[0])[:MOST_DIFFERENCES]
    for _, line in shown:
        fitting = line if details else _shortened(line, console.width - 2)
        console.print(f"  {fitting}", highlight=False, markup=False)
    if more := len(found) - len(shown):
        differences = "difference" if more == 1 else "differences"
        console.print(f"  {more} more {differences}: headrace plan show ID --details, or the page", highlight=False)


def _shortened(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
