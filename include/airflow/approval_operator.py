"""The approval task: a person approves or rejects the change.

Reads: the plan's comparison.  Writes: the decision into the plan's events.
Guarantee: data of the comparison is shown as literal text: the body is set after templates were rendered.
After a crash: the question stays; a recorded decision is not requested again.
Does not: ask when nothing differs, or less than the plan's threshold: the policy approves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context

from include.airflow.operator_links import PAGES, ComparisonLink
from include.airflow.run_context import airflow_errors, origin, triggered_by
from include.airflow.stage_operators import LOCK_TIMEOUT, LogReporter, plan_of
from include.ground.settings import load_settings

if TYPE_CHECKING:
    from include.ground.settings import Settings
    from include.plans.plan import PlanRecord

QUESTION = "Publish the change?"


class ApprovePlan(ApprovalOperator):
    """Ask whether to publish the change. A rejection rejects the plan and skips the downstream tasks."""

    operator_extra_links = (ComparisonLink(),)

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(subject=f"{QUESTION} ({dataset})", **kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> Any:
        """Approve by policy, or wait for a person. Raises PlanHeld."""
        from include.change.stages import NotApproved, run_plan
        from include.plans.journal import plan_lock
        from include.plans.plan import Stage

        settings = load_settings()
        with airflow_errors():
            record = plan_of(settings, origin(context))
            if record.stage in (Stage.APPROVED, Stage.APPLIED):
                return self._outcome(record)
            try:
                with plan_lock(settings, record.plan.id, LOCK_TIMEOUT):
                    reporter, by = LogReporter(self.log), triggered_by(context)
                    return self._outcome(run_plan(settings, record, reporter, lambda _: None, by, Stage.APPROVED))
            except NotApproved:
                self.log.info("plan %s needs approval", record.plan.id)
            self.subject = f"{QUESTION} {self.dataset}, {record.plan.about}"
            self.body = self._body(settings, record)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Record the decision, then let Airflow continue or skip."""
        from include.change.stages import approve, reject
        from include.plans.journal import plan_lock
        from include.plans.plan import Stage

        settings, by = load_settings(), str((event.get("responded_by_user") or {}).get("name") or "somebody")
        decide = approve if self.APPROVE in event.get("chosen_options", ()) else reject
        with airflow_errors():
            record = plan_of(settings, origin(context))
            with plan_lock(settings, record.plan.id, LOCK_TIMEOUT):
                if record.stage is Stage.COMPARED and "error" not in event:
                    record = decide(settings, record, by)
        super().execute_complete(context, event)
        return self._outcome(record)

    def _outcome(self, record: PlanRecord) -> dict[str, Any]:
        last = record.events[-1]
        return {"plan": record.plan.id, "stage": str(record.stage), "by": last.by}

    def _body(self, settings: Settings, record: PlanRecord) -> str:
        from include.change.comparison_view import comparison_markdown
        from include.plans.journal import load_comparison

        comparison = load_comparison(settings, record.plan.id)
        assert comparison is not None, "a compared plan has a comparison"
        complete = f"[the whole comparison]({PAGES}/plans/{record.plan.id}), or `headrace plan show {record.plan.id}`"
        return f"{comparison_markdown(comparison)}\n\nSee {complete}"
