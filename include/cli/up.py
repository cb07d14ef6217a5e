"""`headrace up`, `down`, `doctor`, and `airflow` (Airflow's own command line on this state's database)."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from include.cli.main import FAILED, show_error
from include.cli.terminal import AsJson, print_json, table_of, wide_console
from include.declare.derived_dataset import all_dataset_names
from include.ground.errors import Refused
from include.ground.settings import CLONE, Settings, load_settings
from include.observe.doctor import Verdict, run_checks
from include.observe.processes import observe_jobs, observe_process, switched_on
from include.run.airflow_parts import airflow as airflow_argv
from include.run.airflow_process import (
    USER,
    AirflowNotStarted,
    airflow_environment,
    down_airflow,
    keys_file,
    password_path,
    require_airflow,
    up_airflow,
)
from include.run.runner import await_page
from include.run.start_stop import NotStarted, up_runner
from include.run.start_stop import down as bring_down
from include.run.start_stop import up as bring_up
from include.state.process_states import CONSOLE, METRICS, ProcessState, ProcessStatus

NEXT_IN_AIRFLOW = (
    "streams run without Airflow. Unpause stream__<dataset> to let Airflow request and watch one, and audit, maintain, "
    "quality__<dataset>, backfill__<dataset> for their schedules; release, replay and rollback need no switch"
)
NAMES = typer.Argument(help="Datasets. (default: all)", show_default=False)


def print_progress(console: Console, line: str) -> None:
    """Print a line of progress, the process's name in bold."""
    name, _, rest = line.partition(": ")
    text = f"[bold]{escape(name):16}[/] {escape(rest)}"
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def up(
    datasets: Annotated[list[str] | None, NAMES] = None,
    airflow: Annotated[bool, typer.Option("--airflow", help="Also start Airflow.")] = False,
    no_streams: Annotated[bool, typer.Option("--no-streams", help="Start only the runner.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start the broker and the streams under a runner and wait until they work; with --airflow, start Airflow too."""
    if no_streams and datasets:
        raise typer.BadParameter("either datasets, or --no-streams")
    if airflow:
        require_airflow()
    settings, console = load_settings(), wide_console(stderr=as_json)
    try:
        if no_streams:
            started = up_runner(settings, partial(print_progress, console))
        else:
            started = bring_up(settings, datasets or all_dataset_names(settings), partial(print_progress, console))
    except NotStarted as error:
        show_error(error)
        raise typer.Exit(FAILED) from error
    console.print(f"[green]up[/]: {len(started)} processes in {escape(str(settings.state))}", highlight=False)
    is_on = switched_on(settings)
    for name in (CONSOLE, METRICS):
        if is_on[name]:
            found = await_page(settings, partial(observe_process, name=name), partial(print_progress, console))
            show_page(console, name, found)
    if airflow:
        start_airflow(settings, console)
    if as_json:
        # Imported late: `down`, `doctor` and `airflow` need no ledger.
        from include.cli.status import process_json

        print_json({"state": settings.state, "processes": [process_json(each) for each in started]})


def show_page(console: Console, name: str, status: ProcessStatus) -> None:
    """Print a page's address, or why it does not answer; the streams work without it too."""
    state = "" if status.state is ProcessState.RUNNING else f"{status.state.label} "
    console.print(f"{name}: {state}{escape(status.detail)}", highlight=False)


def start_airflow(settings: Settings, console: Console) -> None:
    """Start Airflow, wait until it is healthy, print the login; exit 1 with the end of its log."""
    try:
        run = up_airflow(settings, partial(print_progress, console))
    except AirflowNotStarted as error:
        show_error(error)
        raise typer.Exit(FAILED) from error
    login = f'{run.extra["page"]}   user {USER}, password in "{password_path(settings)}"'
    console.print(f"Airflow: {escape(login)}", highlight=False)
    console.print(f"next: {NEXT_IN_AIRFLOW}", highlight=False)


def down(
    datasets: Annotated[list[str] | None, typer.Argument(help="Stop only these datasets.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Stop Airflow, jobs, streams, broker and runner; or only jobs and streams of DATASETS. Streams finish a batch."""
    settings, console = load_settings(), wide_console(stderr=as_json)
    airflow = not datasets and down_airflow(settings, partial(print_progress, console))
    jobs = observe_jobs(settings)
    before = bring_down(settings, partial(print_progress, console), datasets or [])
    if as_json:
        print_json({"stopped": [each.name for each in before if each.state is not ProcessState.STOPPED]})
    elif not airflow and not jobs and all(status.state is ProcessState.STOPPED for status in before):
        console.print("nothing was running", highlight=False)


def airflow(
    words: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS…", help="Arguments of `airflow`.")] = None,
) -> None:
    """Run a command of Airflow, such as `backfill create …` or `dags list`, with the settings of this state folder."""
    settings = load_settings()
    require_airflow()
    keys = keys_file(settings).read()
    if keys is None:
        what = "Airflow was never started in this state folder; nothing was run"
        raise Refused(what, "headrace up --airflow", code="airflow-never-started")
    command = airflow_argv(*(words or ()))
    sys.stdout.flush()
    os.chdir(CLONE)
    os.execve(command[0], command, airflow_environment(settings, keys))


COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(as_json: AsJson = False) -> None:
    """Check Java, Python, jars, ports, disk, memory, settings; exit code 1 when a check fails."""
    findings = run_checks()
    passed = all(finding.verdict is not Verdict.FAIL for finding in findings)
    if as_json:
        names = ("check", "verdict", "found", "remedy")
        print_json({"ok": passed, "checks": [{name: getattr(each, name) for name in names} for each in findings]})
    else:
        rows = ((f.check, Text(f.verdict.value, COLOURS[f.verdict.value]), f.found, f.remedy) for f in findings)
        wide_console().print(table_of(("check", "", "found", "remedy"), rows))
    raise typer.Exit(0 if passed else FAILED)
