"""Runs of Airflow that have ended: a plan that such a run requested before its end is not created.

A request for a plan waits while another plan is created. If its run ends meanwhile, nobody would continue the plan.

Reads / Writes: a file of the runs that ended in the last hour without a plan.
Guarantee: a plan that a run has requested is found here when the run ends, or refused when it is to be written.
Does not: refuse what the run requests after its end, as a run does that was cleared.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from include.ground.errors import Terminal
from include.ground.paths import ended_runs_path
from include.ground.settings import Settings
from include.plans.plan import Plan, PlanRecord
from include.plans.plan_journal import planning_lock
from include.plans.plan_lookup import find_plan
from include.state.json_file import JsonFile

KEPT = timedelta(hours=1)
"""Longer than any request waits."""


class RunEnded(Terminal):
    """The run of Airflow that requested a plan has ended before the plan was written."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"run {origin} has ended; its plan was not created", "clear the run, or trigger another one")
        self.origin = origin


def plan_of_ended_run(settings: Settings, origin: str, now: datetime) -> PlanRecord | None:
    """Return the plan of a run that has ended; if it has none, what it requested before `now` creates none.

    A plan that is being created is waited for. Raises PlanBusy when that takes too long. Commands have no run: their
    origin is empty.
    """
    found = find_plan(settings, origin) if origin else None
    if found is not None or not origin:
        return found
    with planning_lock(settings):
        found = find_plan(settings, origin)
        if found is None:
            kept = {run: at for run, at in _ended_runs(settings).items() if now - at < KEPT}
            _file(settings).write({**kept, origin: now})
        return found


def refuse_ended_run(settings: Settings, plan: Plan) -> None:
    """Raise RunEnded when the run of a new plan has ended since it requested the plan. Needs the planning lock."""
    ended = _ended_runs(settings).get(plan.origin)
    if ended is not None and plan.planned_at <= ended:
        raise RunEnded(plan.origin)


def _ended_runs(settings: Settings) -> dict[str, datetime]:
    # A damaged file must not keep plans from being created.
    return _file(settings).read_if_valid() or {}


def _file(settings: Settings) -> JsonFile[dict[str, datetime]]:
    return JsonFile(ended_runs_path(settings), dict[str, datetime])
