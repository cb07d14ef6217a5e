"""The API for an Airflow that has no part of the state folder: streams, plans, audits (adr-0002).

Reads / Writes: what the functions of `include.change`, `include.state` and `include.audit` do that commands call.
Guarantee: every request has the token of HEADRACE_API_TOKEN_FILE; repeating one is idempotent.
After a crash: clients poll again, and start the work again that this process had in progress.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, StringConstraints

from include.audit.kafka import open_topic
from include.audit.run import counts, record_outcomes, requested_audits
from include.change.comparison_view import comparison_markdown
from include.change.jobs import recompute_derived
from include.change.kind import PlanConflict
from include.change.plan_parameters import (
    BackfillParameters,
    DatasetName,
    PlanParameters,
    ReleaseParameters,
    ReplayParameters,
)
from include.change.recompute import BackfillPlan, ReplayPlan
from include.change.release import ReleasePlan
from include.change.slices import RangeEmpty
from include.change.stages import PlanStage, explanation, needs_approval, run_plan
from include.ground.errors import Terminal
from include.ground.settings import Settings, read_password
from include.observe.health import current_breaches, end_of_watch, health_line, stream_health
from include.observe.processes import standing_sentence
from include.plans.journal import load_comparison, load_plan, plan_lock
from include.plans.lookup import plan_of_ended_run
from include.plans.plan import PlanRecord, Stage
from include.serve.action_log import logged_action
from include.serve.page_response import console_of
from include.serve.plan_decisions import DECISIONS
from include.serve.remote_work import RemoteWork, Report
from include.state.run_files import bootstrap_servers
from include.state.streams import release_of_run, request_stream

PREFIX = "/api/v1"
LEAST_TOKEN = 20
LOCK_WITHIN = 1800.0
MOST_FINDINGS = 20
Parameters = TypeVar("Parameters", bound=PlanParameters)
Planner = Callable[[Settings, str, Parameters, str, datetime, str], PlanRecord]


def token_refusal(request: Request) -> JSONResponse | None:
    """Return the answer to a request without the token, None for one that has it; without a token file there is no API.

    It is called before anything of the body is read.
    """
    path = console_of(request).settings.api_token_file
    if path is None:
        return _refused(404, "there is no API: HEADRACE_API_TOKEN_FILE is not set")
    try:
        token = read_password("HEADRACE_API_TOKEN_FILE", path)
    except Terminal as error:
        return refusal(error, 409)
    if len(token) < LEAST_TOKEN:
        return _refused(409, f"the token in {path} has fewer than {LEAST_TOKEN} characters; nobody may use the API")
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return _refused(401, "the token is wrong")
    return None


def _refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why, "is_terminal": True}, status)


routes = APIRouter(prefix=PREFIX)


# A line of a log or a table, not an essay.
Behalf = Annotated[str, StringConstraints(min_length=1, max_length=250, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Body(BaseModel):
    """What a request must contain: `by` is the run or person for which the client acts, as it claims."""

    model_config = ConfigDict(extra="forbid")
    by: Behalf


class PlanBody(Body, Generic[Parameters]):
    """A plan's parameters; a second request by the same `origin` gets the first one's plan."""

    dataset: DatasetName
    parameters: Parameters
    origin: Behalf


class EndedRunBody(Body):
    """The origin of a run that has ended."""

    origin: Behalf


class RunBody(Body):
    """How far a plan is to be run: `compared`, `approved` (by its threshold alone) or `applied`."""

    upto: Stage


class AuditBody(Body):
    """The datasets to audit (none: all), and whether also what an audit before verified."""

    datasets: Sequence[DatasetName] = ()
    full: bool = False


def actor(request: Request, claimed: str) -> str:
    """Return who acts: the token, by its file's name, since a client may claim anything about itself."""
    path = console_of(request).settings.api_token_file
    return f"token {path.name if path else '?'} on behalf of {claimed}"


def require_run(dataset: str, run: str) -> None:
    """Refuse to request a stream in the name of anything but a run of its DAG. Raises HTTPException."""
    if not run.startswith(f"stream__{dataset}/"):
        raise HTTPException(422, f"{run[:80]!r} is no run of stream__{dataset}; nothing was done")


def refusal(error: Any, status: int) -> JSONResponse:
    """Return an error of the platform; `is_terminal`: a retry cannot help."""
    content: dict[str, Any] = {"error": str(error), "is_terminal": isinstance(error, Terminal)}
    if isinstance(error, PlanConflict):
        content |= {"conflict": error.plan}
    if isinstance(error, RangeEmpty):
        content |= {"is_empty": True}
    return JSONResponse(content, status)


@routes.put("/streams/{dataset}")
def put_stream(request: Request, dataset: DatasetName, body: Body) -> Mapping[str, Any]:
    """Request a stream for a run of its DAG."""
    require_run(dataset, body.by)
    with _logged(request, "request", dataset, body.by):
        desired = request_stream(console_of(request).settings, dataset, body.by)
    return {"since": desired.since.isoformat()}


@routes.delete("/streams/{dataset}")
def delete_stream(request: Request, dataset: DatasetName, by: Behalf, since: datetime) -> Mapping[str, Any]:
    """Release the stream that a run requested at `since`, unless a later run did."""
    require_run(dataset, by)
    with _logged(request, "release", dataset, by):
        released = release_of_run(console_of(request).settings, dataset, by, since)
    return {"released": released}


@routes.get("/streams/{dataset}")
def get_stream(request: Request, dataset: DatasetName, lag_seconds: float) -> Mapping[str, Any]:
    """Return a stream's health as a line, what breaches the level now, and what ends a watch at once."""
    health = stream_health(console_of(request).settings, dataset)
    ended = end_of_watch(health)
    return {
        "line": health_line(health),
        "breaches": current_breaches(health, lag_seconds),
        "ended": asdict(ended) if ended else None,
    }


@routes.post("/backfills")
def post_backfill(request: Request, body: PlanBody[BackfillParameters]) -> Mapping[str, Any]:
    """Plan a backfill; 409 with the plan in the way, or when no event is published in the range."""
    return _planned(request, "backfill", body, BackfillPlan().plan)


@routes.post("/replays")
def post_replay(request: Request, body: PlanBody[ReplayParameters]) -> Mapping[str, Any]:
    """Plan a replay; 409 with the plan in the way."""
    return _planned(request, "replay", body, ReplayPlan().plan)


@routes.post("/releases")
def post_release(request: Request, body: PlanBody[ReleaseParameters]) -> Mapping[str, Any]:
    """Plan a release of the dataset's folder here; 409 when it has not changed, or with the plan in the way."""
    return _planned(request, "release plan", body, ReleasePlan().plan)


def _planned(
    request: Request, what: str, body: PlanBody[Parameters], planner: Planner[Parameters]
) -> Mapping[str, Any]:
    settings = console_of(request).settings
    with _logged(request, what, body.dataset, body.by):
        by = actor(request, body.by)
        record = planner(settings, body.dataset, body.parameters, by, datetime.now(UTC), body.origin)
    plan = plan_json(settings, record, _work(request))
    return {**plan, "explanation": list(explanation(record))}


@routes.post("/ended-runs")
def post_ended_run(request: Request, body: EndedRunBody) -> Mapping[str, Any]:
    """Cancel the plan of a run that has ended, if it is still open; what it has moved is moved back.

    A plan that is being created when its run is ended is waited for, and one whose creation waits is not created:
    nobody would continue it.
    """
    settings = console_of(request).settings
    record = plan_of_ended_run(settings, body.origin, datetime.now(UTC))
    was_open = record is not None and record.is_open
    if record is not None and was_open:
        with _logged(request, "cancel", record.plan.id, body.by):
            record = DECISIONS["cancel"].decide(settings, record.plan.id, actor(request, body.by))
    return {
        "plan": record.plan.id if record else None,
        "stage": record.stage if record else None,
        "was_open": was_open,
    }


@routes.get("/plans/{plan}")
def get_plan(request: Request, plan: str) -> Mapping[str, Any]:
    """Return a plan's stage, its comparison, and what runs of it here."""
    settings = console_of(request).settings
    return plan_json(settings, load_plan(settings, plan), _work(request))


@routes.post("/plans/{plan}/run", status_code=202)
def run(request: Request, plan: str, body: RunBody) -> Mapping[str, Any]:
    """Run a plan's stages in the background; `GET` shows how far it is."""
    settings, work = console_of(request).settings, _work(request)
    record = load_plan(settings, plan)

    def execute_stages(report: Report) -> Mapping[str, Any]:
        with _logged(request, "run", plan, body.by):
            return run_stages(settings, plan, body.upto, actor(request, body.by), report)

    work.begin(plan, execute_stages)
    return plan_json(settings, record, work)


@routes.post("/plans/{plan}/{decision}")
def decide(request: Request, plan: str, decision: str, body: Body) -> Mapping[str, Any]:
    """Approve, reject or cancel a plan."""
    settings = console_of(request).settings
    if decision not in ("approve", "reject", "cancel"):
        raise HTTPException(404, f"there is no decision {decision[:40]!r}")
    with _logged(request, decision, plan, body.by):
        record = DECISIONS[decision].decide(settings, plan, actor(request, body.by))
    return plan_json(settings, record, _work(request))


@routes.post("/audits", status_code=202)
def post_audit(request: Request, body: AuditBody) -> Mapping[str, Any]:
    """Begin an audit; `GET` shows how it ended."""
    settings, audit = console_of(request).settings, f"audit-{secrets.token_hex(8)}"

    def execute_audit(report: Report) -> Mapping[str, Any]:
        with _logged(request, "audit", audit, body.by):
            return run_audit(settings, body, report)

    _work(request).begin(audit, execute_audit)
    return {"audit": audit}


@routes.get("/audits/{audit}")
def get_audit(request: Request, audit: str) -> Mapping[str, Any]:
    """Return how far an audit is; 404 when this process does not know it, as after a restart."""
    state = _work(request).state(audit)
    if state is None:
        raise HTTPException(404, f"audit {audit[:40]!r} is not known; begin another one")
    return asdict(state)


class WorkReporter:
    """Reports the stages of a plan's run."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def begin(self, stage: PlanStage) -> None:
        """Report the stage that begins."""
        self.report({"stage": stage.name})

    def progress(self, facts: Mapping[str, Any]) -> None:
        """Report the progress of the stage's job."""
        self.report(facts)

    def done(self, stage: PlanStage, record: PlanRecord) -> None:
        """Report a completed stage."""
        self.report({"done": stage.name})


def run_stages(settings: Settings, plan: str, upto: Stage, by: str, report: Report) -> Mapping[str, Any]:
    """Run a plan's remaining stages under its lock. Raises NotApproved when it needs an approval that nobody gave."""
    with plan_lock(settings, plan, LOCK_WITHIN):
        record = run_plan(settings, load_plan(settings, plan), WorkReporter(report), lambda _: None, by, upto)
        return {"stage": record.stage}


def run_audit(settings: Settings, body: AuditBody, report: Report) -> Mapping[str, Any]:
    """Audit, and keep the outcome, as `headrace audit` does."""
    audits = requested_audits(
        settings,
        body.datasets,
        lambda topic: open_topic(bootstrap_servers(settings), topic, settings.jars),
        recompute_derived,
        lambda line: report({"at": line}),
        full=body.full,
        standing=partial(standing_sentence, settings),
    )
    record_outcomes(settings, audits, datetime.now(UTC))
    findings = [finding.sentence() for audit in audits for finding in audit.findings]
    unchecked = [f"{each.table}: {each.reason}" for audit in audits for each in audit.unchecked]
    unchecked += [audit.standing for audit in audits if audit.standing]
    return {
        "balanced": not findings and not unchecked,
        "findings": (findings + unchecked)[:MOST_FINDINGS],
        "records": {audit.dataset: counts(audit) for audit in audits},
    }


def plan_json(settings: Settings, record: PlanRecord, work: RemoteWork) -> Mapping[str, Any]:
    """Return a plan as clients see it."""
    state, comparison = work.state(record.plan.id), load_comparison(settings, record.plan.id)
    return {
        "plan": record.plan.id,
        "dataset": record.plan.dataset,
        "about": record.plan.about,
        "records": record.plan.predicted.records,
        "stage": record.stage,
        "is_open": record.is_open,
        "needs_approval": record.stage is Stage.COMPARED and needs_approval(record),
        "comparison": comparison_markdown(comparison) if comparison else "",
        "work": asdict(state) if state else None,
    }


def _work(request: Request) -> RemoteWork:
    found: RemoteWork = request.app.state.work
    return found


def _logged(request: Request, what: str, about: str, by: str) -> AbstractContextManager[None]:
    address = request.client.host if request.client else ""
    return logged_action(console_of(request).settings, actor(request, by), address, what, about)
