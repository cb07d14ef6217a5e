"""Finds plans by the index and reads only those: the newest, the open, the last applied one, that of an Airflow run.

A request for a plan waits while another plan is created. If its run of Airflow ends first, the plan is not created:
nobody would continue it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from include.ground.errors import Refused
from include.ground.paths import ended_runs_path, plan_path
from include.ground.settings import Settings
from include.plans.index import (
    Entry,
    IndexPosition,
    applied_ids,
    damaged_entry,
    damaged_ids,
    enter,
    entry_of,
    highest_number,
    id_of_origin,
    ids_entered_since,
    ids_of_data,
    newest_ids,
    number_of_plans,
    open_ids,
    refresh_index,
    rolled_back_ids,
    stray_names,
)
from include.plans.journal import PlanUnknown, PlanUnreadable, UnreadablePlan, load_plan, planning_lock
from include.plans.plan import Applied, Plan, PlanRecord, Stage
from include.state.json_file import JsonFile


@dataclass(frozen=True)
class PlanPage:
    """Plans, newest first. `total`: the number of all plans; `unreadable`: folders that cannot be read as plans."""

    plans: Sequence[PlanRecord]
    total: int
    unreadable: Sequence[UnreadablePlan]


def newest_plans(settings: Settings, limit: int | None = None, skipped: int = 0) -> PlanPage:
    """Return `limit` plans, or all, after the `skipped` newest; `unreadable` has those known and those found here."""
    _refresh(settings)
    names, damaged = newest_ids(settings, limit, skipped), damaged_ids(settings)
    found = [_load(settings, plan) for plan in dict.fromkeys([*names, *damaged])]
    strays = [
        UnreadablePlan(plan_path(settings, name), "its name is not a plan's id") for name in stray_names(settings)
    ]
    return PlanPage(
        [record for record in found if isinstance(record, PlanRecord)],
        number_of_plans(settings),
        [*strays, *(each for each in found if isinstance(each, UnreadablePlan))],
    )


def open_plans(settings: Settings) -> list[PlanRecord]:
    """Return every open plan that can be read, in the order of their ids."""
    _refresh(settings)
    return [record for record in _readable(settings, open_ids(settings)) if record.is_open]


def find_plan(settings: Settings, origin: str) -> PlanRecord | None:
    """Return the plan of an Airflow run, None when there is none or `origin` is empty."""
    if not origin:
        return None
    _refresh(settings)
    plan = id_of_origin(settings, origin)
    records = _readable(settings, [] if plan is None else [plan])
    return next((record for record in records if record.plan.origin == origin), None)


def last_applied(settings: Settings, dataset: str) -> PlanRecord | None:
    """Return a dataset's plan that was applied last, is applied, and has changed rows; None when there is none."""
    _refresh(settings)
    records = _readable(settings, applied_ids(settings, dataset))
    return next((r for r in records if r.stage is Stage.APPLIED and r.last(Applied).changed != 0), None)


def rolled_back_by(settings: Settings, dataset: str, by: str) -> PlanRecord | None:
    """Return a dataset's newest plan that `by` has rolled back, None when there is none."""
    _refresh(settings)
    records = _readable(settings, rolled_back_ids(settings, dataset, by))
    return next((r for r in records if any(e.stage is Stage.ROLLED_BACK and e.by == by for e in r.events)), None)


def plans_of_data(settings: Settings, dataset: str) -> list[PlanRecord]:
    """Return a dataset's plans that may need or leave data. Raises PlanUnreadable: any data may be such a plan's."""
    found = (plan_of(settings, dataset, plan) for plan in plan_ids_of_data(settings, dataset))
    return [record for record in found if record is not None]


def plan_of(settings: Settings, dataset: str, plan: str) -> PlanRecord | None:
    """Return a plan, None when it is another dataset's or not written. Raises PlanUnreadable, unless its remains name
    another dataset.
    """
    try:
        record = written_plan(settings, plan)
    except PlanUnreadable as error:
        if error.found.dataset in ("", dataset):
            raise
        return None
    return record if record is not None and dataset in record.plan.datasets else None


def plan_ids_of_data(settings: Settings, dataset: str) -> list[str]:
    """Return the ids of the plans that `plans_of_data` reads."""
    _refresh(settings)
    return ids_of_data(settings, dataset)


def plans_entered_since(settings: Settings, position: IndexPosition) -> tuple[list[str], IndexPosition]:
    """Return the ids of plans that are new since a position, and the new position; some may not be written yet."""
    _refresh(settings)
    return ids_entered_since(settings, position)


def written_plan(settings: Settings, plan: str) -> PlanRecord | None:
    """Return a plan, None before it is written or when it is gone. Raises PlanUnreadable."""
    try:
        return load_plan(settings, plan)
    except PlanUnknown:
        return None


def next_plan_id(settings: Settings, kind: str, dataset: str) -> str:
    """Return an id that no plan has: `release-flights-3`."""
    _refresh(settings)
    series = f"{kind}-{dataset}"
    return f"{series}-{highest_number(settings, series) + 1}"


def advance_index(settings: Settings, end: float) -> bool:
    """Enter plans that have no entry until `end` (monotonic); return whether nothing is missing any more."""
    return refresh_index(settings, lambda plan: _entry(_load(settings, plan), plan), end)


def _refresh(settings: Settings) -> None:
    """Enter plans that were added by hand, and plans that were damaged and can be read again."""
    advance_index(settings, math.inf)
    for record in _readable(settings, damaged_ids(settings)):
        enter(settings, entry_of(record))


def _entry(found: PlanRecord | UnreadablePlan | None, plan: str) -> Entry:
    if isinstance(found, PlanRecord):
        return entry_of(found)
    return damaged_entry(plan, "" if found is None else found.dataset or "")


def _readable(settings: Settings, plans: Iterable[str]) -> Iterator[PlanRecord]:
    """Yield those of the plans that can be read."""
    found = (_load(settings, plan) for plan in plans)
    return (record for record in found if isinstance(record, PlanRecord))


def _load(settings: Settings, plan: str) -> PlanRecord | UnreadablePlan | None:
    """Return a plan, what is damaged of it, or None before it is written or when it is gone."""
    try:
        return written_plan(settings, plan)
    except PlanUnreadable as error:
        return error.found


KEPT = timedelta(hours=1)
"""Longer than any request waits."""


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
    """Refuse when the run of a new plan has ended since it requested the plan. Needs the planning lock."""
    ended = _ended_runs(settings).get(plan.origin)
    if ended is not None and plan.planned_at <= ended:
        what = f"run {plan.origin} has ended; its plan was not created"
        raise Refused(what, "clear the run, or trigger another one", code="run-ended", origin=plan.origin)


def _ended_runs(settings: Settings) -> dict[str, datetime]:
    # A damaged file must not keep plans from being created.
    return _file(settings).read_if_valid() or {}


def _file(settings: Settings) -> JsonFile[dict[str, datetime]]:
    return JsonFile(ended_runs_path(settings), dict[str, datetime])
