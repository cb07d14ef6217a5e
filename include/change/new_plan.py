"""A plan gets its id when it is written; a dry run writes nothing."""

from __future__ import annotations

from dataclasses import replace

from include.ground.settings import Settings
from include.plans.ended_runs import refuse_ended_run
from include.plans.plan import Plan, PlanRecord
from include.plans.plan_journal import save_plan
from include.plans.plan_lookup import next_plan_id


def write_new_plan(settings: Settings, draft: Plan, *, dry_run: bool) -> PlanRecord:
    """Write a plan under the next free id of its kind and dataset; return that of a dry run as it is.

    Raises RunEnded when its run of Airflow has ended since it requested the plan.
    """
    if dry_run:
        return PlanRecord(draft, ())
    refuse_ended_run(settings, draft)
    return save_plan(settings, replace(draft, id=next_plan_id(settings, draft.kind, draft.dataset)))
