"""`headrace quality`: rule violations, table rules, drift. `headrace analysis`: jobs over published tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.change.analysis import run_analysis
from include.change.quality import QualityReport, drift_warnings, quality_report, report_page, validate_published
from include.cli.main import FAILED
from include.cli.terminal import AsJson, checks_table, output_file, utc_time, wide_console
from include.declare.analyses import declared_analyses, declared_analysis
from include.declare.dataset import dataset_names, declared_dataset, released_dataset
from include.declare.payloads import known_schemas
from include.ground.paths import docs_page
from include.ground.settings import load_settings
from include.observe.ledger_reader import open_reader
from include.read.publication import PublishedAnalysis, publications, published_analyses, read_publication, tables_of
from include.read.published_tables import PinnedTables

app = typer.Typer(no_args_is_help=True, help="Data quality: rule violations, table rules, drift.")
Dataset = Annotated[str, typer.Option("--dataset", help="The dataset.")]


@app.callback()
def quality() -> None:
    """Data quality: rule violations, table rules, drift."""


@app.command()
def report(
    dataset: Dataset,
    since: Annotated[
        datetime | None, typer.Option("--from", parser=utc_time, metavar="TIME", help="Validated since, UTC.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--to", parser=utc_time, metavar="TIME", help="Validated before, UTC.")
    ] = None,
    release: Annotated[str | None, typer.Option(help="Runs of this release. (default: the published one)")] = None,
    page: Annotated[
        Path | None,
        typer.Option(parser=output_file, metavar="FILE", help="Also write an HTML page with a plot per rule."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many records each rule rejected or warned about, run by run, from the ledger.

    Only ingested records count; records that a plan validates again are in the plan's comparison.
    """

    settings = load_settings()
    validated_by = release or read_publication(settings, dataset).release
    contract = released_dataset(settings, dataset, validated_by).contract
    runs = [run for run in open_reader(settings).run_counts(dataset, since, until) if run.release == validated_by]
    found = quality_report(dataset, contract, runs, since, until)
    if page is not None:
        page.write_text(report_page(found), "utf-8")
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
        return
    console = wide_console()
    console.print(report_table(found))
    console.print(f"{found.records:,} records in {len(found.runs):,} runs of release {validated_by}", highlight=False)
    if page is not None:
        console.print(f"page: {page}", highlight=False, markup=False, soft_wrap=True)


def report_table(found: QualityReport) -> Table:
    """Return a report as a table, one rule per row."""
    table = Table(
        *("rule", "effect", "records", "violations", "share", "limit", "first violation"), header_style="bold", box=None
    )
    for line in found.lines:
        limit = "" if line.mostly is None else f"≤ {100 * (1 - line.mostly):.4g} %"
        first = "" if line.first is None else f"partition {line.first[0]} offset {line.first[1]}"
        cells = (line.rule, line.kind, f"{line.validated:,}", f"{line.violations:,}")
        colour = "" if line.passed is None else "green" if line.passed else "red"
        table.add_row(*map(Text, cells), Text(f"{line.share:.4%}", colour), Text(limit), Text(first))
    for column in table.columns[2:5]:
        column.justify = "right"
    return table


@app.command()
def run(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset. (default: all published datasets)")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the table rules of the published tables; exit 1 when a rule with action hold or fail fails."""

    settings = load_settings()
    names = list(publications(settings)) if dataset is None else [dataset]
    found = [validate_published(settings, name, datetime.now(UTC)) for name in names]
    if as_json:
        typer.echo(json.dumps([each.to_json() for each in found], indent=1))
    else:
        for each in found:
            Console().print(f"{each.dataset}, release {each.release}, batch {each.batch}", highlight=False)
            wide_console().print(checks_table(each.checks))
            Console(soft_wrap=True).print(f"docs: {docs_page(settings, each.dataset)}", highlight=False, markup=False)
    if any(each.blocks for each in found):
        raise typer.Exit(FAILED)


@app.command()
def docs(dataset: Dataset) -> None:
    """Print the path of the page of the last `headrace quality run`."""

    page = docs_page(load_settings(), dataset)
    if not page.is_file():
        Console().print(f"no results yet: headrace quality run --dataset {dataset}", highlight=False)
        raise typer.Exit(FAILED)
    Console(soft_wrap=True).print(str(page), highlight=False, markup=False)


@app.command()
def drift(
    dataset: Dataset,
    since_batch: Annotated[int, typer.Option(min=1, help="Compare this batch and later ones with all earlier ones.")],
    as_json: AsJson = False,
) -> None:
    """Warn of unknown fields and of columns whose values changed; each warning names the first record."""

    settings = load_settings()
    publication = read_publication(settings, dataset)
    contract = released_dataset(settings, dataset, publication.release).contract
    reading, schemas = PinnedTables(tables_of(settings, publication)), known_schemas(settings, dataset)
    found = drift_warnings(reading, contract, since_batch, schemas)
    if as_json:
        typer.echo(json.dumps([asdict(warning) for warning in found], indent=1))
        return
    table = Table("column", "measure", "before", "now", "first (batch/partition/offset)", header_style="bold", box=None)
    for warning in found:
        at = warning.first
        position = "" if at is None else f"{at.batch}/{at.partition}/{at.offset}"
        table.add_row(*map(Text, (warning.column, warning.measure, warning.before, warning.now, position)))
    wide_console().print(table if found else f"{dataset}: no drift since batch {since_batch}")


analysis_app = typer.Typer(no_args_is_help=True, help="Analyses: iterative and learning jobs over published tables.")


@analysis_app.command("run")
def start_analysis(
    dataset: Annotated[str, typer.Argument(help="The dataset whose folder declares it.")],
    name: Annotated[str, typer.Argument(help="The analysis: a file analysis/NAME.yaml.")],
    json_: AsJson = False,
) -> None:
    """Run an analysis over the published tables, or continue a killed run, and publish its result."""

    settings, console = load_settings(), Console(stderr=True, soft_wrap=True)
    declared_dataset(settings, dataset)
    analysis = declared_analysis(settings, dataset, name)
    done = run_analysis(settings, analysis, lambda line: console.print(line, highlight=False))
    if json_:
        typer.echo(json.dumps(asdict(done)))
        return
    wide_console().print(f"analysis.{name}: run {done.run} published, {_figures(done)}", highlight=False)
    wide_console().print(f'headrace query "select * from analysis.{name} limit 10"', highlight=False)


@analysis_app.command("list")
def list_analyses(json_: AsJson = False) -> None:
    """List the declared analyses with their last published run."""

    settings = load_settings()
    rows = [
        (name, each, published_analyses(settings, name).get(each.name))
        for name in dataset_names(settings)
        for each in declared_analyses(settings, name).values()
    ]
    if json_:
        values = [{"dataset": d, "name": a.name, "published": p and asdict(p)} for d, a, p in rows]
        typer.echo(json.dumps(values))
        return
    table = Table("dataset", "analysis", "algorithm", "run", "figures", "sources", header_style="bold")
    for dataset, each, last in rows:
        known = (str(last.run), _figures(last), _sources(last)) if last else ("never", "", "")
        table.add_row(dataset, each.name, each.declared.algorithm, *known)
    wide_console().print(table)


def _figures(done: PublishedAnalysis) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in done.figures.items())


def _sources(done: PublishedAnalysis) -> str:
    return ", ".join(f"{name} version {version}" for name, (_, version) in done.sources.items())
