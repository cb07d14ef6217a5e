"""The HTTP API of the platform, which Airflow's operators speak, here and elsewhere (adr-0002, adr-0003).

Guarantee: every request has a token. A repeated one never creates a second plan, and never begins work that runs.
After a crash: clients poll again, and start the work again that this process had in progress.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import JSONResponse

from include.change.comparison_view import comparison_markdown
from include.change.kind import Given, PlanConflict, PlanKind
from include.change.load import LoadPlan
from include.change.plan_parameters import (
    BackfillParameters,
    DatasetName,
    LoadParameters,
    ReleaseParameters,
    ReplayParameters,
)
from include.change.recompute import BackfillPlan, ReplayPlan, published_windows
from include.change.release import ReleasePlan
from include.change.stages import end_and_cancel, explanation, needs_approval
from include.declare.windows import day_range
from include.ground.errors import HeadraceError, Refused, Terminal, mask_secrets
from include.ground.paths import api_token_path, docs_page, docs_path, log_path
from include.ground.settings import Settings, read_password
from include.plans.journal import comparison_path, find_plan, load_comparison, load_plan, plan_of_ended_run
from include.plans.plan import PlanRecord, Stage
from include.read.record_stores import file_within
from include.serve.action_log import logged_action
from include.serve.forms import (
    AnalysisBody,
    AuditBody,
    BackfillBody,
    Behalf,
    Body,
    DatasetBody,
    EndedRunBody,
    FailureBody,
    PlanBody,
    RollbackBody,
    RunBody,
    StreamBody,
    WorkKey,
    declarations,
)
from include.serve.health import current_breaches, end_of_watch, health_line, stream_health
from include.serve.pages import address_of, console_of
from include.serve.plans import DECISIONS
from include.serve.work import (
    RemoteWork,
    Report,
    approve_within_threshold,
    complete_days,
    maintain,
    roll_back_plan,
    run_audit,
    run_declared_analysis,
    run_stages,
    trim,
    validate,
)
from include.state.streams import release_of_run, request_stream

PREFIX = "/api/v1"
LEAST_TOKEN = 20
# The job of a plan that is cancelled may hold its lock until it is gone.
CANCEL_WITHIN = 120.0
SHOWN = 120
FAILURES = "airflow-failures"


def token_refusal(request: Request) -> JSONResponse | None:
    """Return the answer to a request without a token, None for one that has it. Nothing of the body was read yet."""
    settings = console_of(request).settings
    paths = [path for path in (settings.api_token_file, own_token(settings)) if path is not None]
    if not paths:
        return _refused(404, "there is no API: HEADRACE_API_TOKEN_FILE is not set, and Airflow was not started here")
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    answer = _refused(401, "the token is wrong")
    for path in paths:
        try:
            token = read_password("HEADRACE_API_TOKEN_FILE", path)
        except Terminal as error:
            answer = refusal(error, 409)
            continue
        if len(token) < LEAST_TOKEN:
            answer = _refused(409, f"the token in {path} has fewer than {LEAST_TOKEN} characters; nobody may use it")
        elif hmac.compare_digest(given.encode(), token.encode()):
            request.state.token = path
            return None
    return answer


def own_token(settings: Settings) -> Path | None:
    """Return the file of the token that the Airflow of this state folder has, None before its first start."""
    path = api_token_path(settings)
    return path if path.is_file() else None


def _refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why, "is_terminal": True}, status)


routes = APIRouter(prefix=PREFIX)


@dataclass(frozen=True)
class Caller:
    """A client with a token, and what the routes need to answer it."""

    settings: Settings
    work: RemoteWork
    token: Path
    address: str

    def named(self, claimed: str) -> str:
        """Return who acts: for another's token the name of its file, since a client may claim anything about itself."""
        is_ours = self.token == api_token_path(self.settings)
        return claimed if is_ours else f"token {self.token.name} on behalf of {claimed}"

    def logged(self, what: str, about: str, by: str) -> AbstractContextManager[None]:
        return logged_action(self.settings, self.named(by), self.address, what, about)

    def begun(
        self, what: str, about: str, by: str, execute: Callable[[Report], Mapping[str, Any]], key: str = ""
    ) -> Mapping[str, Any]:
        """Begin a piece of work, and return its key, which is what it does unless given."""

        def logged(report: Report) -> Mapping[str, Any]:
            with self.logged(what, about, by):
                return execute(report)

        key = key or f"{what} {about}"
        self.work.begin(key, logged)
        return {"work": key}

    def planned(self, kind: PlanKind[Given], body: PlanBody[Any], parameters: Callable[[], Given]) -> Mapping[str, Any]:
        settings, by = self.settings, self.named(body.by)
        with self.logged(kind.name, body.dataset, body.by):
            record = kind.plan(settings, body.dataset, parameters(), by, datetime.now(UTC), body.origin)
        return {**plan_json(settings, record), "explanation": list(explanation(record))}


def caller_of(request: Request) -> Caller:
    """Return who asks; `token_refusal` has let the request pass."""
    return Caller(console_of(request).settings, request.app.state.work, request.state.token, address_of(request))


From = Annotated[Caller, Depends(caller_of)]


def require_run(dataset: str, run: str) -> None:
    """Refuse to request a stream in the name of anything but a run of its DAG. Raises HTTPException."""
    if not run.startswith(f"stream__{dataset}/"):
        raise HTTPException(422, f"{run[:80]!r} is no run of stream__{dataset}; nothing was done")


def refusal(error: HeadraceError, status: int) -> JSONResponse:
    """Return an error of the platform; `is_terminal`: a retry cannot help."""
    content: dict[str, Any] = {"error": str(error), "code": error.code, "is_terminal": isinstance(error, Terminal)}
    if isinstance(error, PlanConflict):
        content |= {"conflict": error.plan}
    return JSONResponse(content, status)


def wrong_body(errors: Sequence[Any]) -> JSONResponse:
    """Return the first wrong value of a request, named as in Airflow's form."""
    first = errors[0]
    name = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path", "parameters"))
    given = repr(first.get("input"))
    given = given if len(given) <= SHOWN else f"{given[:SHOWN]}…"
    where = f"param {name!r}" if name else "the params"
    return _refused(422, f"{where}: {first['msg']} (given: {given}); nothing was done")


@routes.get("/declarations")
def get_declarations(caller: From) -> Mapping[str, Any]:
    """Return the datasets, their tables and analyses, and the forms of DAGs."""
    return declarations(caller.settings)


@routes.get("/console")
def get_console(caller: From) -> Mapping[str, Any]:
    """Return where browsers reach the console, "" when it is where this API is."""
    return {"page": caller.settings.console_url}


@routes.post("/failures")
def post_failure(caller: From, body: FailureBody) -> Mapping[str, Any]:
    """Append a failed task to the state folder's log as one JSON line, so that it is found without Airflow."""
    path = log_path(caller.settings, FAILURES)
    facts = {"run": body.by, "task": body.task, "try": body.attempt, "error": mask_secrets(body.error)[:2000]}
    # A full disk must not hide the error that the task failed with.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps({"at": datetime.now(UTC).isoformat(), **facts}) + "\n")
    return {}


@routes.put("/streams/{dataset}")
def put_stream(caller: From, dataset: DatasetName, body: StreamBody) -> Mapping[str, Any]:
    """Request a stream for a run of its DAG."""
    require_run(dataset, body.by)
    with caller.logged("request", dataset, body.by):
        desired = request_stream(caller.settings, dataset, body.by)
    return {"since": desired.since.isoformat()}


@routes.delete("/streams/{dataset}")
def delete_stream(caller: From, dataset: DatasetName, by: Behalf, since: datetime | None = None) -> Mapping[str, Any]:
    """Release the stream that a run requested, at `since` if given, unless somebody requested it since."""
    require_run(dataset, by)
    with caller.logged("release", dataset, by):
        return {"released": release_of_run(caller.settings, dataset, by, since)}


@routes.get("/streams/{dataset}")
def get_stream(caller: From, dataset: DatasetName, lag_seconds: float) -> Mapping[str, Any]:
    """Return a stream's health as a line, what breaches the level now, and what ends a watch at once."""
    health = stream_health(caller.settings, dataset)
    ended = end_of_watch(health)
    return {
        "line": health_line(health),
        "state": health.state.label,
        "breaches": current_breaches(health, lag_seconds),
        "ended": asdict(ended) if ended else None,
    }


@routes.get("/datasets/{dataset}/complete-days")
def get_complete_days(caller: From, dataset: DatasetName, after: date | None = None) -> Mapping[str, Any]:
    """Return the days of a dataset that are complete; `days` is null before the first watermark."""
    watermark = stream_health(caller.settings, dataset).watermark
    if watermark is None:
        return {"days": None}
    return {"days": [str(day) for day in complete_days(after, watermark, published_windows(caller.settings, dataset))]}


@routes.get("/datasets/{dataset}/rule-results")
def get_rule_results(caller: From, dataset: DatasetName) -> Mapping[str, Any]:
    """Return the name of the page with a dataset's last rule results, "" when there is none."""
    page = docs_page(caller.settings, dataset)
    return {"page": page.name if page.is_file() else ""}


@routes.get("/datasets/{dataset}/rule-results/{page:path}")
def get_rule_results_page(caller: From, dataset: DatasetName, page: str) -> Mapping[str, Any]:
    """Return a page of a dataset's rule results; 404 for any other path."""
    site = docs_path(caller.settings, dataset).resolve()
    path = Path(site, page.replace("\0", "")).resolve()
    if not path.is_relative_to(site) or not path.is_file():
        raise HTTPException(404, f"rule results of {dataset} have no such page; headrace quality run writes them")
    return {"html": path.read_text("utf-8")}


@routes.post("/backfills")
def post_backfill(caller: From, body: BackfillBody) -> Mapping[str, Any]:
    """Plan a backfill; 409 with the plan in the way, or when no event is published in the range."""
    settings, given = caller.settings, body.parameters

    def of_range_or_day() -> BackfillParameters:
        if given.start and given.end:
            return given.plan(given.start, given.end)
        return given.plan(*day_range(published_windows(settings, body.dataset), _day(body.partition)))

    return caller.planned(BackfillPlan(), body, of_range_or_day)


def _day(partition: str) -> date:
    if not partition:
        what = "the run has neither start and end nor a partition; nothing was planned"
        remedy = "trigger it with start and end, or with a partition key like 2013-01-02"
        raise Refused(what, remedy, code="range-missing")
    try:
        return datetime.strptime(partition, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError as error:
        what = f"partition {partition!r} is not a day; nothing was planned"
        remedy = "trigger it with a partition key like 2013-01-02"
        raise Refused(what, remedy, code="partition-not-a-day", partition=partition) from error


@routes.post("/replays")
def post_replay(caller: From, body: PlanBody[ReplayParameters]) -> Mapping[str, Any]:
    """Plan a replay; 409 with the plan in the way."""
    return caller.planned(ReplayPlan(), body, lambda: body.parameters)


@routes.post("/loads")
def post_load(caller: From, body: PlanBody[LoadParameters]) -> Mapping[str, Any]:
    """Plan to load files of a store or of HEADRACE_FILES; 409 with the plan in the way, or when a file comes twice."""
    settings, given = caller.settings, body.parameters

    def within_folder() -> LoadParameters:
        return given.model_copy(update={"files": [file_within(settings, pattern) for pattern in given.files]})

    return caller.planned(LoadPlan(), body, within_folder)


@routes.post("/releases")
def post_release(caller: From, body: PlanBody[ReleaseParameters]) -> Mapping[str, Any]:
    """Plan a release of the dataset's folder here; 409 when it has not changed, or with the plan in the way."""
    return caller.planned(ReleasePlan(), body, lambda: body.parameters)


@routes.post("/ended-runs")
def post_ended_run(caller: From, body: EndedRunBody) -> Mapping[str, Any]:
    """Cancel the plan of a run that has ended, if it is still open; what it has moved is moved back.

    A plan that is being created when its run is ended is waited for, and one whose creation waits is not created:
    nobody would continue it.
    """
    record = plan_of_ended_run(caller.settings, body.origin, datetime.now(UTC))
    was_open = record is not None and record.is_open
    if record is not None and was_open:
        with caller.logged("cancel", record.plan.id, body.by):
            record = end_and_cancel(caller.settings, record.plan.id, caller.named(body.by), CANCEL_WITHIN)
    return {
        "plan": record.plan.id if record else None,
        "stage": record.stage if record else None,
        "was_open": was_open,
    }


@routes.get("/plans")
def get_plan_of_run(caller: From, origin: Behalf) -> Mapping[str, Any]:
    """Return the plan of a run of Airflow; 404 when it has none."""
    record = find_plan(caller.settings, origin)
    if record is None:
        raise HTTPException(404, f"run {origin} has no plan")
    return plan_json(caller.settings, record)


@routes.get("/plans/{plan}")
def get_plan(caller: From, plan: str) -> Mapping[str, Any]:
    """Return a plan's stage and its comparison."""
    return plan_json(caller.settings, load_plan(caller.settings, plan))


@routes.get("/plans/{plan}/page")
def get_comparison_page(caller: From, plan: str) -> Mapping[str, Any]:
    """Return the page of a plan's comparison; 404 for a plan without one."""
    path = comparison_path(caller.settings, load_plan(caller.settings, plan).plan.id, "html")
    if not path.is_file():
        raise HTTPException(404, f"plan {plan} is not compared yet, or its comparison was removed (retention.plans)")
    return {"html": path.read_text("utf-8")}


@routes.post("/plans/{plan}/run", status_code=202)
def run(caller: From, plan: str, body: RunBody) -> Mapping[str, Any]:
    """Run a plan's stages in the background."""
    settings, by = caller.settings, caller.named(body.by)
    load_plan(settings, plan)
    key = f"run {plan} {body.upto}"
    return caller.begun("run", plan, body.by, lambda report: run_stages(settings, plan, body.upto, by, report), key)


@routes.post("/plans/{plan}/approve-by-policy")
def approve_by_policy(caller: From, plan: str, body: Body) -> Mapping[str, Any]:
    """Approve a plan if its threshold allows it; else it stays compared. Refused when a rule holds it."""
    with caller.logged("approve by policy", plan, body.by):
        record = approve_within_threshold(caller.settings, plan, caller.named(body.by))
    return plan_json(caller.settings, record)


@routes.post("/plans/{plan}/{decision}")
def decide(caller: From, plan: str, decision: str, body: Body) -> Mapping[str, Any]:
    """Approve, reject or cancel a plan."""
    if decision not in ("approve", "reject", "cancel"):
        raise HTTPException(404, f"there is no decision {decision[:40]!r}")
    with caller.logged(decision, plan, body.by):
        record = DECISIONS[decision].decide(caller.settings, plan, caller.named(body.by))
    return plan_json(caller.settings, record)


@routes.post("/audits", status_code=202)
def post_audit(caller: From, body: AuditBody) -> Mapping[str, Any]:
    """Begin an audit."""
    return caller.begun("audit", body.by, body.by, lambda report: run_audit(caller.settings, body.parameters, report))


@routes.post("/validations", status_code=202)
def post_validation(caller: From, body: DatasetBody) -> Mapping[str, Any]:
    """Begin to validate a dataset's published tables."""
    return caller.begun("validate", body.dataset, body.by, lambda _: validate(caller.settings, body.dataset))


@routes.post("/maintenance", status_code=202)
def post_maintenance(caller: From, body: DatasetBody) -> Mapping[str, Any]:
    """Begin to compact a dataset's tables."""
    settings, dataset = caller.settings, body.dataset
    return caller.begun("maintain", dataset, body.by, lambda report: maintain(settings, dataset, report))


@routes.post("/log-trims", status_code=202)
def post_log_trim(caller: From, body: Body) -> Mapping[str, Any]:
    """Begin to trim logs."""
    return caller.begun("trim logs", "all", body.by, lambda _: trim(caller.settings))


@routes.post("/analyses", status_code=202)
def post_analysis(caller: From, body: AnalysisBody) -> Mapping[str, Any]:
    """Begin a run of an analysis."""
    settings, dataset, name = caller.settings, body.dataset, body.analysis

    def execute(report: Report) -> Mapping[str, Any]:
        return run_declared_analysis(settings, dataset, name, report)

    return caller.begun("analysis", f"{dataset}.{name}", body.by, execute)


@routes.post("/rollbacks", status_code=202)
def post_rollback(caller: From, body: RollbackBody) -> Mapping[str, Any]:
    """Begin to roll back a plan: the named one, else the one that the same run rolled back, else the last one."""
    settings, by = caller.settings, f"{caller.named(body.by)} ({body.origin})"

    def execute(_: Report) -> Mapping[str, Any]:
        return roll_back_plan(settings, body.dataset, body.parameters.plan, by)

    return caller.begun("rollback", body.dataset, body.by, execute, f"rollback {body.origin}")


@routes.get("/work")
def get_work(caller: From, key: WorkKey) -> Mapping[str, Any]:
    """Return how far a piece of work is; 404 when this process does not know it, as after a restart."""
    state = caller.work.state(key)
    if state is None:
        raise HTTPException(404, f"work {key[:80]!r} is not known; begin it again")
    return asdict(state)


def plan_json(settings: Settings, record: PlanRecord) -> Mapping[str, Any]:
    """Return a plan as clients see it."""
    comparison = load_comparison(settings, record.plan.id)
    return {
        "plan": record.plan.id,
        "dataset": record.plan.dataset,
        "about": record.plan.about,
        "records": record.plan.predicted.records,
        "stage": record.stage,
        "by": record.events[-1].by if record.events else record.plan.planned_by,
        "is_open": record.is_open,
        "needs_approval": record.stage is Stage.COMPARED and needs_approval(record),
        "comparison": comparison_markdown(comparison) if comparison else "",
        "has_page": comparison_path(settings, record.plan.id, "html").is_file(),
    }
