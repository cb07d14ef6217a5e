"""`headrace quality`: what rules have counted, tables asked as a whole, and what has drifted."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.cli.produce import moment

if TYPE_CHECKING:
    from include.quality.report import QualityReport

app = typer.Typer(no_args_is_help=True, help="Is what was promised kept? Rules, tables as a whole, and drift.")
Dataset = Annotated[str, typer.Option("--dataset", help="The dataset.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@app.callback()
def quality() -> None:
    """Is what was promised kept? Rules, tables as a whole, and drift."""


@app.command()
def report(
    dataset: Dataset,
    since: Annotated[
        datetime | None, typer.Option("--from", parser=moment, metavar="TIME", help="Judged from then on, UTC.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--to", parser=moment, metavar="TIME", help="Judged before then, UTC.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Also write it as a page with a plot a rule.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many records each rule has rejected or warned of, run by run, as the ledger has counted."""
    from include.catalog.dataset import declared_dataset
    from include.ledger.reader import open_reader
    from include.quality.page import page as made
    from include.quality.report import quality_report
    from include.settings import load_settings

    settings = load_settings()
    contract = declared_dataset(settings, dataset).contract
    found = quality_report(dataset, contract, open_reader(settings).counted_runs(dataset, since, until), since, until)
    if page is not None:
        page.write_text(made(found), "utf-8")
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
        return
    console = Console()
    console.print(report_table(found))
    console.print(f"{found.records:,} records in {len(found.runs):,} runs", highlight=False)
    if page is not None:
        console.print(f"page: {page}", highlight=False, markup=False, soft_wrap=True)


def report_table(found: QualityReport) -> Table:
    """Return a report as a table, one rule a row."""
    table = Table("rule", "", "records", "broken", "share", "wanted", "first", header_style="bold", box=None)
    for line in found.lines:
        wanted = "" if line.mostly is None else f"{100 * (1 - line.mostly):.4g} % at most"
        first = "" if line.first is None else f"partition {line.first[0]} offset {line.first[1]}"
        cells = (line.rule, line.kind, f"{line.judged:,}", f"{line.broken:,}")
        colour = "" if line.is_kept is None else "green" if line.is_kept else "red"
        table.add_row(*map(Text, cells), Text(f"{line.share:.4%}", colour), Text(wanted), Text(first))
    for column in table.columns[2:5]:
        column.justify = "right"
    return table
