"""`headrace analysis`: iterative and learning jobs over published tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from include.change.analysis import run_analysis
from include.cli.option_types import AsJson
from include.cli.wide_console import wide_console
from include.declare.analyses import declared_analyses, declared_analysis
from include.declare.dataset import dataset_names, declared_dataset
from include.ground.settings import load_settings
from include.read.publication import PublishedAnalysis, published_analyses

app = typer.Typer(no_args_is_help=True, help="Analyses: iterative and learning jobs over published tables.")


@app.command()
def run(
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


@app.command("list")
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
