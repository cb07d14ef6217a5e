"""The tasks of Headrace's DAGs: streams, plans and their stages, audits, quality, maintenance, analyses, rollbacks.

Guarantee: a retried or cleared task finds what its run began: the stream's request, the plan and its stages. Data of a
comparison is literal text: it is set after templates were rendered.
After a crash: a server that restarted begins again on request; plans continue from their journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Asset, BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
    TaskDeferred,
)

from headrace_airflow.connection import DEFAULT_CONNECTION, HeadraceConnection, Refused, origin
from headrace_airflow.declarations import PLANS
from headrace_airflow.triggers import PlanClosed, StreamEnds, WorkDone

# A plan may wait for approval over a weekend; a longer wait is an error.
PATIENCE = timedelta(days=3)
RELEASED = "released"
NOTHING_TO_DO = ("nothing-published", "plan-open")
QUESTION = "Publish the change?"
PAGES = "/headrace"
REPORTED = "told"


def run_params(context: Context) -> dict[str, Any]:
    """Return the run's params unrendered, including those that the DAG does not declare: the server refuses them."""
    return {**dict(context["params"]), **(context["dag_run"].conf or {})}


def triggered_by(context: Context) -> str:
    """Return who triggered the run; `airflow` for its schedule."""
    return str(getattr(context["dag_run"], "triggering_user_name", None) or "airflow")


class ComparisonLink(BaseOperatorLink):
    """A button on the task's page, once the task has ended."""

    name = "Comparison"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the comparison of the run's plan, "" when there is none."""
        try:
            plan = HeadraceConnection().request("GET", "plans", origin=f"{ti_key.dag_id}/{ti_key.run_id}")
        except AirflowException:
            return ""
        return f"{PAGES}/plans/{plan['plan']}" if plan["has_page"] else ""


class RuleResultsLink(BaseOperatorLink):
    """A button to the dataset's last rule results."""

    name = "Rule results"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the rule results of the task's dataset, "" when there are none yet."""
        dataset = ti_key.dag_id.partition("__")[2]
        try:
            page = HeadraceConnection().request("GET", f"datasets/{dataset}/rule-results")["page"]
        except AirflowException:
            return ""
        return f"{PAGES}/docs/{dataset}/{page}" if page else ""


class HeadraceOperator(BaseOperator):
    """A task on the Headrace that `headrace_connection` names; about `dataset`, or about all of them."""

    def __init__(self, *, dataset: str = "", headrace_connection: str = DEFAULT_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset, self.headrace_connection = dataset, headrace_connection

    def server(self) -> HeadraceConnection:
        return HeadraceConnection(self.headrace_connection)


class WorkOperator(HeadraceOperator):
    """Begins a piece of work on the server, and waits, deferred, until it is done; the log has its progress."""

    path: str
    skipped: tuple[str, ...] = ()
    """Codes of errors that skip the task: there was nothing to do."""

    def body(self, context: Context) -> Mapping[str, Any]:
        """Return what the request says besides who it is from."""
        return {"dataset": self.dataset} if self.dataset else {}

    def by(self, context: Context) -> str:
        return origin(context)

    def execute(self, context: Context) -> Any:
        self.begin(self.path, {"by": self.by(context), **self.body(context)})

    def begin(self, path: str, body: dict[str, Any]) -> None:
        """Request the work and defer. Raises TaskDeferred."""
        key = self.server().request("POST", path, body)["work"]
        self.defer(trigger=WorkDone(self.headrace_connection, key), method_name="ended", timeout=PATIENCE)

    def ended(self, context: Context, event: dict[str, Any]) -> Any:
        """Return what the work returned; its error fails the task, with retries unless they cannot help."""
        work = event["work"]
        if work is None:
            raise AirflowException("the server restarted during the work; the next try begins or continues it")
        if work["code"] in self.skipped:
            raise AirflowSkipException(work["error"])
        if work["error"]:
            raise (AirflowFailException if work["is_terminal"] else AirflowException)(work["error"])
        return self.outcome(context, dict(work["result"]))

    def outcome(self, context: Context, result: dict[str, Any]) -> Any:
        return result


class RunStream(HeadraceOperator):
    """Request the stream, then watch it, deferred, until it is released, gives up or breaches its level."""

    def execute(self, context: Context) -> None:
        params, run = run_params(context), origin(context)
        since = self.server().request("PUT", f"streams/{self.dataset}", {"by": run, "parameters": params})["since"]
        self.log.info("%s: the stream is requested", self.dataset)
        level = (float(params["lag_seconds"]), float(params["grace_seconds"]))
        trigger = StreamEnds(self.headrace_connection, self.dataset, run, since, *level)
        self.defer(trigger=trigger, method_name="ended")

    def ended(self, context: Context, event: dict[str, Any]) -> str:
        """End the run: it fails unless the stream was released."""
        if event["outcome"] != RELEASED:
            raise AirflowFailException(event["why"])
        return str(event["why"])


class CreatePlan(HeadraceOperator):
    """Create the plan of the run by a request to `path`; returns its id, description and records. A dry run ends here.

    One run has one plan: a retry or a cleared task finds the existing one.
    """

    path: str

    def about(self, context: Context) -> Mapping[str, Any]:
        return {}

    def execute(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Plan. A refusal fails the task without a retry."""
        params = run_params(context)
        body = {"dataset": self.dataset, "by": triggered_by(context), "origin": origin(context), "parameters": params}
        plan = self.server().request("POST", self.path, {**body, **self.about(context)})
        self.log.info("\n".join(plan["explanation"]))
        outcome = {name: plan[name] for name in ("plan", "about", "records")}
        if params.get("dry_run"):
            context["ti"].xcom_push("return_value", outcome)
            self.log.info("dry run: no plan is stored, nothing is built")
            raise DownstreamTasksSkipped(tasks=list(self.downstream_task_ids))
        return outcome


class PlanRelease(CreatePlan):
    """Plan to publish the dataset as its folder on Headrace's host declares it now."""

    path = "releases"


class PlanLoad(CreatePlan):
    """Plan to load files that Headrace's host can read. Fails when a file comes twice."""

    path = "loads"


class PlanReplay(CreatePlan):
    """Plan to recompute Kafka records. Fails while an open plan has the same records."""

    path = "replays"


class PlanBackfill(CreatePlan):
    """Plan to recompute a range of event time, else the day of the run's partition.

    Waits while an open plan has the same records, and skips a day without events.
    """

    path = "backfills"

    def about(self, context: Context) -> Mapping[str, Any]:
        run = context["dag_run"]
        return {"partition": str(run.partition_date.date() if run.partition_date else run.partition_key or "")}

    def execute(self, context: Context, event: Any = None) -> dict[str, Any]:
        try:
            return super().execute(context)
        except Refused as error:
            if conflict := error.answer.get("conflict"):
                self.log.info("%s; waiting until it is closed", error)
                trigger = PlanClosed(self.headrace_connection, str(conflict))
                raise TaskDeferred(trigger=trigger, method_name="execute", timeout=PATIENCE) from None
            if error.code == "range-empty" and not run_params(context).get("start"):
                raise AirflowSkipException(str(error)) from None
            raise


def plan_of(context: Context, plan_task: str) -> str:
    """Return the plan that the run's first task created. Raises AirflowFailException."""
    found = context["ti"].xcom_pull(task_ids=plan_task)
    if not found:
        raise AirflowFailException(f"run {origin(context)} has no plan; nothing was done: clear its first task")
    return str(found["plan"])


class RunPlan(WorkOperator):
    """Run the stages of the run's plan up to `upto`; completed ones are not executed again."""

    upto: str

    def __init__(self, *, plan_task: str = "plan", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_task = plan_task

    def execute(self, context: Context) -> None:
        path = f"plans/{plan_of(context, self.plan_task)}/run"
        self.begin(path, {"by": triggered_by(context), "upto": self.upto})


class BuildPlan(RunPlan):
    """Build the plan without touching production; the job is a process of Headrace's host."""

    upto = "built"


class ComparePlan(RunPlan):
    """Compare the build with what is published."""

    upto = "compared"
    operator_extra_links = (ComparisonLink(),)


class ApplyPlan(RunPlan):
    """Publish the plan's outcome, all tables in one publication."""

    upto = "applied"
    operator_extra_links = (ComparisonLink(),)

    def outcome(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        """Emit the asset events: those of tables under the run's partition if it has one."""
        partition = context["dag_run"].partition_key
        for asset in self.outlets:
            if isinstance(asset, Asset):
                context["outlet_events"][asset].extra = dict(result)
                if partition and not asset.name.startswith(PLANS):
                    context["outlet_events"][asset].add_partitions(partition)
        return result


class ApprovePlan(ApprovalOperator):
    """Ask a person whether to publish the change, unless nothing differs, or less than the plan's threshold.

    A rejection rejects the plan and skips the downstream tasks.
    """

    operator_extra_links = (ComparisonLink(),)

    def __init__(
        self, *, dataset: str, headrace_connection: str = DEFAULT_CONNECTION, plan_task: str = "plan", **kwargs: Any
    ) -> None:
        super().__init__(subject=f"{QUESTION} ({dataset})", **kwargs)
        self.dataset, self.headrace_connection, self.plan_task = dataset, headrace_connection, plan_task

    def execute(self, context: Context) -> Any:
        """Approve by policy, or wait for a person; fails when a rule holds the plan."""
        plan = self._request(context, "POST", "/approve-by-policy", {"by": triggered_by(context)})
        if plan["stage"] != "compared":
            return {name: plan[name] for name in ("plan", "stage", "by")}
        self.log.info("plan %s needs approval", plan["plan"])
        self.subject = f"{QUESTION} {self.dataset}, {plan['about']}"
        complete = f"[the whole comparison]({PAGES}/plans/{plan['plan']}), or `headrace plan show {plan['plan']}`"
        self.body = f"{plan['comparison']}\n\nSee {complete}"
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Record the decision, then let Airflow continue or skip."""
        by = str((event.get("responded_by_user") or {}).get("name") or "somebody")
        decision = "approve" if self.APPROVE in event.get("chosen_options", ()) else "reject"
        plan = self._request(context, "GET")
        if plan["stage"] == "compared" and "error" not in event:
            plan = self._request(context, "POST", f"/{decision}", {"by": by})
        super().execute_complete(context, event)
        return {name: plan[name] for name in ("plan", "stage", "by")}

    def _request(
        self, context: Context, method: str, decision: str = "", body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        path = f"plans/{plan_of(context, self.plan_task)}{decision}"
        return HeadraceConnection(self.headrace_connection).request(method, path, body)


class RollBack(WorkOperator):
    """Roll back an applied plan: publish the previous state, advanced to the current batch."""

    path = "rollbacks"

    def body(self, context: Context) -> Mapping[str, Any]:
        """Return dataset, plan and run: a retry rolls back no other plan."""
        return {"dataset": self.dataset, "parameters": run_params(context), "origin": origin(context)}

    def by(self, context: Context) -> str:
        return triggered_by(context)

    def outcome(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        self.log.info("plan %s is rolled back; readers have batch %s", result["plan"], result["batch"])
        return result


class MaintainTables(WorkOperator):
    """Compact tables and remove what nothing needs; skipped before the first publication, and while a plan is open."""

    path = "maintenance"
    skipped = NOTHING_TO_DO


class TrimLogs(WorkOperator):
    """Trim long logs and remove old ones; returns their numbers."""

    path = "log-trims"


class RunAnalysis(WorkOperator):
    """Run a declared analysis and publish its result; returns number of the run, version and figures."""

    path = "analyses"
    skipped = NOTHING_TO_DO

    def __init__(self, *, analysis: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.analysis = analysis

    def body(self, context: Context) -> Mapping[str, Any]:
        return {"dataset": self.dataset, "analysis": self.analysis}


class ValidateTables(WorkOperator):
    """Validate every published table of the dataset; returns how many rules were evaluated, and which failed."""

    path = "validations"
    skipped = NOTHING_TO_DO
    operator_extra_links = (RuleResultsLink(),)

    def outcome(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        """Fails when a blocking rule (hold, fail) failed."""
        for sentence in result["failed"]:
            self.log.warning("failed: %s", sentence)
        if blocking := result.pop("blocking"):
            raise AirflowFailException(f"{len(blocking)} blocking rules failed; the first: {blocking[0]}")
        return result


class Audit(WorkOperator):
    """Compare Kafka, bronze, silver, rejected and gold; returns the records of each layer by dataset."""

    path = "audits"

    def body(self, context: Context) -> Mapping[str, Any]:
        return {"parameters": run_params(context)}

    def outcome(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        """Fails when a dataset is not balanced, or not all of it was checked."""
        if not result["balanced"]:
            findings = result["findings"]
            raise AirflowFailException(f"not balanced; first of {len(findings)} findings: {findings[0]}")
        return dict(result["records"])


class ReportCompleteDays(HeadraceOperator):
    """Report the days that became complete since the last run: an asset event for each table and day.

    A retry reports the same days again; consumers see a day at least once. The asset's state remembers the last one.
    """

    def execute(self, context: Context) -> list[str]:
        """Report the complete days and return them; skipped when there are none."""
        if self.dataset not in (context["ti"].xcom_pull(task_ids="audit") or {}):
            raise AirflowSkipException(f"{self.dataset}: it was not audited by this run")
        tables = [asset for asset in self.outlets if isinstance(asset, Asset)]
        memory = context["asset_state_store"][tables[0]]
        before = last_reported_before(memory.get(REPORTED), origin(context))
        after = {"after": str(before)} if before else {}
        days = self.server().request("GET", f"datasets/{self.dataset}/complete-days", None, **after)["days"]
        if days is None:
            raise AirflowSkipException(f"{self.dataset}: nothing is complete yet")
        if not days:
            raise AirflowSkipException(f"{self.dataset}: no day has become complete since {before}")
        for table in tables:
            context["outlet_events"][table].add_partitions(days)
        memory.set(REPORTED, {"run": origin(context), "before": str(before or ""), "upto": days[-1]})
        return list(days)


def last_reported_before(remembered: Any, run: str) -> date | None:
    """Return the last day that an earlier run reported; None before the first."""
    if not isinstance(remembered, dict):
        return None
    last = remembered["before"] if remembered["run"] == run else remembered["upto"]
    return date.fromisoformat(last) if last else None
