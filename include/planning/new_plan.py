"""A plan gets its id when it is written; a dry run writes nothing."""

from __future__ import annotations

from dataclasses import replace

from include.plans.plan import Plan, PlanRecord
from include.plans.plan_journal import save_plan
from include.plans.plan_lookup import next_plan_id
from include.settings import Settings


def write_new_plan(settings: Settings, draft: Plan, *, dry_run: bool) -> PlanRecord:
    """Write a plan under the next free id of its kind and dataset; return that of a dry run as it is."""
    if dry_run:
        return PlanRecord(draft, ())
    return save_plan(settings, replace(draft, id=next_plan_id(settings, draft.kind, draft.dataset)))
