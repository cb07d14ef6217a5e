"""`headrace release`: ship a dataset's changed folder as one plan."""

from __future__ import annotations

from typing import Annotated

import typer

from include.cli.plan import JSON, THRESHOLD, YES, Planner, plan_and_run, plan_only, somebody

app = typer.Typer(no_args_is_help=True, help="Change a dataset's code beside production, compare, then let it be seen.")
DATASET = typer.Option("--dataset", help="The dataset whose folder was changed.")


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
    plan_only(_release(dataset, threshold), json_)


@app.command()
def run(
    dataset: Annotated[str, DATASET],
    threshold: Annotated[float, THRESHOLD] = 0.0,
    yes: Annotated[bool, YES] = False,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Plan, build, compare, ask, apply. Stopped or killed: `headrace plan apply ID` goes on with it."""
    plan_and_run(_release(dataset, threshold), yes, json_)


def _release(dataset: str, threshold: float) -> Planner:
    from include.planning.release import plan_release

    return lambda settings: plan_release(settings, dataset, *somebody(), threshold)
