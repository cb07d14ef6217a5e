"""Tasks on a Headrace elsewhere: keep a stream; plan, run, approve, apply, close backfills, replays, releases; audit.

Reads / Writes: what the API's server does for them; nothing here.
Guarantee: a retried or cleared task finds what its run began: the stream's request, the plan and its stages.
After a crash: a server that restarted begins again on request; plans continue from their journal.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred

from headrace_airflow.headrace_connection import DEFAULT_CONNECTION, HeadraceConnection, Refused
from headrace_airflow.remote_triggers import PlanClosed, StreamEnds, WorkDone

PATIENCE = timedelta(days=3)
RELEASED = "released"
REPLAY = ("by", "start", "end", "first_batch", "last_batch", "offsets", "source", "reference", "threshold")
ORDER = ("planned", "built", "compared", "approved", "applied")


def origin(context: Context) -> str:
    """Return the run's origin, `dag/run`: the same in a retry and in a cleared task."""
    run = context["dag_run"]
    return f"{run.dag_id}/{run.run_id}"


def triggered_by(context: Context) -> str:
    """Return who triggered the run; `airflow` for its schedule."""
    return str(getattr(context["dag_run"], "triggering_user_name", None) or "airflow")


class RemoteOperator(BaseOperator):
    """A task on a dataset of the Headrace that `headrace_connection` names."""

    def __init__(self, *, dataset: str, headrace_connection: str = DEFAULT_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset, self.headrace_connection = dataset, headrace_connection

    def server(self) -> HeadraceConnection:
        """Return the connection to the server."""
        return HeadraceConnection(self.headrace_connection)


class RunRemoteStream(RemoteOperator):
    """Request the stream, then watch it, deferred, until it is released, gives up or breaches its level."""

    def execute(self, context: Context) -> None:
        """Request the stream."""
        params, run = context["params"], origin(context)
        since = self.server().request("PUT", f"streams/{self.dataset}", {"by": run})["since"]
        self.log.info("%s: the stream is requested", self.dataset)
        level = (float(params["lag_seconds"]), float(params["grace_seconds"]))
        trigger = StreamEnds(self.headrace_connection, self.dataset, run, since, *level)
        self.defer(trigger=trigger, method_name="ended")

    def ended(self, context: Context, event: dict[str, Any]) -> str:
        """End the run: it fails unless the stream was released."""
        if event["outcome"] != RELEASED:
            raise AirflowFailException(event["why"])
        return str(event["why"])


class PlanRemotely(RemoteOperator):
    """Create the plan of the run by a request to `path`. Returns the plan."""

    path: str
    is_scheduled = False
    """Whether runs come by schedule: they wait for an open plan of the same records, and skip a day without events."""

    def chosen(self, context: Context) -> dict[str, Any]:
        """Return the plan's parameters, which the request sends as `parameters`."""
        raise NotImplementedError

    def execute(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Plan, or wait, deferred."""
        about = {"dataset": self.dataset, "by": triggered_by(context), "origin": origin(context)}
        try:
            plan = self.server().request("POST", self.path, {**about, "parameters": self.chosen(context)})
        except Refused as error:
            if not self.is_scheduled:
                raise
            if conflict := error.answer.get("conflict"):
                self.log.info("%s; waiting until it is closed", error)
                trigger = PlanClosed(self.headrace_connection, str(conflict))
                raise TaskDeferred(trigger=trigger, method_name="execute", timeout=PATIENCE) from None
            if error.answer.get("is_empty") and not context["params"].get("start"):
                raise AirflowSkipException(str(error)) from None
            raise
        self.log.info("\n".join(plan["explanation"]))
        return {name: plan[name] for name in ("plan", "about", "records")}


class PlanRemoteBackfill(PlanRemotely):
    """Plan to recompute a range of event time, else the day of the run's partition."""

    path, is_scheduled = "backfills", True

    def chosen(self, context: Context) -> dict[str, Any]:
        """Return the range, the threshold and which reference tables are joined."""
        (since, until), params = chosen_range(context), context["params"]
        chosen = {"threshold": float(params["threshold"]), "reference": params.get("reference", "as-of")}
        return {"start": since.isoformat(), "end": until.isoformat(), **chosen}


class PlanRemoteReplay(PlanRemotely):
    """Plan to recompute Kafka records: by Kafka's time, by batches, or by offsets."""

    path = "replays"

    def chosen(self, context: Context) -> dict[str, Any]:
        """Return the params that are given; the server refuses those that do not belong together."""
        given = {name: context["params"].get(name) for name in REPLAY}
        return {name: value for name, value in given.items() if value is not None}


class PlanRemoteRelease(PlanRemotely):
    """Plan to publish the dataset as its folder on Headrace's host declares it now."""

    path = "releases"

    def chosen(self, context: Context) -> dict[str, Any]:
        """Return the threshold, and the derived datasets that are released in the same plan."""
        params = context["params"]
        return {"threshold": float(params["threshold"]), "with": list(params.get("with", ()))}


class RunRemotePlan(RemoteOperator):
    """Run the stages of the plan up to `upto`, on the server; returns the plan's stage, and fails before that one."""

    def __init__(self, *, upto: str, plan_task: str = "plan", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.upto, self.plan_task = upto, plan_task

    def execute(self, context: Context) -> None:
        """Begin, or ask for what runs already."""
        plan = context["ti"].xcom_pull(task_ids=self.plan_task)["plan"]
        self.server().request("POST", f"plans/{plan}/run", {"by": triggered_by(context), "upto": self.upto})
        self.defer(trigger=WorkDone(self.headrace_connection, f"plans/{plan}"), method_name="ended", timeout=PATIENCE)

    def ended(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the plan's stage; a failure of a stage fails the task, with retries unless they cannot help."""
        work = event["work"]
        if work is None:
            raise AirflowException("the server restarted while it worked on the plan; the next try continues it")
        if work["error"]:
            raise (AirflowFailException if work["is_terminal"] else AirflowException)(work["error"])
        if event["stage"] not in ORDER[ORDER.index(self.upto) :]:
            facts = f"plan {event['plan']} is {event['stage']}, not {self.upto}; nothing was published"
            raise AirflowFailException(facts)
        return {"plan": event["plan"], "stage": event["stage"]}


class ApproveRemotePlan(ApprovalOperator):
    """Ask a person whether to publish the change, unless nothing differs, or less than the plan's threshold."""

    def __init__(
        self, *, dataset: str, headrace_connection: str = DEFAULT_CONNECTION, plan_task: str = "plan", **kwargs: Any
    ) -> None:
        super().__init__(subject=f"Publish the change? ({dataset})", **kwargs)
        self.headrace_connection, self.plan_task = headrace_connection, plan_task

    def execute(self, context: Context) -> Any:
        """Let it pass by policy, or wait for a person."""
        plan = HeadraceConnection(self.headrace_connection).request("GET", self._path(context))
        if plan["stage"] in ("approved", "applied") or (plan["stage"] == "compared" and not plan["needs_approval"]):
            return {"plan": plan["plan"], "by": "policy or an earlier decision"}
        self.body = plan["comparison"]
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Record the decision, then let Airflow continue or skip."""
        by = str((event.get("responded_by_user") or {}).get("name") or "somebody")
        decision = "approve" if self.APPROVE in event.get("chosen_options", ()) else "reject"
        if "error" not in event:
            server = HeadraceConnection(self.headrace_connection)
            if server.request("GET", self._path(context))["stage"] == "compared":
                server.request("POST", f"{self._path(context)}/{decision}", {"by": by})
        super().execute_complete(context, event)
        return {"by": by, "decision": decision}

    def _path(self, context: Context) -> str:
        return f"plans/{context['ti'].xcom_pull(task_ids=self.plan_task)['plan']}"


class CloseRemotePlan(RemoteOperator):
    """Cancel the run's plan if it is still open: as a teardown, after a failure and when a person marks the run.

    A plan that nobody will continue would keep others from the same records. The teardown alone decides the run's
    state: a task before it is no leaf of the DAG, and what a mark ends counts as skipped.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the run's plan and its stage; fails if a task of the run has failed, or the plan was open."""
        ended = {"origin": origin(context), "by": triggered_by(context)}
        found = self.server().request("POST", "ended-runs", ended)
        # A request that is repeated because its answer was lost finds the plan cancelled.
        if found["was_open"] or found["stage"] == "cancelled":
            raise AirflowFailException(f"plan {found['plan']} was not completed; it is {found['stage']}")
        if failed := failed_tasks(context):
            raise AirflowFailException(f"failed: {', '.join(failed)}; no plan is open")
        return found


class RemoteAudit(BaseOperator):
    """Check that every Kafka record is in the tables exactly once; returns the records of each layer by dataset."""

    def __init__(self, *, datasets: list[str], headrace_connection: str = DEFAULT_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.datasets, self.headrace_connection = datasets, headrace_connection

    def execute(self, context: Context) -> None:
        """Begin the audit."""
        server = HeadraceConnection(self.headrace_connection)
        body = {"datasets": self.datasets, "full": bool(context["params"].get("full")), "by": origin(context)}
        audit = server.request("POST", "audits", body)["audit"]
        self.defer(trigger=WorkDone(self.headrace_connection, f"audits/{audit}"), method_name="ended", timeout=PATIENCE)

    def ended(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the records of each layer; not balanced, or not checked, fails the task."""
        if event.get("work", event) is None:
            raise AirflowException("the server restarted during the audit; the next try audits again")
        if event["error"]:
            raise (AirflowFailException if event["is_terminal"] else AirflowException)(event["error"])
        if not event["result"]["balanced"]:
            raise AirflowFailException(f"not balanced: {'; '.join(event['result']['findings'])}")
        return dict(event["result"]["records"])


def failed_tasks(context: Context) -> list[str]:
    """Return the run's tasks that have failed."""
    run = context["dag_run"]
    states = context["ti"].get_task_states(run.dag_id, run_ids=[run.run_id])
    return sorted(task for task, state in states[run.run_id].items() if state == "failed")


def chosen_range(context: Context) -> tuple[datetime, datetime]:
    """Return the params' range of event time, else the day of the run's partition."""
    params, run = context["params"], context["dag_run"]
    if params.get("start") and params.get("end"):
        return _moment(params["start"]), _moment(params["end"])
    if run.partition_date is not None:
        return run.partition_date, run.partition_date + timedelta(days=1)
    if not run.partition_key:
        raise AirflowFailException("the run has neither start and end nor a partition; nothing was planned")
    start = datetime.strptime(str(run.partition_key), "%Y-%m-%d").replace(tzinfo=UTC)
    return start, start + timedelta(days=1)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
