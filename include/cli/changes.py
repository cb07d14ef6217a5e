"""`headrace release`, `backfill`, `replay`, `rejected fix|discard|reinstate`: changes of history, each one plan."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from pydantic import ValidationError
from rich.console import Console

from include.change import stages as plan_stages
from include.change.draft import draft_release
from include.change.kind import PlanKind
from include.change.load import LoadPlan
from include.change.plan_parameters import (
    BackfillParameters,
    LoadParameters,
    Parameters,
    ReleaseParameters,
    ReplayParameters,
)
from include.change.recompute import BackfillPlan, ReplayPlan, recomputes_everything
from include.change.reinstate import Author, ReinstateParameters, ReinstatePlan, discard, fix
from include.change.release import ReleasePlan
from include.cli.folder import Tried, run_samples, show_tried
from include.cli.main import FAILED
from include.cli.plan import (
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
from include.cli.terminal import AsJson, Offset, Offsets, Partition, line_console, parser_of, print_json, wide_console
from include.ground.settings import Settings, load_settings
from include.plans.journal import plan_lock
from include.plans.plan import PlanRecord
from include.read.rejected_records import RejectedFilter

Model = TypeVar("Model", bound=Parameters)


def with_options(model: type[Parameters]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of a parameter model, in place of its `**options`."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        first, *others, _ = inspect.signature(command, eval_str=True).parameters.values()
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (first, *others)]
        signature = inspect.Signature([own[0], *_options(model), *own[1:]])

        @wraps(command)
        def called(**values: Any) -> None:
            command(**values)

        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        return called

    return decorated


def _options(model: type[Parameters]) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field of a model that a command takes."""
    types = get_type_hints(model)
    for name in model.names():
        field = model.model_fields[name]
        option = model.option(name)
        if option.hidden:
            continue
        parse = None if option.parser is None else parser_of(option.parser)
        kind = list[str] | None if types[name] == Sequence[str] else types[name]
        info = typer.Option(option.name, parser=parse, metavar=option.metavar, help=option.help or field.description)
        default = inspect.Parameter.empty if field.is_required() else None if kind != types[name] else field.default
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def given(model: type[Model], options: Mapping[str, Any]) -> Model:
    """Return a command's options as its parameter model. Raises typer.BadParameter with the first wrong option."""
    try:
        return model.of_options(options)
    except ValidationError as error:
        first = error.errors()[0]
        why = first["msg"].removeprefix("Value error, ")
        if first["loc"]:
            raise typer.BadParameter(f"{model.option(str(first['loc'][0])).name}: {why}") from error
        names = re.compile(rf"\b({'|'.join(model.model_fields)})\b")
        raise typer.BadParameter(names.sub(lambda found: model.option(found[0]).name, why)) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Dataset = Annotated[str, typer.Option("--dataset", help="The dataset.")]
WHOLE_HISTORY = typer.Option(
    "--whole-history", help="Recompute all of the history without a confirmation; the result still needs approval."
)
app = typer.Typer(no_args_is_help=True, help="Ship a changed dataset folder: build, compare, publish.")
backfill = typer.Typer(no_args_is_help=True, help="Recompute the events of a range of time, and verify or patch them.")
load = typer.Typer(no_args_is_help=True, help="Load history from files, beside the stream.")
LoadedDataset = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset.")]
replay = typer.Typer(no_args_is_help=True, help="Recompute Kafka records, and insert those that bronze lacks.")


@app.command("plan")
@with_options(ReleaseParameters)
def plan_release(dataset: Dataset, json_: AsJson = False, **options: Any) -> None:
    """Show what shipping the folder would change and cost; no table is touched."""
    plan_only(_planner(ReleasePlan(), dataset, options), json_)


@app.command("run")
@with_options(ReleaseParameters)
def run_release(dataset: Dataset, yes: Annotated[bool, YES] = False, json_: AsJson = False, **options: Any) -> None:
    """Plan, build, compare, request approval, publish. If it is killed, `headrace plan apply ID` continues."""
    plan_and_run(_planner(ReleasePlan(), dataset, options), yes, json_)


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


@backfill.command("plan")
@with_options(BackfillParameters)
def plan_backfill(dataset: Dataset, json_: AsJson = False, **options: Any) -> None:
    """Show which records would be recomputed, and the cost; no table is touched."""
    plan_only(_planner(BackfillPlan(), dataset, options), json_)


@backfill.command("run")
@with_options(BackfillParameters)
def run_backfill(
    dataset: Dataset,
    whole_history: Annotated[bool, WHOLE_HISTORY] = False,
    yes: Annotated[bool, YES] = False,
    json_: AsJson = False,
    **options: Any,
) -> None:
    """Plan, build, compare; verify what is equal, patch what differs. If killed: `headrace plan apply ID` continues."""
    plan_and_run(_planner(BackfillPlan(), dataset, options), yes, json_, _unconfirmed(yes or whole_history))


@replay.command("plan")
@with_options(ReplayParameters)
def plan_replay(dataset: Dataset, json_: AsJson = False, **options: Any) -> None:
    """Show which records would be recomputed from which source, and the cost; no table is touched."""
    plan_only(_planner(ReplayPlan(), dataset, options), json_)


@replay.command("run")
@with_options(ReplayParameters)
def run_replay(
    dataset: Dataset,
    whole_history: Annotated[bool, WHOLE_HISTORY] = False,
    yes: Annotated[bool, YES] = False,
    json_: AsJson = False,
    **options: Any,
) -> None:
    """Plan, build, compare, request approval, patch. If it is killed, `headrace plan apply ID` continues."""
    plan_and_run(_planner(ReplayPlan(), dataset, options), yes, json_, _unconfirmed(yes or whole_history))


@load.command("plan")
@with_options(LoadParameters)
def plan_load(dataset: LoadedDataset, json_: AsJson = False, **options: Any) -> None:
    """Show which files would be loaded, and the cost; each is read once for its checksum, no table is touched."""
    plan_only(_planner(LoadPlan(), dataset, options), json_)


@load.command("run")
@with_options(LoadParameters)
def run_load(dataset: LoadedDataset, yes: Annotated[bool, YES] = False, json_: AsJson = False, **options: Any) -> None:
    """Plan, load, build, compare, request approval, publish. If it is killed, `headrace plan apply ID` continues."""
    plan_and_run(_planner(LoadPlan(), dataset, options), yes, json_)


def _planner(kind: PlanKind[Any], dataset: str, options: Mapping[str, Any]) -> Planner:
    parameters = given(kind.parameters, options)
    return lambda settings: kind.plan(settings, dataset, parameters, current_user(), datetime.now(UTC))


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
    as_json: AsJson = False,
) -> None:
    """Store a corrected payload for one record, to be validated instead of the original; bronze is unchanged."""

    if (payload is None) == (payload_file is None):
        raise typer.BadParameter("give one of --payload and --payload-file")
    data = payload.encode() if payload is not None else _read(payload_file)
    new = fix(load_settings(), dataset, {(partition, offset): data}, _author(why))
    if as_json:
        print_json({"fixed": bool(new), "partition": partition, "offset": offset})
        return
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
    as_json: AsJson = False,
) -> None:
    """Discard records: they stay out of silver even if later code or contracts would accept them."""

    selection = _record_filter(reason, column, status, since, until, offsets)
    if not approver(yes)(f"Discard these records of {dataset} until they are reinstated?"):
        raise typer.Exit(FAILED)
    count = discard(load_settings(), dataset, selection, _author(why))
    if as_json:
        print_json({"discarded": count})
    else:
        Console().print(f"{count:,} records discarded", highlight=False)


@rejected_app.command("reinstate")
@with_options(ReinstateParameters)
def reinstate_rejected(
    dataset: Dataset,
    reason: Reason = None,
    column: Column = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
    offsets: Offsets = None,
    yes: Annotated[bool, YES] = False,
    json_: AsJson = False,
    **options: Any,
) -> None:
    """Validate records again, with their fixes and the published release; valid ones are added to silver.

    It is a plan like any other: built, compared, approved, applied. Discarded records are included only when
    --status discarded or --offsets names them.
    """

    selection = _record_filter(reason, column, status, since, until, offsets)
    plan_and_run(_planner(ReinstatePlan(), dataset, {**options, "records": selection}), yes, json_)


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
