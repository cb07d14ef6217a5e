"""A bounded job as a process that ends with the command that started it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from include.ground.errors import Terminal, Transient
from include.ground.job_guard import TIMED_OUT
from include.ground.paths import log_path
from include.ground.settings import Settings
from include.plans.plan import next_command
from include.plans.plan_journal import is_written, load_plan
from include.run.job_process import end_job, finish_job, start_job
from include.state.job_ends import JobEnd, find_job_end, forget_job_end, note_job_end
from include.state.process_states import job_name
from include.state.run_files import read_run_file, remove_run_file

STOPPED = 3
REQUEST_JOB = "request_job"
CANCEL = "headrace plan cancel"
FactsReporter = Callable[[Mapping[str, Any]], None]
"""Receives the facts of each line that a job prints: `at`, `done`, `of`, …"""


class JobFailed(Terminal):
    """A job ended without completing its work; the next attempt uses what it has committed."""

    def __init__(self, job: str, why: str, remedy: str) -> None:
        super().__init__(f"{job}: {why}; what readers see is unchanged", remedy)
        self.job = job


class JobDied(Transient):
    """A job ended without a reason: killed, out of memory, or stopped; the same command continues it."""

    def __init__(self, job: str, how: str, again: str) -> None:
        super().__init__(f"{job}: the job {how}; what readers see is unchanged", again)
        self.job = job


class PlanCancelled(Terminal):
    """Somebody cancelled the plan while its job ran."""

    def __init__(self, plan: str, by: str) -> None:
        super().__init__(
            f"plan {plan} was cancelled by {by}; what readers see is unchanged", f"headrace plan show {plan}"
        )
        self.plan, self.by = plan, by


class JobTimedOut(Terminal):
    """A job was ended at its time limit."""

    def __init__(self, job: str, seconds: float, again: str) -> None:
        super().__init__(
            f"{job}: failed: timed out after {seconds:g} s; what readers see is unchanged",
            f"{again} continues it; HEADRACE_PLAN_TIMEOUT={2 * seconds:g} before it allows more",
        )
        self.job, self.seconds = job, seconds


def run_job(
    settings: Settings, name: str, dataset: str, job: Sequence[str], report: FactsReporter, again: str = ""
) -> Mapping[str, Any]:
    """Run a job (module and arguments), pass each JSON line to `report` and return the last one.

    `name` is its plan or its task; `again` the command that continues it, of a plan by its stage. It ends with this
    process. Raises JobDied, JobTimedOut; PlanCancelled.
    """
    last: Mapping[str, Any] = {}
    process = start_job(settings, name, job, dataset, stdout=subprocess.PIPE)
    try:
        for last in _reported(process):
            report(last)
        code = process.wait()
    finally:
        finish_job(settings, name, process)
    if code != 0:
        _refuse_death(settings, name, code, last, again)
    return last


def _refuse_death(settings: Settings, name: str, code: int, last: Mapping[str, Any], again: str) -> None:
    """Raise why a job ended, unless it has reported that; the next command is that of the plan's present stage."""
    end = find_job_end(settings, name)
    forget_job_end(settings, name)
    if end is not None and end.command == CANCEL:
        raise PlanCancelled(name, end.by)
    if not again and is_written(settings, name):
        again = next_command(load_plan(settings, name))
    again = again or f"headrace plan apply {name}"
    if end is not None:
        raise JobDied(name, f"was ended by {end.command}", again)
    if code == TIMED_OUT:
        raise JobTimedOut(name, settings.plan_timeout, again)
    if "failed" not in last:
        stopped = code in (STOPPED, -signal.SIGTERM)
        log = log_path(settings, job_name(name))
        raise JobDied(name, "was stopped" if stopped else f"ended with {code}, see {log}", again)


def end_plan_job(settings: Settings, plan: str, by: str) -> None:
    """End the job of a plan that is cancelled: its build or checks, with all their processes.

    A request to the owner is not interrupted.
    """
    run = read_run_file(settings, job_name(plan))
    if run is not None and run.extra.get("job") != REQUEST_JOB:
        note_job_end(settings, plan, JobEnd(CANCEL, by))
        end_job(settings, plan)
        remove_run_file(settings, run.name)


def _reported(process: subprocess.Popen[bytes]) -> Iterator[Mapping[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        try:
            facts = json.loads(line)
        except ValueError:
            continue
        if isinstance(facts, dict):
            yield facts
