"""`headrace backfill` and `headrace replay`: recompute a slice of history, compare, and patch what differs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from include.change import stages as plan_stages
from include.change.backfill import BackfillParameters, plan_any_backfill, recomputes_everything
from include.change.replay import ReplayParameters, plan_replay
from include.cli.exit_codes import FAILED
from include.cli.option_types import AsJson, Offsets, batch_range, utc_time, validated
from include.cli.plan_command import (
    THRESHOLD,
    YES,
    Planner,
    Refusal,
    approver,
    current_user,
    plan_and_run,
    plan_only,
)
from include.ground.settings import Settings
from include.ground.strict_values import BatchRange
from include.plans.journal import plan_lock
from include.plans.plan import PlanRecord

backfill = typer.Typer(no_args_is_help=True, help="Recompute the events of a range of time, and verify or patch them.")
replay = typer.Typer(no_args_is_help=True, help="Recompute Kafka records, and insert those that bronze lacks.")
DATASET = typer.Option("--dataset", help="The dataset.")
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
WHOLE_HISTORY = typer.Option(
    "--whole-history", help="Recompute all of the history without a confirmation; the result still needs approval."
)


@backfill.callback()
def backfills() -> None:
    """Recompute the events of a range of time, and verify or patch them."""


@replay.callback()
def replays() -> None:
    """Recompute Kafka records, and insert those that bronze lacks."""


@backfill.command("plan")
def backfill_plan(
    dataset: Annotated[str, DATASET],
    since: Annotated[datetime, SINCE],
    until: Annotated[datetime, UNTIL],
    reference: Annotated[str, REFERENCE] = "as-of",
    threshold: Annotated[float, THRESHOLD] = 0.0,
    json_: AsJson = False,
) -> None:
    """Show which records would be recomputed, and the cost; no table is touched."""
    plan_only(_backfill(dataset, since, until, reference, threshold), json_)


@backfill.command("run")
def run_backfill(
    dataset: Annotated[str, DATASET],
    since: Annotated[datetime, SINCE],
    until: Annotated[datetime, UNTIL],
    reference: Annotated[str, REFERENCE] = "as-of",
    threshold: Annotated[float, THRESHOLD] = 0.0,
    whole_history: Annotated[bool, WHOLE_HISTORY] = False,
    yes: Annotated[bool, YES] = False,
    json_: AsJson = False,
) -> None:
    """Plan, build, compare; verify what is equal, patch what differs. If killed: `headrace plan apply ID` continues."""
    plan_and_run(_backfill(dataset, since, until, reference, threshold), yes, json_, _unconfirmed(yes or whole_history))


@replay.command("plan")
def replay_plan(
    dataset: Annotated[str, DATASET],
    offsets: Offsets = None,
    after: Annotated[datetime | None, AFTER] = None,
    before: Annotated[datetime | None, BEFORE] = None,
    batches: Annotated[BatchRange | None, BATCHES] = None,
    source: Annotated[str, SOURCE] = "auto",
    reference: Annotated[str, REFERENCE] = "as-of",
    threshold: Annotated[float, THRESHOLD] = 0.0,
    json_: AsJson = False,
) -> None:
    """Show which records would be recomputed from which source, and the cost; no table is touched."""
    options = {"source": source, "reference": reference, "threshold": threshold}
    plan_only(_replay(dataset, offsets, (after, before), batches, **options), json_)


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
    whole_history: Annotated[bool, WHOLE_HISTORY] = False,
    yes: Annotated[bool, YES] = False,
    json_: AsJson = False,
) -> None:
    """Plan, build, compare, request approval, patch. If it is killed, `headrace plan apply ID` continues."""
    options = {"source": source, "reference": reference, "threshold": threshold}
    planner = _replay(dataset, offsets, (after, before), batches, **options)
    plan_and_run(planner, yes, json_, _unconfirmed(yes or whole_history))


def _unconfirmed(confirmed: bool) -> Refusal:
    """Return what cancels a plan over a dataset's whole history that was not confirmed; exit code 1."""

    def refuse(console: Console, settings: Settings, record: PlanRecord) -> None:
        plan, question = record.plan, f"Recompute all of the history of {record.plan.dataset}?"
        if confirmed or not recomputes_everything(settings, plan) or approver(yes=False)(question):
            return
        with plan_lock(settings, plan.id):
            plan_stages.cancel(settings, record, current_user())
        console.print(
            f"not confirmed: {plan.id} would recompute all of the history of {plan.dataset}; it is cancelled, "
            "nothing was built. Next: a shorter range, or the same command with --whole-history",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(FAILED)

    return refuse


def _backfill(dataset: str, since: datetime, until: datetime, reference: str, threshold: float) -> Planner:
    parameters = validated(BackfillParameters, start=since, end=until, reference=reference, threshold=threshold)
    return lambda settings: plan_any_backfill(settings, dataset, parameters, current_user(), datetime.now(UTC))


def _replay(
    dataset: str,
    offsets: Offsets,
    times: tuple[datetime | None, datetime | None],
    batches: BatchRange | None,
    **options: Any,
) -> Planner:
    given = {"offsets": offsets, "time": times[0] or times[1], "batches": batches}
    by = [name for name, value in given.items() if value is not None]
    if len(by) != 1:
        raise typer.BadParameter("give one of --offsets, --from-timestamp with --to-timestamp, --batches")
    ranges: dict[str, Any] = {"offsets": offsets, "start": times[0], "end": times[1]}
    if batches is not None:
        ranges |= {"first_batch": batches.first, "last_batch": batches.last}
    parameters = validated(ReplayParameters, by=by[0], **ranges, **options)
    return lambda settings: plan_replay(settings, dataset, parameters, current_user(), datetime.now(UTC))
