"""The question to a person: are readers to see the change?

Reads: the plan's comparison.  Writes: the answer into the plan's journal.
Guarantee: data of the comparison is only ever shown: the body is set after templates were rendered, as literal text.
After a crash: the question stays; an answer that is in the journal is not asked for again.
Does not: ask when the comparison is equal, or within the plan's threshold: then the policy approves.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context

from include.operators.run_context import airflow_errors, origin
from include.operators.stage_operators import LOCK_TIMEOUT, plan_of
from include.settings import load_settings

if TYPE_CHECKING:
    from include.planning.plan import PlanRecord
    from include.settings import Settings

QUESTION = "Let readers see the change?"


class ApprovePlan(ApprovalOperator):
    """Ask whether readers are to see the change. Rejected: the plan is, too, and what comes after is skipped."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(subject=f"{QUESTION} ({dataset})", **kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> Any:
        """Approve by policy, or wait for a person; PlanHeld."""
        from include.planning.contract_checks import refuse_held
        from include.planning.plan import Stage
        from include.planning.plan_journal import plan_lock
        from include.planning.plan_stages import approve, needs_approval

        settings = load_settings()
        with airflow_errors():
            record = plan_of(settings, origin(context))
            if record.stage in (Stage.APPROVED, Stage.APPLIED):
                return self._said(record)
            # What a rule holds back nobody can approve, so nobody is asked.
            refuse_held(record)
            if not needs_approval(record):
                with plan_lock(settings, record.plan.id, LOCK_TIMEOUT):
                    return self._said(approve(settings, record, "policy"))
            self.subject = f"{QUESTION} {self.dataset}, {record.plan.about}"
            self.body = self._body(settings, record)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Write the answer into the plan's journal, then let Airflow go on or skip."""
        from include.planning.plan import Stage
        from include.planning.plan_journal import plan_lock
        from include.planning.plan_stages import approve, reject

        settings, by = load_settings(), str((event.get("responded_by_user") or {}).get("name") or "somebody")
        decide = approve if self.APPROVE in event.get("chosen_options", ()) else reject
        with airflow_errors():
            record = plan_of(settings, origin(context))
            with plan_lock(settings, record.plan.id, LOCK_TIMEOUT):
                if record.stage is Stage.COMPARED and "error" not in event:
                    record = decide(settings, record, by)
        super().execute_complete(context, event)
        return self._said(record)

    def _said(self, record: PlanRecord) -> dict[str, Any]:
        last = record.events[-1]
        return {"plan": record.plan.id, "stage": str(record.stage), "by": last.by}

    def _body(self, settings: Settings, record: PlanRecord) -> str:
        from include.planning.explain_plan import comparison_in_markdown
        from include.planning.plan_journal import comparison_path

        found = json.loads(comparison_path(settings, record.plan.id, "json").read_text("utf-8"))
        return f"{comparison_in_markdown(found)}\n\nAll of it: `headrace plan show {record.plan.id}`"
