"""What commands share: option values, usage errors that name the value, and tables as they are printed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.change.plan_parameters import Parameters
from include.ground import strict_values
from include.ground.strict_values import MAX_OFFSET, MAX_PARTITION

Value = TypeVar("Value")
Model = TypeVar("Model", bound=Parameters)


def parser_of(parse: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return `parse` as a Typer parser: its ValueError becomes typer.BadParameter with the same text."""

    def parsed(given: Any) -> Value:
        try:
            return parse(given)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


utc_time = parser_of(strict_values.utc_time)
offset_ranges = parser_of(strict_values.offset_ranges)
share = parser_of(strict_values.share)
output_file = parser_of(strict_values.output_file)
sample_file = parser_of(strict_values.sample_file)

Offsets = Annotated[
    dict[int, tuple[int, int]] | None,
    typer.Option(
        "--offsets",
        parser=offset_ranges,
        metavar="JSON",
        help='By partition, end exclusive: {"0": [100, 200]}.',
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Partition = Annotated[int, typer.Argument(min=0, max=MAX_PARTITION)]
Offset = Annotated[int, typer.Argument(min=0, max=MAX_OFFSET)]


def with_options(model: type[Parameters]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of a parameter model, in place of its `**options`."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        first, *others, _ = inspect.signature(command, eval_str=True).parameters.values()
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (first, *others)]
        signature = inspect.Signature([own[0], *_options(model), *own[1:]])

        @wraps(command)
        def called(**values: Any) -> None:
            command(**values)

        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        return called

    return decorated


def _options(model: type[Parameters]) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field of a model that a command takes."""
    types = get_type_hints(model)
    for name in model.names():
        field = model.model_fields[name]
        option = model.option(name)
        if option.hidden:
            continue
        parse = None if option.parser is None else parser_of(option.parser)
        kind = list[str] | None if field.annotation == Sequence[str] else types[name]
        info = typer.Option(option.name, parser=parse, metavar=option.metavar, help=option.help or field.description)
        default = inspect.Parameter.empty if field.is_required() else None if kind != types[name] else field.default
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def given(model: type[Model], options: Mapping[str, Any]) -> Model:
    """Return a command's options as its parameter model. Raises typer.BadParameter with the first wrong option."""
    try:
        return model.of_options(options)
    except ValidationError as error:
        first = error.errors()[0]
        why = first["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(
            f"{model.option(str(first['loc'][0])).name}: {why}" if first["loc"] else why
        ) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


WIDE = 4_000


def wide_console() -> Console:
    """Return a console as wide as the terminal, or so wide that no cell is cut when the output is a file."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


if TYPE_CHECKING:
    from include.declare.contract_rules import RuleResult


def checks_table(checks: Sequence[RuleResult]) -> Table:
    """Return the results as a table, one rule per row."""
    table = Table(header_style="bold", box=None, collapse_padding=True, pad_edge=False)
    for name in ("table", "rule", "action", "result", "observed"):
        table.add_column(name, overflow="fold")
    for check in checks:
        colour = "green" if check.passed else "red" if check.blocks else "yellow"
        cells = map(Text, (check.table, check.rule, check.action))
        table.add_row(*cells, Text(check.outcome, colour), Text(check.observed))
    return table


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
