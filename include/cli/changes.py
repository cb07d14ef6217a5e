"""`headrace release`, `backfill`, `replay`, `rejected fix|discard|reinstate`: changes of history, each one plan."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from include.change import stages as plan_stages
from include.change.backfill import BackfillPlan, recomputes_everything
from include.change.plan_parameters import BackfillParameters, ReleaseParameters, ReplayParameters
from include.change.reinstate import Author, ReinstateParameters, ReinstatePlan, discard, fix
from include.change.release import ReleasePlan
from include.change.replay import ReplayPlan
from include.cli.main import FAILED
from include.cli.plan import (
    THRESHOLD,
    YES,
    Planner,
    Refusal,
    approver,
    current_user,
    plan_and_run,
    plan_only,
)
from include.cli.rejected import Column, Reason, Since, Status, Until
from include.cli.rejected import app as rejected_app
from include.cli.terminal import AsJson, Offset, Offsets, Partition, batch_range, utc_time, validated
from include.ground.settings import Settings, load_settings
from include.ground.strict_values import MAX_OFFSET, BatchRange
from include.plans.journal import plan_lock
from include.plans.plan import PlanRecord
from include.read.rejected_records import RejectedFilter

app = typer.Typer(no_args_is_help=True, help="Ship a changed dataset folder: build, compare, publish.")
RELEASED = typer.Option("--dataset", help="The dataset with the changed folder.")
BATCH = typer.Option(
    "--from-batch", min=0, max=MAX_OFFSET, metavar="N", help="First bronze batch to recompute. (default: all)"
)
RELEASED_SINCE = typer.Option(
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
    dataset: Annotated[str, RELEASED],
    together: Annotated[list[str] | None, TOGETHER] = None,
    batch: Annotated[int | None, BATCH] = None,
    since: Annotated[datetime | None, RELEASED_SINCE] = None,
    threshold: Annotated[float, THRESHOLD] = 0.0,
    json_: AsJson = False,
) -> None:
    """Show what shipping the folder would change and cost; no table is touched."""
    plan_only(_release(dataset, together, batch, since, threshold), json_)


@app.command()
def run(
    dataset: Annotated[str, RELEASED],
    together: Annotated[list[str] | None, TOGETHER] = None,
    batch: Annotated[int | None, BATCH] = None,
    since: Annotated[datetime | None, RELEASED_SINCE] = None,
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
    return lambda settings: ReleasePlan().plan(settings, dataset, parameters, current_user(), datetime.now(UTC))


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
    return lambda settings: BackfillPlan().plan(settings, dataset, parameters, current_user(), datetime.now(UTC))


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
    return lambda settings: ReplayPlan().plan(settings, dataset, parameters, current_user(), datetime.now(UTC))


Dataset = Annotated[str, typer.Option("--dataset", help="The dataset.")]
Why = Annotated[str, typer.Option("--why", help="The reason; stored with the decision.")]


@rejected_app.command("fix")
def fix_rejected(
    dataset: Dataset,
    partition: Partition,
    offset: Offset,
    why: Why,
    payload: Annotated[str | None, typer.Option(help="The whole record, corrected.")] = None,
    payload_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            allow_dash=True,
            help="A file with the payload; - for standard input.",
        ),
    ] = None,
) -> None:
    """Store a corrected payload for one record, to be validated instead of the original; bronze is unchanged."""

    if (payload is None) == (payload_file is None):
        raise typer.BadParameter("give one of --payload and --payload-file")
    data = payload.encode() if payload is not None else _read(payload_file)
    new = fix(load_settings(), dataset, {(partition, offset): data}, _author(why))
    console = Console()
    console.print("fixed" if new else "the record already has this fix", highlight=False)
    again = f"--dataset {dataset} --offsets '{{\"{partition}\": [{offset}, {offset + 1}]}}'"
    console.print(f"next: headrace rejected reinstate {again}", highlight=False, markup=False, soft_wrap=True)


@rejected_app.command("discard")
def discard_rejected(
    dataset: Dataset,
    why: Why,
    reason: Reason = None,
    column: Column = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
    offsets: Offsets = None,
    yes: Annotated[bool, YES] = False,
) -> None:
    """Discard records: they stay out of silver even if later code or contracts would accept them."""

    selection = _record_filter(reason, column, status, since, until, offsets)
    if not approver(yes)(f"Discard these records of {dataset} until they are reinstated?"):
        raise typer.Exit(FAILED)
    count = discard(load_settings(), dataset, selection, _author(why))
    Console().print(f"{count:,} records discarded", highlight=False)


@rejected_app.command("reinstate")
def reinstate_rejected(
    dataset: Dataset,
    why: Annotated[str, typer.Option("--why", help="The reason; stored with the decision.")] = "validated again",
    reason: Reason = None,
    column: Column = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
    offsets: Offsets = None,
    threshold: Annotated[float, THRESHOLD] = 0.0,
    yes: Annotated[bool, YES] = False,
    json_: AsJson = False,
) -> None:
    """Validate records again, with their fixes and the published release; valid ones are added to silver.

    It is a plan like any other: built, compared, approved, applied. Discarded records are included only when
    --status discarded or --offsets names them.
    """

    selection = _record_filter(reason, column, status, since, until, offsets)
    parameters = validated(ReinstateParameters, records=selection, threshold=threshold, why=why)
    plan_and_run(
        lambda settings: ReinstatePlan().plan(settings, dataset, parameters, current_user(), datetime.now(UTC)),
        yes,
        json_,
    )


def _record_filter(
    reason: str | None,
    column: str | None,
    status: str | None,
    since: datetime | None,
    until: datetime | None,
    offsets: dict[int, tuple[int, int]] | None,
) -> RejectedFilter:
    """Return the filter. Raises typer.BadParameter without a condition."""

    options = (reason, column, status, since, until, offsets)
    if all(each is None for each in options):
        raise typer.BadParameter("select records with --reason, --column, --status, --from, --to or --offsets")
    return RejectedFilter(reason, column, None, status, since, until, offsets)


def _author(why: str) -> Author:
    return Author(current_user(), datetime.now(UTC), why)


def _read(path: Path | None) -> bytes:
    assert path is not None
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
