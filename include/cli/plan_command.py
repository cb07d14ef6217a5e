"""`headrace plan`: what is to change in history, how far it is, and the way back."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from include.cli.comparison_table import show_comparison
from include.cli.option_types import share
from include.cli.produce_command import INTERRUPTED
from include.cli.query_command import wide_console

if TYPE_CHECKING:
    from include.planning.comparison import Comparison
    from include.planning.plan import PlanRecord
    from include.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Plans: changes of history, from the intention to the way back.")
ID = typer.Argument(metavar="ID", help="a plan, as `headrace plan list` names it")
JSON = typer.Option("--json", help="Print JSON.")
YES = typer.Option("--yes", help="Approve without asking.")
THRESHOLD = typer.Option(
    "--threshold", parser=share, metavar="SHARE", help="Share of differing keys that needs no approval: 0.01 or 1%."
)
NOT_APPROVED = 1
Ask = Callable[[str], bool]
Planner = Callable[["Settings"], "PlanRecord"]


@app.callback()
def plan() -> None:
    """Plans: changes of history, from the intention to the way back."""


@app.command("list")
def list_(json_: Annotated[bool, JSON] = False) -> None:
    """List every plan and how far it is."""
    from include.planning.plan_journal import all_plans
    from include.settings import load_settings

    records = all_plans(load_settings())
    if json_:
        typer.echo(json.dumps([as_json(record) for record in records], indent=1))
        return
    table = Table("plan", "stage", "about", "planned (UTC)", "by", "verdict", box=None, header_style="bold")
    for column in table.columns:
        column.no_wrap = True
    for r in records:
        p = r.plan
        verdict = str(_verdict(r))
        table.add_row(p.id, r.stage, p.asked or p.about, f"{p.planned_at:%Y-%m-%d %H:%M}", p.planned_by, verdict)
    wide_console().print(
        table if records else "there is no plan yet: headrace release|backfill|replay plan --dataset D"
    )


@app.command()
def show(plan: Annotated[str, ID], json_: Annotated[bool, JSON] = False) -> None:
    """Show a plan, what happened to it, and its comparison."""
    from include.planning.plan_journal import comparison_path, load_plan
    from include.settings import load_settings

    settings = load_settings()
    record, path = load_plan(settings, plan), comparison_path(settings, plan, "json")
    compared = json.loads(path.read_text("utf-8")) if path.is_file() else None
    if json_:
        typer.echo(json.dumps(as_json(record) | {"comparison": compared}, indent=1))
        return
    console = Console()
    show_plan(console, record)
    for event in record.events:
        console.print(f"  {event.at:%Y-%m-%d %H:%M:%S}  {event.stage:12} by {event.by}", highlight=False, markup=False)
    if compared is not None:
        show_comparison(console, compared)
        console.print(f"page: {comparison_path(settings, plan, 'html')}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def explain(plan: Annotated[str, ID], json_: Annotated[bool, JSON] = False) -> None:
    """Say what a plan would do, what it is predicted to take, and which stages are behind it."""
    from include.planning.plan_journal import load_plan
    from include.settings import load_settings

    record = load_plan(load_settings(), plan)
    if json_:
        typer.echo(json.dumps(as_json(record), indent=1))
        return
    show_plan(Console(), record)


@app.command()
def approve(plan: Annotated[str, ID]) -> None:
    """Say that the change is wanted as the comparison shows it."""
    from include.planning import plan_stages

    with _work(plan) as (console, settings, record):
        record = plan_stages.approve(settings, record, current_user()[0])
        _tell_stage(console, record)


@app.command()
def apply(plan: Annotated[str, ID], yes: Annotated[bool, YES] = False) -> None:
    """Do what is left of a plan: build, compare, ask for approval, let readers see it."""
    with _work(plan) as (console, settings, record):
        run_through(console, settings, record, approver(yes))


@app.command()
def cancel(plan: Annotated[str, ID]) -> None:
    """Drop a plan that is not applied; readers never saw anything of it."""
    from include.planning import plan_stages

    with _work(plan) as (console, settings, record):
        _tell_stage(console, plan_stages.cancel(settings, record, current_user()[0]))


@app.command()
def reject(plan: Annotated[str, ID]) -> None:
    """Say that the change is not wanted, now that it is compared."""
    from include.planning import plan_stages

    with _work(plan) as (console, settings, record):
        _tell_stage(console, plan_stages.reject(settings, record, current_user()[0]))


@app.command()
def compare(plan: Annotated[str, ID]) -> None:
    """Build up to what readers see by now, and compare again."""
    with _work(plan) as (console, settings, record):
        _compared(console, settings, _built(console, settings, record, current_user()[0]))


@app.command()
def rollback(plan: Annotated[str, ID]) -> None:
    """Let readers see what they saw before the plan was applied, as fresh as it is now."""
    from include.planning import plan_stages

    with _work(plan) as (console, settings, record):
        _tell_stage(console, plan_stages.roll_back(settings, record, current_user()[0]))


@app.command()
def retire(plan: Annotated[str, ID]) -> None:
    """Stop keeping the release that readers do not see fresh; its tables stay."""
    from include.planning import plan_stages

    with _work(plan) as (console, settings, record):
        _tell_stage(console, plan_stages.retire(settings, record, current_user()[0]))


def plan_only(planned: Planner, json_: bool) -> None:
    """Plan, and say what the plan is; nothing is done."""
    from include.settings import load_settings

    record = planned(load_settings())
    if json_:
        typer.echo(json.dumps(as_json(record), indent=1))
        return
    console = Console()
    show_plan(console, record)
    console.print(f"next: [bold]headrace plan apply {record.plan.id}[/]   (builds, compares, asks)", highlight=False)


def plan_and_run(planned: Planner, yes: bool, json_: bool) -> None:
    """Plan, and bring the plan through all its stages."""
    from include.planning.plan_journal import plan_lock
    from include.settings import load_settings

    settings = load_settings()
    record = planned(settings)
    console = Console(stderr=json_)
    show_plan(console, record)
    with plan_lock(settings, record.plan.id):
        record = run_through(console, settings, record, approver(yes))
    if json_:
        typer.echo(json.dumps(as_json(record), indent=1))


def run_through(console: Console, settings: Settings, record: PlanRecord, ask: Ask) -> PlanRecord:
    """Bring a plan from where it is to `applied`; exit code 1 when it is not approved, 130 after Ctrl-C."""
    try:
        return _through_all_stages(console, settings, record, ask)
    except KeyboardInterrupt:
        name = record.plan.id
        console.print(
            f"stopped: nothing is lost. headrace plan apply {name} goes on, headrace plan show {name} says where it is",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None


def _through_all_stages(console: Console, settings: Settings, record: PlanRecord, ask: Ask) -> PlanRecord:
    from include.planning import plan_stages
    from include.planning.contract_checks import refuse_held
    from include.planning.plan import Stage

    by = current_user()[0]
    if record.stage is Stage.PLANNED:
        record = _built(console, settings, record, by)
    if record.stage is Stage.BUILT:
        record = _compared(console, settings, record)
    if record.stage is Stage.COMPARED:
        refuse_held(record)
        question = f"Let readers of {record.plan.dataset} see it as it came out, {record.plan.about}?"
        if plan_stages.needs_approval(record) and not ask(question):
            console.print(f"not approved: readers see what they saw. headrace plan approve {record.plan.id}")
            raise typer.Exit(NOT_APPROVED)
        record = plan_stages.approve(settings, record, by if plan_stages.needs_approval(record) else "policy")
    record = plan_stages.apply(settings, record, by)
    _tell_stage(console, record)
    if record.facts_of(Stage.APPLIED).get("changed") == 0:
        console.print("equal: what readers see is what the same records give again", highlight=False)
    else:
        console.print(f"the way back: [bold]headrace plan rollback {record.plan.id}[/]", highlight=False)
    return record


def show_plan(console: Console, record: PlanRecord) -> None:
    """Print what a plan is about."""
    from include.planning.explain_plan import cost

    p = record.plan
    console.print(f"[bold]{p.id}[/]  {record.stage}: {p.dataset}, {p.about}", highlight=False, soft_wrap=True)
    colours = {"additive": "green", "changed": "yellow", "removed": "red", "incompatible": "red"}
    for change in p.changes:
        kind = f"[{colours[change.kind]}]{change.kind:12}[/]"
        console.print(f"  {kind} {change.table}: {escape(change.why)}", highlight=False, soft_wrap=True)
    for line in cost(p):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def current_user() -> tuple[str, datetime]:
    """Return who is at the keyboard, and when."""
    return getpass.getuser(), datetime.now(UTC)


def approver(yes: bool) -> Ask:
    """Return what answers a question: always yes, or a person at a terminal; without one it is no."""
    return lambda question: yes or (sys.stdin.isatty() and typer.confirm(question))


def as_json(record: PlanRecord) -> dict[str, Any]:
    """Return a plan and its events as JSON values."""
    said: dict[str, Any] = {**asdict(record.plan), "stage": record.stage, "events": [asdict(e) for e in record.events]}
    found: dict[str, Any] = json.loads(json.dumps(said, default=lambda v: v.isoformat()))
    return found


def _verdict(record: PlanRecord) -> str:
    from include.planning.plan import Stage

    return str(record.facts_of(Stage.COMPARED).get("verdict", ""))


@contextmanager
def _work(plan: str) -> Iterator[tuple[Console, Settings, PlanRecord]]:
    from include.planning.plan_journal import load_plan, plan_lock
    from include.settings import load_settings

    settings = load_settings()
    with plan_lock(settings, plan):
        yield Console(), settings, load_plan(settings, plan)


def _tell_stage(console: Console, record: PlanRecord) -> None:
    facts = record.events[-1].facts
    at = f" at bronze batch {facts['batch']}" if "batch" in facts else ""
    took = f", {facts['seconds']} s" if "seconds" in facts else ""
    console.print(f"{record.plan.id}: [bold]{record.stage}[/]{at}{took}", highlight=False)


def _built(console: Console, settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
    from include.planning import plan_stages

    columns = (TextColumn("building beside production: {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def say(said: Mapping[str, Any]) -> None:
            if "of" in said:
                bar.update(task, completed=said["done"], total=said["of"], description=said["at"])

        record = plan_stages.build(settings, record, by, say)
    _tell_stage(console, record)
    return record


def _compared(console: Console, settings: Settings, record: PlanRecord) -> PlanRecord:
    from include.planning import plan_stages

    with console.status("comparing") as shown:
        record, found = plan_stages.compare_built(
            settings, record, current_user()[0], lambda said: shown.update(f"comparing {said.get('comparing', '')}")
        )
    _show_found(console, settings, record, found)
    return record


def _show_found(console: Console, settings: Settings, record: PlanRecord, found: Comparison) -> None:
    from include.planning.plan_journal import comparison_path

    show_comparison(console, found.as_json())
    path = comparison_path(settings, record.plan.id, "html")
    console.print(f"page: {path}", highlight=False, markup=False, soft_wrap=True)
