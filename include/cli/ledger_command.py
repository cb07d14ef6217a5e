"""`headrace ledger`: show and rebuild the index of commits."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from include.cli.option_types import AsJson
from include.cli.wide_console import wide_console
from include.declare.dataset import declared_dataset
from include.ground.settings import load_settings
from include.observe.ledger_reader import Batch, OffsetRange, open_reader
from include.observe.ledger_writer import RebuildResult
from include.observe.ledger_writer import rebuild as rebuild_ledger

app = typer.Typer(no_args_is_help=True, help="The ledger: an index of the Delta commits, batch by batch.")


@app.command()
def show(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Batches per dataset.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the last batches with their offset ranges."""

    settings = load_settings()
    if dataset is not None:
        declared_dataset(settings, dataset)
    batches = open_reader(settings).last_batches(dataset, last)
    if as_json:
        typer.echo(json.dumps([asdict(batch) for batch in batches]))
    else:
        wide_console().print(batch_table(batches))


@app.command()
def rebuild() -> None:
    """Rebuild the ledger from the Delta logs and compare it with the old one."""

    console = Console(soft_wrap=True)
    with console.status("reading every commit of every table"):
        rebuilt = rebuild_ledger(load_settings())
    console.print(rebuilt_table(rebuilt))
    for line in verdict(rebuilt):
        console.print(line, highlight=False)


def batch_table(batches: list[Batch]) -> Table:
    """Return batches as a table; offset ranges are half-open."""
    names = ("batch", "epoch", "rows", "offsets [start, end) and rows", "committed (UTC)", "reference")
    table = Table("dataset", *names)
    for batch in batches:
        cells = [str(batch.batch), str(batch.epoch), f"{batch.rows:,}", "\n".join(map(offsets_text, batch.ranges))]
        table.add_row(batch.dataset, *cells, utc_text(batch.committed_at_ms), versions_text(batch.reference))
    for column in table.columns[1:4]:
        column.justify = "right"
    return table


def offsets_text(part: OffsetRange) -> str:
    """Return one offset range as text."""
    return f"{part.partition}: [{part.start}, {part.end}) {part.rows:,}".replace("[", r"\[")


def versions_text(reference: str) -> str:
    """Return the versions of reference tables as text."""
    return "\n".join(f"{name} {version}" for name, version in sorted(json.loads(reference).items()))


def utc_text(ms: int) -> str:
    """Return UTC milliseconds as a readable time."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def rebuilt_table(rebuilt: RebuildResult) -> Table:
    """Return rows per table of the ledger, and the differences of the old one."""
    table = Table("table", "rows", "missing", "surplus", "different")
    for name, rows in rebuilt.rows.items():
        found = rebuilt.differences.get(name)
        cells = (found.missing, found.surplus, found.changed) if found else (0, 0, 0)
        table.add_row(name, f"{rows:,}", *(f"{cell:,}" for cell in cells))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def verdict(rebuilt: RebuildResult) -> list[str]:
    """Describe the result of the rebuild."""
    lines = [f"{rebuilt.commits:,} commits read."]
    if rebuilt.set_aside:
        lines.append(f"The old file was damaged; it was moved to {rebuilt.set_aside}.")
    for path, version in rebuilt.cleaned.items():
        lines.append(
            f"[yellow]The log of {path} begins at version {version}: earlier commits are not in the ledger.[/]"
        )
    if rebuilt.identical:
        lines.append("[green]identical[/]: the ledger was correct.")
    elif rebuilt.compared:
        lines.append("[yellow]different[/]: the ledger was wrong and is now correct.")
    else:
        lines.append("new: there was no readable ledger of this version to compare with.")
    return lines
