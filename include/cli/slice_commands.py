"""`headrace backfill` and `headrace replay`: do a part of history again, compare, and correct what differs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from include.cli.plan_command import JSON, THRESHOLD, YES, Planner, current_user, plan_and_run, plan_only
from include.cli.produce_command import moment

if TYPE_CHECKING:
    from include.planning.slice_plan import ReplayRange

backfill = typer.Typer(no_args_is_help=True, help="Do the events of a range of time again, and verify or correct them.")
replay = typer.Typer(no_args_is_help=True, help="Do Kafka records again, and fill what bronze lacks of them.")
DATASET = typer.Option("--dataset", help="The dataset whose history it is.")
SINCE = typer.Option("--from", parser=moment, metavar="TIME", help="First event time, UTC.")
UNTIL = typer.Option("--to", parser=moment, metavar="TIME", help="End of the event times, exclusive, UTC.")
OFFSETS = typer.Option("--offsets", metavar="JSON", help='Offsets by partition, end exclusive: {"0": [100, 200]}.')
AFTER = typer.Option("--from-timestamp", parser=moment, metavar="TIME", help="First time in Kafka, UTC.")
BEFORE = typer.Option(
    "--to-timestamp", parser=moment, metavar="TIME", help="End of the times in Kafka, exclusive, UTC."
)
BATCHES = typer.Option("--batches", metavar="A..B", help="Bronze batches, both included.")
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
    offsets: Annotated[str | None, OFFSETS] = None,
    after: Annotated[datetime | None, AFTER] = None,
    before: Annotated[datetime | None, BEFORE] = None,
    batches: Annotated[str | None, BATCHES] = None,
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
    offsets: Annotated[str | None, OFFSETS] = None,
    after: Annotated[datetime | None, AFTER] = None,
    before: Annotated[datetime | None, BEFORE] = None,
    batches: Annotated[str | None, BATCHES] = None,
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


def _wanted(offsets: str | None, after: datetime | None, before: datetime | None, batches: str | None) -> ReplayRange:
    """Return what is asked for, of exactly one kind; typer.BadParameter otherwise."""
    from include.planning.slice_plan import ReplayRange

    times = after is not None or before is not None
    if sum((offsets is not None, times, batches is not None)) != 1:
        raise typer.BadParameter("give one of --offsets, --from-timestamp with --to-timestamp, --batches")
    if offsets is not None:
        return ReplayRange(offsets=ranges(offsets))
    if batches is not None:
        return ReplayRange(batches=bounds(batches))
    if after is None or before is None:
        raise typer.BadParameter("--from-timestamp and --to-timestamp belong together")
    return ReplayRange(times=(after, before))


def ranges(text: str) -> dict[int, tuple[int, int]]:
    """Return the offsets by partition that a JSON object gives; typer.BadParameter."""
    try:
        said = json.loads(text)
        found = {int(partition): (int(start), int(end)) for partition, (start, end) in said.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise typer.BadParameter(f'{text!r} is no JSON like {{"0": [100, 200]}}', param_hint="--offsets") from error
    if not found:
        raise typer.BadParameter("it names no partition", param_hint="--offsets")
    return found


def bounds(text: str) -> tuple[int, int]:
    """Return the two batches of `A..B`; typer.BadParameter."""
    first, dots, last = text.partition("..")
    if not (dots and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise typer.BadParameter(f"{text!r} is no range of batches like 3..7", param_hint="--batches")
    return int(first), int(last)
