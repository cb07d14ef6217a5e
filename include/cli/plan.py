"""`headrace plan`: list, show, explain, approve, apply, cancel, reject, compare, roll back and retire plans."""

from __future__ import annotations

import getpass
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from itertools import chain
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from include.change import stages as plan_stages
from include.change.kind import PlanKind
from include.change.plan_parameters import Parameters
from include.change.stages import (
    NotApproved,
    PlanReporter,
    PlanStage,
    cost,
    end_and_cancel,
    rebuild,
    remaining_stages,
    run_plan,
    stage_lines,
)
from include.cli.main import FAILED, INTERRUPTED
from include.cli.terminal import AsJson, line_console, parser_of, print_json, show_comparison, table_of, wide_console
from include.ground.settings import Settings, load_settings
from include.plans.journal import (
    PlanUnreadable,
    comparison_path,
    last_failure,
    load_comparison,
    load_plan,
    newest_plans,
    plan_lock,
    record_json,
)
from include.plans.plan import Applied, Compared, PlanRecord, Stage, next_command, validate_stage

app = typer.Typer(no_args_is_help=True, help="Plans: change history, from planning to rollback.")
ID = typer.Argument(metavar="ID", help="The plan's id, see `headrace plan list`.")
DETAILS = typer.Option("--details", help="All differences, instead of the three that matter most.")
YES = typer.Option("--yes", help="Approve without a confirmation.")
LISTED = 50
NO_PLANS = "no plans yet: headrace release|backfill|replay plan --dataset D"
# A command whose job was ended releases the plan.
LOCK_WITHIN = 5.0
Confirm = Callable[[str], bool]
Planner = Callable[["Settings"], "PlanRecord"]
Refusal = Callable[["Console", "Settings", "PlanRecord"], None]
Model = TypeVar("Model", bound=Parameters)
Dataset = Annotated[str, typer.Option("--dataset", help="The dataset.")]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Show the newest N plans.")] = LISTED,
    every: Annotated[bool, typer.Option("--all", help="Show all plans.")] = False,
    json_: AsJson = False,
) -> None:
    """List the newest plans and their stages, newest first."""
    found = newest_plans(load_settings(), None if every else limit)
    for damaged in found.unreadable:
        line_console(stderr=True).print(str(PlanUnreadable(damaged)))
    if json_:
        print_json([record_json(record) for record in found.plans])
    else:
        wide_console().print(_plan_table(found.plans) if found.plans else NO_PLANS)
    if not every and found.total > limit:
        # On the error output: standard output is the list.
        Console(stderr=True).print(
            f"{found.total - limit:,} older plans: --limit N or --all shows them", highlight=False
        )


@app.command()
def show(plan: Annotated[str, ID], json_: AsJson = False, details: Annotated[bool, DETAILS] = False) -> None:
    """Show a plan, its events and its comparison."""
    settings = load_settings()
    record, comparison = load_plan(settings, plan), load_comparison(settings, plan)
    if json_:
        values = None if comparison is None else comparison.to_json()
        failure = last_failure(settings, plan) or None
        print_json(record_json(record) | {"comparison": values, "failure": failure})
        return
    console = wide_console()
    show_plan(console, record)
    for event in record.events:
        console.print(f"  {event.at:%Y-%m-%d %H:%M:%S}  {event.stage:12} by {event.by}", highlight=False, markup=False)
    if failure := last_failure(settings, plan):
        console.print(f"  {failure}", highlight=False, markup=False)
    if comparison is not None:
        show_comparison(console, comparison, details=details)
        console.print(f"page: {comparison_path(settings, plan, 'html')}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def explain(plan: Annotated[str, ID], json_: AsJson = False) -> None:
    """Show what a plan changes, its predicted cost, and its stages: completed, and to be executed."""
    record = load_plan(load_settings(), plan)
    if json_:
        print_json(record_json(record))
        return
    show_plan(wide_console(), record)


@app.command()
def approve(plan: Annotated[str, ID], json_: AsJson = False) -> None:
    """Approve the change that the comparison shows; `plan apply` then publishes it."""
    _act(plan, json_, plan_stages.approve)
    if not json_:
        wide_console().print(f"next: [bold]headrace plan apply {plan}[/]   (publishes it)", highlight=False)


@app.command()
def apply(plan: Annotated[str, ID], yes: Annotated[bool, YES] = False, json_: AsJson = False) -> None:
    """Run the remaining stages: build, compare, request approval, publish."""
    settings = load_settings()
    with plan_lock(settings, plan):
        record = run_through(wide_console(stderr=json_), settings, load_plan(settings, plan), approver(yes))
    if json_:
        print_json(record_json(record))


@app.command()
def cancel(plan: Annotated[str, ID], json_: AsJson = False) -> None:
    """Drop a plan that is not applied, and end its job; nothing of it was ever published."""
    _show_stage(end_and_cancel(load_settings(), plan, current_user(), LOCK_WITHIN), json_)


@app.command()
def reject(plan: Annotated[str, ID], json_: AsJson = False) -> None:
    """Reject the change after its comparison."""
    _act(plan, json_, plan_stages.reject)


@app.command()
def compare(plan: Annotated[str, ID], json_: AsJson = False) -> None:
    """Build up to the published batch, and compare again."""
    settings = load_settings()
    with plan_lock(settings, plan), TerminalReporter(wide_console(stderr=json_), settings) as reporter:
        record = rebuild(settings, load_plan(settings, plan), reporter, current_user())
    if json_:
        print_json(record_json(record))


@app.command()
def rollback(plan: Annotated[str, ID], json_: AsJson = False) -> None:
    """Publish the state from before the plan, advanced to the current batch."""
    _act(plan, json_, plan_stages.roll_back)


@app.command()
def retire(plan: Annotated[str, ID], json_: AsJson = False) -> None:
    """Stop maintaining the release that is not published; its tables stay."""
    _act(plan, json_, plan_stages.retire)


def _act(plan: str, json_: bool, act: Callable[[Settings, PlanRecord, str], PlanRecord]) -> None:
    """Record what `act` does to the plan for this user, and show it."""
    settings = load_settings()
    with plan_lock(settings, plan):
        _show_stage(act(settings, load_plan(settings, plan), current_user()), json_)


def _show_stage(record: PlanRecord, json_: bool) -> None:
    if json_:
        print_json(record_json(record))
    else:
        print_stage(wide_console(), record)


def plan_only(planned: Planner, json_: bool) -> None:
    """Create a plan and show it; nothing is executed."""
    record = planned(load_settings())
    if json_:
        print_json(record_json(record))
        return
    console = wide_console()
    show_plan(console, record)
    console.print(
        f"next: [bold]headrace plan apply {record.plan.id}[/]   (builds, compares, requests approval)", highlight=False
    )


def plan_and_run(planned: Planner, yes: bool, json_: bool, refuse: Refusal = lambda *_: None) -> None:
    """Create a plan and run all its stages, unless `refuse` ends the command."""
    settings = load_settings()
    record = planned(settings)
    console = wide_console(stderr=json_)
    show_plan(console, record)
    refuse(console, settings, record)
    with plan_lock(settings, record.plan.id):
        record = run_through(console, settings, record, approver(yes))
    if json_:
        print_json(record_json(record))


def run_through(console: Console, settings: Settings, record: PlanRecord, approve: Confirm) -> PlanRecord:
    """Run the plan's remaining stages; exit code 1 when it is not approved, 130 after Ctrl-C."""
    user, name = current_user(), record.plan.id
    question = f"Publish the result of {record.plan.about} to the readers of {record.plan.dataset}?"
    if not remaining_stages(record):
        validate_stage(record, Stage.APPLIED)
    try:
        with TerminalReporter(console, settings) as reporter:
            record = run_plan(settings, record, reporter, lambda _: user if approve(question) else None, user)
    except NotApproved as error:
        console.print(f"not approved: what readers see is unchanged. {error.remedy}", highlight=False)
        raise typer.Exit(FAILED) from None
    except (KeyboardInterrupt, typer.Abort):
        record = load_plan(settings, name)
        text = f"stopped: nothing is lost. {next_command(record)} continues, headrace plan show {name} shows it"
        if not record.is_open:
            text = f"stopped: plan {name} is {record.stage}. headrace plan show {name} shows it"
        console.print(text, highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    if record.last(Applied).changed == 0:
        console.print("equal: the recomputed rows are the published rows", highlight=False)
    else:
        console.print(f"to roll back: [bold]headrace plan rollback {name}[/]", highlight=False)
    return record


class TerminalReporter(PlanReporter):
    """Shows a run of a plan: a progress bar for the current stage, a line for each completed stage."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._console, self._settings = console, settings
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None, visible=False)

    def __enter__(self) -> TerminalReporter:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, stage: PlanStage) -> None:
        """Show a bar, unless the stage may ask a question."""
        self._bar.reset(self._task, total=None, description=stage.name, visible=True)
        if stage.name in ("build", "compare"):
            self._bar.start()

    def progress(self, facts: Mapping[str, Any]) -> None:
        if "of" in facts:
            self._bar.update(
                self._task, completed=facts["done"], total=facts["of"], description=f"build: {facts['at']}"
            )
        elif "comparing" in facts:
            self._bar.update(self._task, description=f"compare {facts['comparing']}")

    def done(self, stage: PlanStage, record: PlanRecord) -> None:
        """Print the completed stage, after the comparison also its tables."""
        self._bar.stop()
        print_stage(self._console, record)
        found = load_comparison(self._settings, record.plan.id) if stage.name == "compare" else None
        if found is not None:
            show_comparison(self._console, found)
            path = comparison_path(self._settings, record.plan.id, "html")
            self._console.print(f"page: {path}", highlight=False, markup=False, soft_wrap=True)


def show_plan(console: Console, record: PlanRecord) -> None:
    """Print what a plan changes, its predicted cost and its stages."""
    p = record.plan
    console.print(f"[bold]{p.id}[/]  {record.stage}: {p.dataset}, {p.about}", highlight=False)
    colours = {"additive": "green", "changed": "yellow", "removed": "red", "incompatible": "red"}
    for change in p.changes:
        kind = f"[{colours[change.kind]}]{change.kind:12}[/]"
        console.print(f"  {kind} {change.table}: {escape(change.why)}", highlight=False)
    for line in (*cost(p), *stage_lines(record)):
        console.print(line, highlight=False, markup=False)


def current_user() -> str:
    """Return the name of the user who runs the command."""
    return getpass.getuser()


def approver(yes: bool) -> Confirm:
    """Return a function that requests confirmation; `yes` confirms, and without a terminal nothing is confirmed."""
    return lambda question: yes or (sys.stdin.isatty() and typer.confirm(question))


def _plan_table(records: Sequence[PlanRecord]) -> Table:
    rows = []
    for r in records:
        p, compared = r.plan, r.find(Compared)
        verdict = "" if compared is None else compared.verdict
        at = f"{p.planned_at:%Y-%m-%d %H:%M}"
        rows.append((p.id, str(r.stage), p.requested or p.about, at, p.planned_by, verdict))
    return table_of(("plan", "stage", "about", "planned (UTC)", "by", "verdict"), rows)


def print_stage(console: Console, record: PlanRecord) -> None:
    """Print a plan's stage; of a build or a change of tables also at which batch, and after how long."""
    result = record.events[-1].result
    batch, seconds = getattr(result, "batch", None), getattr(result, "seconds", None)
    at = f" at bronze batch {batch}" if batch is not None else ""
    took = f", {seconds} s" if seconds else ""
    console.print(f"{record.plan.id}: [bold]{record.stage}[/]{at}{took}", highlight=False)


def with_options(
    *models: type[Parameters], dataset: Any = None, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of parameter models, in place of its `**options`.

    `dataset`: how its first parameter is given, if not as it says. `without`: its parameters that are no options.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        first, *others, _ = inspect.signature(command, eval_str=True).parameters.values()
        kept = [first.replace(annotation=dataset or first.annotation), *(o for o in others if o.name not in without)]
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in kept]
        signature = inspect.Signature([own[0], *chain.from_iterable(map(_options, models)), *own[1:]])

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


def planner(kind: PlanKind[Any], dataset: str, options: Mapping[str, Any]) -> Planner:
    """Return what plans a change with a command's options."""
    parameters = given(kind.parameters, options)
    return lambda settings: kind.plan(settings, dataset, parameters, current_user(), datetime.now(UTC))
