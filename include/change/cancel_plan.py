"""Cancels a plan whose build or checks may still be executed."""

from __future__ import annotations

from include.change.bounded_jobs import end_plan_job
from include.change.plan_stages import cancel
from include.ground.settings import Settings
from include.plans.plan import PlanRecord, validate_stage
from include.plans.plan_journal import load_plan, plan_lock
from include.plans.stage_results import Stage


def end_and_cancel(settings: Settings, plan: str, by: str, wait: float) -> PlanRecord:
    """End the plan's job, wait up to `wait` seconds for its lock, and cancel it.

    Raises PlanUnknown and StageRefused before anything is ended; PlanBusy; AlreadyPublished.
    """
    validate_stage(load_plan(settings, plan), Stage.CANCELLED)
    end_plan_job(settings, plan, by)
    with plan_lock(settings, plan, wait):
        return cancel(settings, load_plan(settings, plan), by)
