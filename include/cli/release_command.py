"""`headrace release`: ship a dataset's changed folder as one plan."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from include.change.derived_release_plan import plan_any_release
from include.change.release import ReleaseParameters
from include.cli.option_types import AsJson, utc_time, validated
from include.cli.plan_command import THRESHOLD, YES, Planner, current_user, plan_and_run, plan_only
from include.ground.strict_values import MAX_OFFSET

app = typer.Typer(no_args_is_help=True, help="Ship a changed dataset folder: build, compare, publish.")
DATASET = typer.Option("--dataset", help="The dataset with the changed folder.")
BATCH = typer.Option(
    "--from-batch", min=0, max=MAX_OFFSET, metavar="N", help="First bronze batch to recompute. (default: all)"
)
SINCE = typer.Option(
    "--from-timestamp", parser=utc_time, metavar="TIME", help="First Kafka time to recompute, UTC, instead of a batch."
)

TOGETHER = typer.Option(
    "--with", metavar="DERIVED", help="A derived dataset to release in the same plan; give it again for another one."
)


@app.callback()
def release() -> None:
    """Ship a changed dataset folder: build, compare, publish."""


@app.command()
def plan(
    dataset: Annotated[str, DATASET],
    together: Annotated[list[str] | None, TOGETHER] = None,
    batch: Annotated[int | None, BATCH] = None,
    since: Annotated[datetime | None, SINCE] = None,
    threshold: Annotated[float, THRESHOLD] = 0.0,
    json_: AsJson = False,
) -> None:
    """Show what shipping the folder would change and cost; no table is touched."""
    plan_only(_release(dataset, together, batch, since, threshold), json_)


@app.command()
def run(
    dataset: Annotated[str, DATASET],
    together: Annotated[list[str] | None, TOGETHER] = None,
    batch: Annotated[int | None, BATCH] = None,
    since: Annotated[datetime | None, SINCE] = None,
    threshold: Annotated[float, THRESHOLD] = 0.0,
    yes: Annotated[bool, YES] = False,
    json_: AsJson = False,
) -> None:
    """Plan, build, compare, request approval, publish. If it is killed, `headrace plan apply ID` continues."""
    plan_and_run(_release(dataset, together, batch, since, threshold), yes, json_)


def _release(
    dataset: str, together: list[str] | None, batch: int | None, since: datetime | None, threshold: float
) -> Planner:
    members = tuple(dict.fromkeys(together or ()))
    parameters = validated(
        ReleaseParameters, members=members, from_batch=batch, from_timestamp=since, threshold=threshold
    )
    return lambda settings: plan_any_release(settings, dataset, parameters, current_user(), datetime.now(UTC))
