"""The stages of a plan as tasks: each finds the plan of its run and runs it up to the task's stage.

Reads / Writes: what `include.change.stages` does.
Guarantee: completed stages are not executed again; a stage that another process executes is waited for; a task succeeds
when the tables confirm it.
After a crash: a build's process ends with its task; the next try continues or repeats the build.
Does not: decide anything about history; `include.change` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator, Context

from include.airflow.dag_defaults import PLANS
from include.airflow.operator_links import ComparisonLink
from include.airflow.run_context import airflow_errors, origin, run_params, triggered_by
from include.ground.errors import Terminal
from include.ground.settings import load_settings

if TYPE_CHECKING:
    from include.change.stages import PlanStage
    from include.ground.settings import Settings
    from include.plans.plan import PlanRecord

# A process that a killed task left behind may still be working on the plan.
LOCK_TIMEOUT = 1800.0


class PlanMissing(Terminal):
    """The run has no plan: its first task did not create one."""

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} has no plan; nothing was done", "clear the run's first task, or trigger a new run")
        self.run = run


class PlanEnded(Terminal):
    """The run's plan was rejected, cancelled or rolled back."""

    def __init__(self, plan: str, stage: str) -> None:
        super().__init__(f"plan {plan} is {stage}; nothing was done", "trigger a new run: it creates a new plan")
        self.plan, self.stage = plan, stage


class NothingApplied(Terminal):
    """No plan of the dataset is applied, so none can be rolled back."""

    def __init__(self, dataset: str) -> None:
        super().__init__(f"{dataset}: no plan is applied; nothing was rolled back", "headrace plan list")
        self.dataset = dataset


class OtherDataset(Terminal):
    """The requested plan belongs to another dataset."""

    def __init__(self, plan: str, dataset: str) -> None:
        super().__init__(f"plan {plan} is not about {dataset}; nothing was rolled back", "headrace plan list")
        self.plan, self.dataset = plan, dataset


def plan_of(settings: Settings, run: str) -> PlanRecord:
    """Return the plan of an Airflow run. Raises PlanMissing."""
    from include.plans.lookup import find_plan

    record = find_plan(settings, run)
    if record is None:
        raise PlanMissing(run)
    return record


class LogReporter:
    """Writes a run of a plan into the task's log."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def begin(self, stage: PlanStage) -> None:
        """Log the stage that begins."""
        self._log.info("%s: %s", stage.name, stage.description)

    def progress(self, facts: Mapping[str, Any]) -> None:
        """Log the progress of the stage's job."""
        self._log.info("%s", progress_line(facts))

    def done(self, stage: PlanStage, record: PlanRecord) -> None:
        """Log the plan's new stage."""
        self._log.info("plan %s is %s", record.plan.id, record.stage)


def progress_line(facts: Mapping[str, Any]) -> str:
    """Return what a stage's job reports as a sentence."""
    if "of" in facts:
        return f"{facts['at']}: {facts['done']:,} of {facts['of']:,} done"
    if "comparing" in facts:
        return f"comparing {facts['comparing']}"
    if "failed" in facts:
        return f"the job failed: {facts['failed']}"
    return "the job has finished" if "built" in facts else ", ".join(f"{name} {value}" for name, value in facts.items())


class RunPlan(BaseOperator):
    """Runs the plan of the run up to a stage; stages that are completed are not executed again."""

    upto: str

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the remaining stages under the plan's lock; return the result."""
        from include.change.stages import run_plan
        from include.plans.journal import load_plan, plan_lock
        from include.plans.plan import OPEN, Stage

        settings = load_settings()
        with airflow_errors():
            plan = plan_of(settings, origin(context)).plan.id
            with plan_lock(settings, plan, LOCK_TIMEOUT):
                record = load_plan(settings, plan)
                if record.stage not in (*OPEN, Stage.APPLIED):
                    raise PlanEnded(plan, record.stage)
                reporter, by = LogReporter(self.log), triggered_by(context)
                # Approval is the task before this one: nobody approves here.
                record = run_plan(settings, record, reporter, lambda _: None, by, Stage(self.upto))
                return {"plan": plan, **self.outcome(settings, record)}

    def outcome(self, settings: Settings, record: PlanRecord) -> dict[str, Any]:
        """Return what the task returns, next to the plan's id."""
        raise NotImplementedError


class BuildPlan(RunPlan):
    """Build the plan without touching production, by a job that is a process of this task."""

    upto = "built"

    def outcome(self, settings: Settings, record: PlanRecord) -> dict[str, Any]:
        """Return the result of the build."""
        from include.plans.plan import Built, result_json

        return result_json(record.last(Built))


class ComparePlan(RunPlan):
    """Compare the build with what is published."""

    upto = "compared"
    operator_extra_links = (ComparisonLink(),)

    def outcome(self, settings: Settings, record: PlanRecord) -> dict[str, Any]:
        """Return the result of the comparison, and the path of its page."""
        from include.plans.journal import comparison_path
        from include.plans.plan import Compared, result_json

        page = comparison_path(settings, record.plan.id, "html")
        return {**result_json(record.last(Compared)), "page": str(page)}


class ApplyPlan(RunPlan):
    """Publish the plan's outcome, all tables in one publication."""

    upto = "applied"
    operator_extra_links = (ComparisonLink(),)

    def outcome(self, settings: Settings, record: PlanRecord) -> dict[str, Any]:
        """Return the confirmation from the tables."""
        return confirmed(settings, record)

    def execute(self, context: Context) -> dict[str, Any]:
        """Apply, and emit the asset events: those of tables under the run's partition if it has one."""
        outcome = super().execute(context)
        partition = context["dag_run"].partition_key
        for asset in self.outlets:
            if isinstance(asset, Asset):
                context["outlet_events"][asset].extra = dict(outcome)
                if partition and not asset.name.startswith(PLANS):
                    context["outlet_events"][asset].add_partitions(partition)
        return outcome


def confirmed(settings: Settings, record: PlanRecord) -> dict[str, Any]:
    """Return the confirmation of an applied or rolled back plan, from the tables.."""
    from include.change.stages import confirm

    return {name: value for name, value in asdict(confirm(settings, record)).items() if value is not None}


class RollBack(BaseOperator):
    """Roll back an applied plan: publish the previous state, advanced to the current batch."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> dict[str, Any]:
        """Roll back, unless this run already did; succeeds when the tables confirm it."""
        from include.airflow.run_parameters import RollbackParameters, validated_params
        from include.change.stages import roll_back
        from include.plans.journal import load_plan, plan_lock
        from include.plans.plan import Stage

        settings, by = load_settings(), f"{triggered_by(context)} ({origin(context)})"
        with airflow_errors():
            plan = self._plan_id(settings, validated_params(RollbackParameters, run_params(context)).plan, by)
            with plan_lock(settings, plan, LOCK_TIMEOUT):
                record = load_plan(settings, plan)
                if record.stage is not Stage.ROLLED_BACK:
                    record = roll_back(settings, record, by)
                return confirmed(settings, record)

    def _plan_id(self, settings: Settings, named: str, by: str) -> str:
        """Return the named plan, else the one that this run rolled back before, else the last one applied."""
        from include.plans.journal import load_plan
        from include.plans.lookup import last_applied, rolled_back_by

        if named:
            if self.dataset not in load_plan(settings, named).plan.datasets:
                raise OtherDataset(named, self.dataset)
            return named
        found = rolled_back_by(settings, self.dataset, by) or last_applied(settings, self.dataset)
        if found is None:
            raise NothingApplied(self.dataset)
        return found.plan.id
