"""`headrace quality`: rule violations, table rules, drift. `headrace analysis`: jobs over published tables."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from include.change.analysis import run_analysis
from include.change.drift import drift_warnings
from include.change.quality import QualityReport, quality_report, report_page, validate_published
from include.cli.main import FAILED
from include.cli.terminal import (
    AsJson,
    checks_table,
    line_console,
    output_file,
    print_json,
    table_of,
    utc_time,
    wide_console,
)
from include.declare.analyses import declared_analyses, declared_analysis
from include.declare.dataset import dataset_names, declared_dataset, released_dataset
from include.declare.writer_schemas import known_schemas
from include.ground.paths import docs_page
from include.ground.settings import load_settings
from include.observe.ledger_reader import open_reader
from include.read.publication import PublishedAnalysis, publications, published_analyses, read_publication, tables_of
from include.read.published_tables import PinnedTables

app = typer.Typer(no_args_is_help=True, help="Data quality: rule violations, table rules, drift.")
Dataset = Annotated[str, typer.Option("--dataset", help="The dataset.")]


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
    runs = open_reader(settings).run_counts(dataset, validated_by, since, until)
    found = quality_report(dataset, contract, runs, since, until)
    if page is not None:
        page.write_text(report_page(found), "utf-8")
    if as_json:
        print_json(found.to_json())
        return
    console = wide_console()
    console.print(_report_table(found))
    console.print(f"{found.records:,} records in {len(found.runs):,} runs of release {validated_by}")
    if page is not None:
        line_console().print(f"page: {page}")


def _report_table(found: QualityReport) -> Table:
    rows = []
    for line in found.lines:
        limit = "" if line.mostly is None else f"≤ {100 * (1 - line.mostly):.4g} %"
        first = "" if line.first is None else f"partition {line.first[0]} offset {line.first[1]}"
        share = Text(f"{line.share:.4%}", "" if line.passed is None else "green" if line.passed else "red")
        rows.append((line.rule, line.kind, line.validated, line.violations, share, limit, first))
    columns = ("rule", "effect", "records", "violations", "share", "limit", "first violation")
    return table_of(columns, rows, ("share",))


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
        print_json([each.to_json() for each in found])
    else:
        for each in found:
            line_console().print(f"{each.dataset}, release {each.release}, batch {each.batch}")
            wide_console().print(checks_table(each.checks))
            line_console().print(f"docs: {docs_page(settings, each.dataset)}")
    if any(each.blocks for each in found):
        raise typer.Exit(FAILED)


@app.command()
def docs(dataset: Dataset) -> None:
    """Print the path of the page of the last `headrace quality run`."""
    page = docs_page(load_settings(), dataset)
    if not page.is_file():
        line_console().print(f"no results yet: headrace quality run --dataset {dataset}")
        raise typer.Exit(FAILED)
    line_console().print(str(page))


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
        print_json(found)
        return
    rows = []
    for warning in found:
        rows.append((warning.column, warning.measure, warning.before, warning.now, str(warning.first or "")))
    shown = table_of(("column", "measure", "before", "now", "first (batch/partition/offset)"), rows)
    wide_console().print(shown if found else f"{dataset}: no drift since batch {since_batch}")


analysis_app = typer.Typer(no_args_is_help=True, help="Analyses: iterative and learning jobs over published tables.")


@analysis_app.command("run")
def start_analysis(
    dataset: Annotated[str, typer.Argument(help="The dataset whose folder declares it.")],
    name: Annotated[str, typer.Argument(help="The analysis: a file analysis/NAME.yaml.")],
    json_: AsJson = False,
) -> None:
    """Run an analysis over the published tables, or continue a killed run, and publish its result."""
    settings, console = load_settings(), line_console(stderr=True, markup=True)
    declared_dataset(settings, dataset)
    analysis = declared_analysis(settings, dataset, name)
    done = run_analysis(settings, analysis, lambda line: console.print(line))
    if json_:
        print_json(done)
        return
    wide_console().print(f"analysis.{name}: run {done.run} published, {_figures(done)}")
    wide_console().print(f'headrace query "select * from analysis.{name} limit 10"')


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
        print_json([{"dataset": d, "name": a.name, "published": p} for d, a, p in rows])
        return
    never = ("never", "", "")
    cells = (
        (dataset, each.name, each.declared.algorithm, *((str(p.run), _figures(p), _sources(p)) if p else never))
        for dataset, each, p in rows
    )
    wide_console().print(table_of(("dataset", "analysis", "algorithm", "run", "figures", "sources"), cells))


def _figures(done: PublishedAnalysis) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in done.figures.items())


def _sources(done: PublishedAnalysis) -> str:
    return ", ".join(f"{name} version {version}" for name, (_, version) in done.sources.items())
