"""The stages of a plan as tasks: each finds its plan by the run that it belongs to, and does what is left of its stage.

Reads / Writes: what `include.planning.plan_stages` does.
Guarantee: work that is done is not done again, work that another process is still at is waited for; a task succeeds
when the tables say what it says.
After a crash: a build's process ends with its task; the next try goes on, or begins the build anew.
Does not: decide anything about history; `include.planning` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator, Context

from include.errors import Terminal
from include.operators.operator_links import ComparisonLink
from include.operators.run_context import airflow_errors, origin, run_params, triggered_by
from include.settings import load_settings

if TYPE_CHECKING:
    from include.planning.plan import PlanRecord, Stage
    from include.settings import Settings

# A process that a killed task left behind may still be at work on the plan.
LOCK_TIMEOUT = 1800.0


class NoPlan(Terminal):
    """The run has no plan: its first task did not make one."""

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} has no plan; nothing was done", "clear the run's first task, or trigger a new run")
        self.run = run


class PlanEnded(Terminal):
    """The run's plan was rejected, cancelled or taken back, by whomever."""

    def __init__(self, plan: str, stage: str) -> None:
        super().__init__(f"plan {plan} is {stage}; nothing was done", "trigger a new run: it makes a new plan")
        self.plan, self.stage = plan, stage


class NothingApplied(Terminal):
    """No plan of the dataset is applied, so none can be taken back."""

    def __init__(self, dataset: str) -> None:
        super().__init__(f"{dataset}: no plan is applied; nothing was taken back", "headrace plan list")
        self.dataset = dataset


class OtherDataset(Terminal):
    """The plan that was named is about another dataset."""

    def __init__(self, plan: str, dataset: str) -> None:
        super().__init__(f"plan {plan} is not about {dataset}; nothing was taken back", "headrace plan list")
        self.plan, self.dataset = plan, dataset


def plan_of(settings: Settings, wish: str) -> PlanRecord:
    """Return the plan of a run; NoPlan."""
    from include.planning.plan_journal import find_plan

    record = find_plan(settings, wish)
    if record is None:
        raise NoPlan(wish)
    return record


class PlanStage(BaseOperator):
    """A stage of the run's plan, done unless it is behind the plan already."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> dict[str, Any]:
        """Do the stage under the plan's lock; return what the plan says of it."""
        from include.planning.plan import OPEN, Stage
        from include.planning.plan_journal import load_plan, plan_lock

        settings = load_settings()
        with airflow_errors():
            plan = plan_of(settings, origin(context)).plan.id
            with plan_lock(settings, plan, LOCK_TIMEOUT):
                record = load_plan(settings, plan)
                if record.stage not in (*OPEN, Stage.APPLIED):
                    raise PlanEnded(plan, record.stage)
                return self.work(settings, record, triggered_by(context))

    def work(self, settings: Settings, record: PlanRecord, by: str) -> dict[str, Any]:
        """Do what is left of the stage."""
        raise NotImplementedError

    def is_done(self, record: PlanRecord, stage: Stage) -> bool:
        """Tell whether the plan has come so far, and say so."""
        done = list(type(stage)).index(record.stage) >= list(type(stage)).index(stage)
        if done:
            self.log.info("plan %s is %s already: nothing is done again", record.plan.id, record.stage)
        return done


class BuildPlan(PlanStage):
    """Build beside production what the plan is about."""

    def work(self, settings: Settings, record: PlanRecord, by: str) -> dict[str, Any]:
        """Run the plan's job as a process of this task, and log how far it is."""
        from include.planning.plan import Stage
        from include.planning.plan_stages import build

        if not self.is_done(record, Stage.BUILT):
            record = build(settings, record, by, lambda said: self.log.info("%s", dict(said)))
        return {"plan": record.plan.id, **record.facts_of(Stage.BUILT)}


class ComparePlan(PlanStage):
    """Compare what was built with what readers see."""

    operator_extra_links = (ComparisonLink(),)

    def work(self, settings: Settings, record: PlanRecord, by: str) -> dict[str, Any]:
        """Compare; the page is kept beside the plan."""
        from include.planning.plan import Stage
        from include.planning.plan_journal import comparison_path
        from include.planning.plan_stages import compare_built

        if not self.is_done(record, Stage.COMPARED):
            record, _ = compare_built(settings, record, by, lambda said: self.log.info("%s", dict(said)))
        page = str(comparison_path(settings, record.plan.id, "html"))
        return {"plan": record.plan.id, **record.facts_of(Stage.COMPARED), "page": page}


class ApplyPlan(PlanStage):
    """Let readers see the plan's outcome, all tables in one move."""

    operator_extra_links = (ComparisonLink(),)

    def work(self, settings: Settings, record: PlanRecord, by: str) -> dict[str, Any]:
        """Have the owner of the tables apply it, then look at the tables."""
        from include.planning.confirm_applied import confirm
        from include.planning.plan import Stage
        from include.planning.plan_stages import apply

        if not self.is_done(record, Stage.APPLIED):
            record = apply(settings, record, by)
        return dict(confirm(settings, record))

    def execute(self, context: Context) -> dict[str, Any]:
        """Apply, and tell those who wait for the tables: under the run's partition where it has one."""
        said = super().execute(context)
        partition = context["dag_run"].partition_key
        for asset in self.outlets:
            if isinstance(asset, Asset):
                context["outlet_events"][asset].extra = dict(said)
                if partition:
                    context["outlet_events"][asset].add_partitions(partition)
        return said


class RollBack(BaseOperator):
    """Take an applied plan back: readers see what they saw before it, as fresh as it is now."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> dict[str, Any]:
        """Roll back, unless this run did; success when the tables say so."""
        from include.operators.run_parameters import RollbackParameters, validated_params
        from include.planning.confirm_applied import confirm
        from include.planning.plan import Stage
        from include.planning.plan_journal import load_plan, plan_lock
        from include.planning.plan_stages import roll_back

        settings, by = load_settings(), f"{triggered_by(context)} ({origin(context)})"
        with airflow_errors():
            plan = self._meant(settings, validated_params(RollbackParameters, run_params(context)).plan, by)
            with plan_lock(settings, plan, LOCK_TIMEOUT):
                record = load_plan(settings, plan)
                if record.stage is not Stage.ROLLED_BACK:
                    record = roll_back(settings, record, by)
                return dict(confirm(settings, record))

    def _meant(self, settings: Settings, named: str, by: str) -> str:
        """Return the plan that was named, or taken back by this run before, or applied last."""
        from include.planning.plan import Stage
        from include.planning.plan_journal import all_plans, load_plan

        if named:
            if load_plan(settings, named).plan.dataset != self.dataset:
                raise OtherDataset(named, self.dataset)
            return named
        ours = [record for record in all_plans(settings) if record.plan.dataset == self.dataset]
        mine = [r for r in ours if any(e.stage is Stage.ROLLED_BACK and e.by == by for e in r.events)]
        # A verified backfill is applied too, and has changed nothing that could be taken back.
        changing = (r for r in ours if r.stage is Stage.APPLIED and r.facts_of(Stage.APPLIED).get("changed") != 0)
        applied = sorted(changing, key=lambda r: r.events[-1].at)
        if not (mine or applied):
            raise NothingApplied(self.dataset)
        return (mine or applied)[-1].plan.id
