"""`headrace backfill` and `headrace replay`: do a part of history again, compare, and correct what differs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from include.cli.option_types import Offsets, batch_range, utc_time
from include.cli.plan_command import JSON, THRESHOLD, YES, Planner, current_user, plan_and_run, plan_only
from include.strict_values import BatchRange

if TYPE_CHECKING:
    from include.planning.slice_plan import ReplayRange

backfill = typer.Typer(no_args_is_help=True, help="Do the events of a range of time again, and verify or correct them.")
replay = typer.Typer(no_args_is_help=True, help="Do Kafka records again, and fill what bronze lacks of them.")
DATASET = typer.Option("--dataset", help="The dataset whose history it is.")
SINCE = typer.Option("--from", parser=utc_time, metavar="TIME", help="First event time, UTC.")
UNTIL = typer.Option("--to", parser=utc_time, metavar="TIME", help="End of the event times, exclusive, UTC.")
AFTER = typer.Option("--from-timestamp", parser=utc_time, metavar="TIME", help="First time in Kafka, UTC.")
BEFORE = typer.Option(
    "--to-timestamp", parser=utc_time, metavar="TIME", help="End of the times in Kafka, exclusive, UTC."
)
BATCHES = typer.Option("--batches", parser=batch_range, metavar="A..B", help="Bronze batches, both included.")
SOURCE = typer.Option(
    "--source", help="auto: Kafka where it has the records, bronze for the rest; kafka or bronze: nothing else."
)
REFERENCE = typer.Option(
    "--reference", help="as-of: reference tables as they were at each batch; today: as they are now."
)


@backfill.callback()
def backfills() -> None:
    """Do the events of a range of time again, and verify or correct them."""


@replay.callback()
def replays() -> None:
    """Do Kafka records again, and fill what bronze lacks of them."""


@backfill.command("plan")
def plan_backfill(
    dataset: Annotated[str, DATASET],
    since: Annotated[datetime, SINCE],
    until: Annotated[datetime, UNTIL],
    reference: Annotated[str, REFERENCE] = "as-of",
    threshold: Annotated[float, THRESHOLD] = 0.0,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Say which records would be done again and what that takes; no table is touched."""
    plan_only(_backfill(dataset, since, until, reference, threshold), json_)


@backfill.command("run")
def run_backfill(
    dataset: Annotated[str, DATASET],
    since: Annotated[datetime, SINCE],
    until: Annotated[datetime, UNTIL],
    reference: Annotated[str, REFERENCE] = "as-of",
    threshold: Annotated[float, THRESHOLD] = 0.0,
    yes: Annotated[bool, YES] = False,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Plan, build, compare; equal: verified; different: ask, and correct. Killed: `headrace plan apply ID` goes on."""
    plan_and_run(_backfill(dataset, since, until, reference, threshold), yes, json_)


@replay.command("plan")
def plan_replay(
    dataset: Annotated[str, DATASET],
    offsets: Offsets = None,
    after: Annotated[datetime | None, AFTER] = None,
    before: Annotated[datetime | None, BEFORE] = None,
    batches: Annotated[BatchRange | None, BATCHES] = None,
    source: Annotated[str, SOURCE] = "auto",
    reference: Annotated[str, REFERENCE] = "as-of",
    threshold: Annotated[float, THRESHOLD] = 0.0,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Say which records would be done again, read where, and what that takes; no table is touched."""
    plan_only(_replay(dataset, _wanted(offsets, after, before, batches), source, reference, threshold), json_)


@replay.command("run")
def run_replay(
    dataset: Annotated[str, DATASET],
    offsets: Offsets = None,
    after: Annotated[datetime | None, AFTER] = None,
    before: Annotated[datetime | None, BEFORE] = None,
    batches: Annotated[BatchRange | None, BATCHES] = None,
    source: Annotated[str, SOURCE] = "auto",
    reference: Annotated[str, REFERENCE] = "as-of",
    threshold: Annotated[float, THRESHOLD] = 0.0,
    yes: Annotated[bool, YES] = False,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Plan, build, compare, ask, correct. Stopped or killed: `headrace plan apply ID` goes on with it."""
    plan_and_run(_replay(dataset, _wanted(offsets, after, before, batches), source, reference, threshold), yes, json_)


def _backfill(dataset: str, since: datetime, until: datetime, reference: str, threshold: float) -> Planner:
    from include.planning.slice_plan import REFERENCES
    from include.planning.slice_plan import plan_backfill as planned

    refuse_other("--reference", reference, REFERENCES)
    return lambda settings: planned(settings, dataset, since, until, *current_user(), threshold, reference)


def _replay(dataset: str, wanted: ReplayRange, source: str, reference: str, threshold: float) -> Planner:
    from include.planning.slice_plan import REFERENCES, SOURCES
    from include.planning.slice_plan import plan_replay as planned

    refuse_other("--source", source, SOURCES)
    refuse_other("--reference", reference, REFERENCES)
    return lambda settings: planned(settings, dataset, wanted, source, *current_user(), threshold, reference)


def refuse_other(option: str, value: str, allowed: Sequence[str]) -> None:
    """Raise typer.BadParameter for a value that is none of the allowed ones."""
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is none of {', '.join(allowed)}", param_hint=option)


def _wanted(
    offsets: Offsets, after: datetime | None, before: datetime | None, batches: BatchRange | None
) -> ReplayRange:
    """Return what is asked for, of exactly one kind; typer.BadParameter otherwise."""
    from include.planning.slice_plan import ReplayRange

    times = after is not None or before is not None
    if sum((offsets is not None, times, batches is not None)) != 1:
        raise typer.BadParameter("give one of --offsets, --from-timestamp with --to-timestamp, --batches")
    if offsets is not None:
        return ReplayRange(offsets=offsets)
    if batches is not None:
        return ReplayRange(batches=(batches.first, batches.last))
    if after is None or before is None:
        raise typer.BadParameter("--from-timestamp and --to-timestamp belong together")
    return ReplayRange(times=(after, before))
