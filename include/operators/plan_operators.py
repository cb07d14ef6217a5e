"""The first task of a plan's run: what was asked for is judged, then planned; a dry run ends here.

Reads / Writes: what the planners of `include.planning` do: a plan's file, no table.
Guarantee: one run is one plan: a retry, or a task that was cleared, finds the plan that was made before.
After a crash: the plan was written whole, or not at all.
Does not: decide anything about history; `include.planning` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped, TaskDeferred

from include.errors import Terminal
from include.operators.run_context import airflow_errors, origin, run_params, triggered_by
from include.operators.triggers import PlanClosed
from include.settings import load_settings

if TYPE_CHECKING:
    from include.operators.run_parameters import BackfillParameters, ReleaseParameters, ReplayParameters
    from include.planning.plan import PlanRecord
    from include.settings import Settings

# A plan that waits for its approval over a weekend is no reason to fail; one that nobody will ever close is.
PATIENCE = timedelta(days=3)


class NoRange(Terminal):
    """A run by hand that names neither a range nor a partition."""

    def __init__(self) -> None:
        super().__init__(
            "the run has neither start and end nor a partition; nothing was planned",
            "trigger it with start and end, or with a partition key like 2013-01-02",
        )


class NoDay(Terminal):
    """The partition of a run is no day."""

    def __init__(self, partition: str) -> None:
        super().__init__(
            f"partition {partition!r} is no day; nothing was planned", "trigger it with a partition key like 2013-01-02"
        )
        self.partition = partition


class MakePlan(BaseOperator):
    """Judge what the run was asked for, and plan it. Returns the plan's id, what it is about, how many records."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Plan; ParamsRefused and the planner's own errors fail the task for good."""
        from include.planning.explain_plan import explanation

        with airflow_errors():
            record, dry_run = self.planned(load_settings(), context)
        self.log.info("\n".join(explanation(record)))
        said = {"plan": record.plan.id, "about": record.plan.about, "records": record.plan.predicted.records}
        if dry_run:
            self._drop(record, context, said)
        return said

    def planned(self, settings: Settings, context: Context) -> tuple[PlanRecord, bool]:
        """Return the run's plan, made now or before, and whether it was only to be explained."""
        raise NotImplementedError

    def _drop(self, record: PlanRecord, context: Context, said: Mapping[str, Any]) -> None:
        from include.planning.plan_stages import cancel

        if record.is_open:
            cancel(load_settings(), record, f"{triggered_by(context)} (dry run)")
        context["ti"].xcom_push("return_value", dict(said))
        self.log.info("dry run: nothing is built")
        raise DownstreamTasksSkipped(tasks=list(self.downstream_task_ids))


class PlanRelease(MakePlan):
    """Plan to let readers see the dataset as its folder says now."""

    def planned(self, settings: Settings, context: Context) -> tuple[PlanRecord, bool]:
        """Plan a release."""
        from include.operators.run_parameters import ReleaseParameters, validated_params
        from include.planning.release_plan import plan_release

        asked: ReleaseParameters = validated_params(ReleaseParameters, run_params(context))
        who, wish = (triggered_by(context), datetime.now(UTC), asked.threshold), origin(context)
        return plan_release(settings, self.dataset, *who, origin=wish), asked.dry_run


class PlanReplay(MakePlan):
    """Plan to do Kafka records again; another open plan of the same records refuses it."""

    def planned(self, settings: Settings, context: Context) -> tuple[PlanRecord, bool]:
        """Plan a replay."""
        from include.operators.run_parameters import ReplayParameters, validated_params
        from include.planning.slice_plan import plan_replay

        asked: ReplayParameters = validated_params(ReplayParameters, run_params(context))
        who = (triggered_by(context), datetime.now(UTC), asked.threshold, asked.reference, origin(context))
        return plan_replay(settings, self.dataset, asked.wanted, asked.source, *who), asked.dry_run


class PlanBackfill(MakePlan):
    """Plan to do a day again, or a range of event time; an open plan of the same records is waited for."""

    def planned(self, settings: Settings, context: Context) -> tuple[PlanRecord, bool]:
        """Plan a backfill of what was asked, else of the run's partition; skip where nothing was published."""
        from include.operators.run_parameters import BackfillParameters, validated_params
        from include.planning.release_plan import PlanConflict
        from include.planning.slice_plan import RangeEmpty, plan_backfill

        asked: BackfillParameters = validated_params(BackfillParameters, run_params(context))
        since, until = (asked.start, asked.end) if asked.start and asked.end else day_of(context)
        who = (triggered_by(context), datetime.now(UTC), asked.threshold, asked.reference, origin(context))
        try:
            return plan_backfill(settings, self.dataset, since, until, *who), asked.dry_run
        except PlanConflict as error:
            self.log.info("%s: waiting until it is closed", error.what)
            raise TaskDeferred(trigger=PlanClosed(error.plan), method_name="execute", timeout=PATIENCE) from error
        except RangeEmpty as error:
            if asked.start is not None:
                raise
            raise AirflowSkipException(error.what) from error


def day_of(context: Context) -> tuple[datetime, datetime]:
    """Return the day of the run's partition, half-open; NoRange, NoDay."""
    run = context["dag_run"]
    if run.partition_date is None and not run.partition_key:
        raise NoRange
    start = run.partition_date or _midnight(str(run.partition_key))
    return start, start + timedelta(days=1)


def _midnight(partition: str) -> datetime:
    try:
        return datetime.strptime(partition, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise NoDay(partition) from error
