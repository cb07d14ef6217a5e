"""The first task of a plan's run: validates the params and creates the plan; a dry run ends here.

Reads / Writes: what the planners of `include.change` do: a plan's file, no table.
Guarantee: one run has one plan: a retry or a cleared task finds the existing plan.
After a crash: the plan is written completely or not at all.
Does not: decide anything about history; `include.change` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped, TaskDeferred

from include.airflow.run_context import airflow_errors, origin, run_params, triggered_by
from include.airflow.triggers import PlanClosed
from include.ground.errors import Terminal
from include.ground.settings import load_settings

if TYPE_CHECKING:
    from include.ground.settings import Settings
    from include.plans.plan import PlanRecord

# A plan may wait for approval over a weekend; a longer wait is an error.
PATIENCE = timedelta(days=3)


class RangeMissing(Terminal):
    """A manual run has neither a range nor a partition."""

    def __init__(self) -> None:
        super().__init__(
            "the run has neither start and end nor a partition; nothing was planned",
            "trigger it with start and end, or with a partition key like 2013-01-02",
        )


class PartitionNotADay(Terminal):
    """The partition of a run is not a day."""

    def __init__(self, partition: str) -> None:
        super().__init__(
            f"partition {partition!r} is not a day; nothing was planned",
            "trigger it with a partition key like 2013-01-02",
        )
        self.partition = partition


class CreatePlan(BaseOperator):
    """Validate the run's params and create its plan. Returns the plan's id, description and number of records."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Create the plan. ParamsRefused and the planner's Terminal errors fail the task without a retry."""
        from include.change.stages import explanation

        with airflow_errors():
            record, dry_run = self.planned(load_settings(), context)
        self.log.info("\n".join(explanation(record)))
        outcome = {"plan": record.plan.id, "about": record.plan.about, "records": record.plan.predicted.records}
        if dry_run:
            self._end_dry_run(context, outcome)
        return outcome

    def planned(self, settings: Settings, context: Context) -> tuple[PlanRecord, bool]:
        """Return the run's plan, and whether this is a dry run."""
        raise NotImplementedError

    def _end_dry_run(self, context: Context, outcome: Mapping[str, Any]) -> None:
        context["ti"].xcom_push("return_value", dict(outcome))
        self.log.info("dry run: no plan is stored, nothing is built")
        raise DownstreamTasksSkipped(tasks=list(self.downstream_task_ids))


class PlanRelease(CreatePlan):
    """Plan to publish the dataset as its folder declares it now."""

    def planned(self, settings: Settings, context: Context) -> tuple[PlanRecord, bool]:
        """Plan a release."""
        from include.airflow.run_parameters import ReleaseRun, validated_params
        from include.change.release import ReleasePlan

        params = validated_params(ReleaseRun, run_params(context))
        return ReleasePlan().plan(settings, self.dataset, params.plan, *_author(context)), params.dry_run


class PlanReplay(CreatePlan):
    """Plan to recompute Kafka records. Fails while an open plan has the same records."""

    def planned(self, settings: Settings, context: Context) -> tuple[PlanRecord, bool]:
        """Plan a replay."""
        from include.airflow.run_parameters import validated_params
        from include.change.plan_parameters import ReplayParameters
        from include.change.recompute import ReplayPlan

        params = validated_params(ReplayParameters, run_params(context))
        return ReplayPlan().plan(settings, self.dataset, params, *_author(context)), params.dry_run


class PlanBackfill(CreatePlan):
    """Plan to recompute a range of event time, or a day by the calendars of the windows.

    Waits while an open plan has the same records.
    """

    def planned(self, settings: Settings, context: Context) -> tuple[PlanRecord, bool]:
        """Plan a backfill of the params' range, else of the run's partition; skip where nothing is published."""
        from include.airflow.run_parameters import BackfillRun, validated_params
        from include.change.kind import PlanConflict
        from include.change.recompute import BackfillPlan, published_windows
        from include.change.slices import RangeEmpty
        from include.declare.windows import day_range

        params = validated_params(BackfillRun, run_params(context))
        given = (params.start, params.end) if params.start and params.end else None
        since, until = given or day_range(published_windows(settings, self.dataset), day_of(context))
        try:
            plan = BackfillPlan().plan(settings, self.dataset, params.plan(since, until), *_author(context))
        except PlanConflict as error:
            self.log.info("%s: waiting until it is closed", error.what)
            raise TaskDeferred(trigger=PlanClosed(error.plan), method_name="execute", timeout=PATIENCE) from error
        except RangeEmpty as error:
            if params.start is not None:
                raise
            raise AirflowSkipException(error.what) from error
        return plan, params.dry_run


def _author(context: Context) -> tuple[str, datetime, str]:
    """Return who triggered the run, the time, and the run's origin."""
    return triggered_by(context), datetime.now(UTC), origin(context)


def day_of(context: Context) -> date:
    """Return the day of the run's partition. Raises RangeMissing, PartitionNotADay."""
    run = context["dag_run"]
    if run.partition_date is None and not run.partition_key:
        raise RangeMissing
    return run.partition_date.date() if run.partition_date else _day(str(run.partition_key))


def _day(partition: str) -> date:
    try:
        return datetime.strptime(partition, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError as error:
        raise PartitionNotADay(partition) from error
