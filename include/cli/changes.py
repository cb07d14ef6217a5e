"""`headrace release`, `backfill`, `replay`, `load`: changes of history, each one plan."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from include.change import stages as plan_stages
from include.change.draft import draft_release
from include.change.kind import PlanKind
from include.change.load import LoadPlan
from include.change.recompute import BackfillPlan, ReplayPlan, recomputes_everything
from include.change.release import ReleasePlan
from include.cli.folder import Tried, run_samples, show_tried
from include.cli.main import FAILED
from include.cli.plan import (
    YES,
    Dataset,
    Refusal,
    approver,
    current_user,
    plan_and_run,
    plan_only,
    planner,
    with_options,
)
from include.cli.terminal import AsJson, line_console, print_json, wide_console
from include.ground.settings import Settings, load_settings
from include.plans.journal import plan_lock
from include.plans.plan import PlanRecord

WHOLE_HISTORY = typer.Option(
    "--whole-history", help="Recompute all of the history without a confirmation; the result still needs approval."
)
app = typer.Typer(no_args_is_help=True, help="Ship a changed dataset folder: build, compare, publish.")
backfill = typer.Typer(no_args_is_help=True, help="Recompute the events of a range of time, and verify or patch them.")
load = typer.Typer(no_args_is_help=True, help="Load history from files, beside the stream.")
LoadedDataset = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset.")]
replay = typer.Typer(no_args_is_help=True, help="Recompute Kafka records, and insert those that bronze lacks.")


def _add_kind(
    app: typer.Typer, kind: PlanKind[Any], planned: str, run: str, dataset: Any = Dataset, *, recomputes: bool = False
) -> None:
    """Add `plan` and `run` of a kind with these help texts; one that `recomputes` asks about a whole history."""

    @app.command("plan", help=planned)
    @with_options(kind.parameters, dataset=dataset)
    def plan(dataset: Dataset, json_: AsJson = False, **options: Any) -> None:
        plan_only(planner(kind, dataset, options), json_)

    @app.command("run", help=run)
    @with_options(kind.parameters, dataset=dataset, without=() if recomputes else ("whole_history",))
    def plan_to_end(
        dataset: Dataset,
        whole_history: Annotated[bool, WHOLE_HISTORY] = False,
        yes: Annotated[bool, YES] = False,
        json_: AsJson = False,
        **options: Any,
    ) -> None:
        confirmed = not recomputes or yes or whole_history
        plan_and_run(planner(kind, dataset, options), yes, json_, _unconfirmed(confirmed))


IF_KILLED = "If it is killed, `headrace plan apply ID` continues."
_add_kind(
    app,
    ReleasePlan(),
    "Show what shipping the folder would change and cost; no table is touched.",
    f"Plan, build, compare, request approval, publish. {IF_KILLED}",
)
_add_kind(
    backfill,
    BackfillPlan(),
    "Show which records would be recomputed, and the cost; no table is touched.",
    "Plan, build, compare; verify what is equal, patch what differs. If killed: `headrace plan apply ID` continues.",
    recomputes=True,
)
_add_kind(
    replay,
    ReplayPlan(),
    "Show which records would be recomputed from which source, and the cost; no table is touched.",
    f"Plan, build, compare, request approval, patch. {IF_KILLED}",
    recomputes=True,
)
_add_kind(
    load,
    LoadPlan(),
    "Show which files would be loaded, and the cost; each is read once for its checksum, no table is touched.",
    f"Plan, load, build, compare, request approval, publish. {IF_KILLED}",
    LoadedDataset,
)


@app.command("draft")
def draft(
    dataset: Dataset,
    since_batch: Annotated[
        int | None, typer.Option(min=0, help="Look for fields in this batch and later ones. (default: the last 100)")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Write over the draft that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draft the contract with the fields that new records have and it does not, and try the draft on a sample.

    The draft is a folder in the state folder; the dataset's own folder, and its tables, stay as they are.
    """
    settings, console = load_settings(), line_console()
    made = draft_release(settings, dataset, since_batch, datetime.now(UTC), replaces=replace)
    if made is None and as_json:
        print_json({"dataset": dataset, "fields": {}})
        return
    if made is None:
        console.print(f"{dataset}: no record has a field that the contract lacks; nothing was drafted")
        return
    own = settings.model_copy(update={"datasets": made.datasets})
    found = list[Tried]()
    run_samples(own, dataset, [made.sample], lambda _, tried: found.append(tried))
    if as_json:
        print_json({**asdict(made), "tried": found[0]})
        return
    console.print(f"{made.folder}: version {made.version}, fields since batch {made.since_batch}")
    for path, field in made.fields.items():
        console.print(f"  {path}: in {field.rows:,} records, the first is batch/partition/offset {field.first}")
    for path, why in made.left_out.items():
        console.print(f"  left out: {path} {why}")
    show_tried(wide_console(), dataset, made.sample, found[0])
    folder = settings.datasets / dataset
    console.print(f"next: diff -ru {folder} {made.folder}   (what the draft changes)")
    console.print(f"      cp -r {made.folder}/. {folder}/ && headrace release run --dataset {dataset}")


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
