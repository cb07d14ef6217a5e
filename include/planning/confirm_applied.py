"""What became of a plan as the tables say it, whatever its journal says: before somebody is told that it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from include.clients.delta_log import commits
from include.errors import Terminal
from include.paths import silver_path, verified_path
from include.planning.plan import BACKFILL, Plan, PlanRecord, Stage
from include.reading.publication import Publication, read_publication
from include.settings import Settings

# The version of the plan's transaction in each table that it corrected.
TRANSACTION = {Stage.APPLIED: 1, Stage.ROLLED_BACK: 2}


class NotConfirmed(Terminal):
    """A plan's journal says what the tables do not; `why` is what is missing."""

    def __init__(self, plan: str, stage: Stage, why: str) -> None:
        super().__init__(f"plan {plan} is written down as {stage}, but {why}", "headrace audit")
        self.plan, self.stage, self.why = plan, stage, why


def confirm(settings: Settings, record: PlanRecord) -> Mapping[str, Any]:
    """Return what the tables say of an applied plan, or one taken back; NotInTheTables, NothingPublished."""
    seen = read_publication(settings, record.plan.dataset)
    facts = {"plan": record.plan.id, "stage": str(record.stage), "release": seen.release, "batch": seen.batch}
    if record.plan.slice is None:
        return facts | _confirm_release(record, seen)
    if record.facts_of(record.stage).get("changed") == 0:
        return facts | _confirm_equal(settings, record.plan)
    return facts | _confirm_slice(settings, record, seen)


def _confirm_release(record: PlanRecord, seen: Publication) -> dict[str, Any]:
    plan = record.plan
    wanted = plan.release if record.stage is Stage.APPLIED else plan.base
    if seen.release != wanted:
        raise NotConfirmed(plan.id, record.stage, f"readers see release {seen.release}, not {wanted}")
    return {"result": "published" if record.stage is Stage.APPLIED else "rolled back"}


def _confirm_equal(settings: Settings, plan: Plan) -> dict[str, Any]:
    if plan.kind == BACKFILL and not verified_path(settings, plan.dataset, plan.release, plan.id).is_file():
        raise NotConfirmed(plan.id, Stage.APPLIED, "nothing beside the tables says that its range was verified")
    return {"result": "verified"}


def _confirm_slice(settings: Settings, record: PlanRecord, seen: Publication) -> dict[str, Any]:
    """Each correction commits to silver, even where no row of silver differs, and is published after that."""
    plan, name = record.plan, f"silver.{record.plan.dataset}"
    app_id = f"{plan.dataset}/{plan.release}/plan/{plan.id}"
    made = {
        c.app_version: c.version
        for c in commits(silver_path(settings, plan.dataset, plan.release))
        if c.app_id == app_id
    }
    version = made.get(TRANSACTION[record.stage])
    if version is None:
        raise NotConfirmed(plan.id, record.stage, f"{name} has no commit of it")
    if seen.release == plan.release and seen.tables[name].version < version:
        raise NotConfirmed(
            plan.id, record.stage, f"readers see {name} at version {seen.tables[name].version}, before it"
        )
    return {"result": "corrected" if record.stage is Stage.APPLIED else "rolled back", "silver_version": version}
