"""`headrace release`: ship a dataset's changed folder as one plan."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from include.cli.plan import JSON, YES, as_json, asked, run_through, show_plan, somebody

app = typer.Typer(no_args_is_help=True, help="Change a dataset's code beside production, compare, then let it be seen.")
DATASET = typer.Option("--dataset", help="The dataset whose folder was changed.")
THRESHOLD = typer.Option("--threshold", min=0.0, max=1.0, help="Share of differing keys that needs no approval.")


@app.callback()
def release() -> None:
    """Change a dataset's code beside production, compare, then let it be seen."""


@app.command()
def plan(
    dataset: Annotated[str, DATASET],
    threshold: Annotated[float, THRESHOLD] = 0.0,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Say what shipping the folder would change and take; no table is touched."""
    from include.planning.release import plan_release
    from include.settings import load_settings

    record = plan_release(load_settings(), dataset, *somebody(), threshold)
    if json_:
        typer.echo(json.dumps(as_json(record), indent=1))
        return
    console = Console()
    show_plan(console, record)
    console.print(f"next: [bold]headrace plan apply {record.plan.id}[/]   (builds, compares, asks)", highlight=False)


@app.command()
def run(
    dataset: Annotated[str, DATASET],
    threshold: Annotated[float, THRESHOLD] = 0.0,
    yes: Annotated[bool, YES] = False,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Plan, build, compare, ask, apply. Stopped or killed: `headrace plan apply ID` goes on with it."""
    from include.planning.journal import sole_worker
    from include.planning.release import plan_release
    from include.settings import load_settings

    settings = load_settings()
    record = plan_release(settings, dataset, *somebody(), threshold)
    console = Console(stderr=json_)
    show_plan(console, record)
    with sole_worker(settings, record.plan.id):
        record = run_through(console, settings, record, asked(yes))
    if json_:
        typer.echo(json.dumps(as_json(record), indent=1))
