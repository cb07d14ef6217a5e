"""Bounded jobs, which end with the command that started them, and requests to the owner of a dataset's tables.

The owner is the stream, or a job started here when no stream runs. A request that was not withdrawn is executed once,
also after a crash; one without a waiting requester is withdrawn.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.job_guard import TIMED_OUT
from include.ground.paths import log_path
from include.ground.processes import NoProgress, Waiting
from include.ground.settings import Settings
from include.observe.processes import is_expected, observe_stream
from include.plans.dependants import drop_obsolete
from include.plans.journal import is_written, load_plan, open_plans
from include.plans.plan import next_command
from include.read.publication import read_publication
from include.run.child_process import end_job, finish_job, refuse_running, start_job
from include.state.owner_requests import (
    OwnerRequest,
    OwnerResponse,
    RequestKind,
    find_response,
    submit_request,
    withdraw_request,
)
from include.state.process_states import JobEnd, ProcessState, job_end_file, job_name, stream_name
from include.state.run_files import process_signs, read_run_file, remove_run_file

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
    process. Raises JobDied, JobTimedOut; Terminal (`plan-cancelled`).
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
    end = (file := job_end_file(settings, name)).read_if_valid()
    file.remove()
    if end is not None and end.command == CANCEL:
        what = f"plan {name} was cancelled by {end.by}; what readers see is unchanged"
        raise Terminal(what, f"headrace plan show {name}", code="plan-cancelled", plan=name)
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
        job_end_file(settings, plan).write(JobEnd(CANCEL, by))
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


def recompute_derived(
    settings: Settings, name: str, progress: Callable[[str], object]
) -> tuple[Mapping[str, Mapping[str, Any]], str]:
    """Return what the job found by table (`spark_jobs/jobs/audit_job.py`), and why it found nothing, else "".

    `progress` gets a line for each table. Raises Transient while it runs.
    """
    job = f"audit-{name}"
    refuse_running(settings, job)

    def report(facts: Mapping[str, Any]) -> None:
        if "at" in facts:
            progress(f"{name}: {facts['at']} from its sources, {facts['done']} of {facts['of']}")

    again = f"headrace audit --dataset {name}"
    try:
        output = run_job(settings, job, name, ("spark_jobs.jobs.audit_job", name), report, again)
    except HeadraceError as error:
        return {}, error.what
    return output.get("recomputed", {}), str(output.get("failed", ""))


RESPONSE_IDLE = 300.0
"""Seconds without progress of the owner after which a request is withdrawn."""


def _no_response(requester: str, why: str) -> Transient:
    """Return that the owner did not respond; `why` says what it did instead. The request was withdrawn."""
    what = f"{requester}: the stream did not respond, it {why}; the request was withdrawn"
    return Transient(what, "headrace status, then the same command again", code="no-response", requester=requester)


def request_owner(settings: Settings, dataset: str, request: OwnerRequest, *, is_kept: bool = False) -> OwnerResponse:
    """Submit a request and return the response. One that is kept stays pending when this process stops waiting.

    Raises `request-pending`, `request-refused`, `no-response`, JobFailed, JobDied.
    """
    drop_obsolete(settings, dataset)
    submit_request(settings, dataset, request)
    try:
        response = _awaited(settings, dataset, request) if is_expected(observe_stream(settings, dataset)) else None
        if response is None:
            response = _executed_by_job(settings, dataset, request)
    except BaseException:
        # Without a waiting requester it must not be executed later.
        if not is_kept:
            withdraw_request(settings, dataset)
        raise
    if response.refused:
        what = f"{request.requester}: the stream refused: {response.refused}; what readers see is unchanged"
        raise Terminal(what, response.remedy or "headrace status", code="request-refused", requester=request.requester)
    return response


def _executed_by_job(settings: Settings, dataset: str, request: OwnerRequest) -> OwnerResponse:
    name, again = request.plan or f"maintain-{dataset}", request.again if request.plan else request.requester
    done = run_job(settings, name, dataset, ("spark_jobs.jobs.request_job", dataset), lambda _: None, again)
    response = find_response(settings, dataset, request)
    project_now(settings, dataset)
    if response is None:
        raise JobFailed(name, str(done.get("failed", "the job gave no response")), str(done.get("remedy", "")))
    return response


def _awaited(settings: Settings, dataset: str, request: OwnerRequest) -> OwnerResponse | None:
    """Return the stream's response; None when it went to sleep before it saw the request."""

    def response() -> OwnerResponse | Literal[ProcessState.ASLEEP] | None:
        found = find_response(settings, dataset, request)
        stream = observe_stream(settings, dataset)
        if found is not None or is_expected(stream):
            return found
        if stream.state is ProcessState.ASLEEP:
            return ProcessState.ASLEEP
        raise _no_response(request.requester, "has ended")

    signs = partial(process_signs, settings, stream_name(dataset))
    try:
        found = Waiting(request.requester, signs, idle=RESPONSE_IDLE).until(response, 0.05)
        return found if isinstance(found, OwnerResponse) else None
    except NoProgress as error:
        raise _no_response(request.requester, error.why) from error


def project_now(settings: Settings, dataset: str) -> None:
    """Project the new commits into the ledger; if it is not available, the stream or a rebuild does it later."""
    # Imported late: commands that only parse folders load this module, and need no database.
    from include.observe.ledger_writer import open_writer, project_dataset

    with suppress(HeadraceError):
        project_dataset(open_writer(settings), settings, dataset)


@dataclass(frozen=True)
class TableMaintenance:
    """One table: its path in the warehouse, files before and now, old files removed, groups left for the next run."""

    table: str
    files: int
    now: int
    removed: int
    left: int


def maintain_tables(settings: Settings, dataset: str) -> list[TableMaintenance]:
    """Compact small files and remove old ones in the tables of active releases. Raises NothingPublished.

    Raises `plan-open`; `request-pending`, `request-refused`, `no-response`, JobFailed, JobDied as for any request.
    """
    publication = read_publication(settings, dataset)
    for record in open_plans(settings):
        if dataset in record.plan.datasets:
            plan = record.plan.id
            raise Transient(
                f"{dataset}: plan {plan} is {record.stage}; its tables were not compacted",
                f"headrace plan apply {plan} or headrace plan cancel {plan}, then headrace maintain",
                code="plan-open",
                plan=plan,
            )
    response = request_owner(settings, dataset, OwnerRequest("", RequestKind.COMPACT, publication.release))
    counts = ("files", "now", "removed", "left")
    return [TableMaintenance(table, *(int(each[name]) for name in counts)) for table, each in response.done.items()]
