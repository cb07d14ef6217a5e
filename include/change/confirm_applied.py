"""Confirms a plan's last stage from the tables, independently of its events."""

from __future__ import annotations

from include.change.kind import Confirmation
from include.ground.app_ids import plan_app_id
from include.ground.delta_log import commits_descending, transaction_version
from include.ground.errors import Terminal
from include.ground.paths import silver_path, verified_path, warehouse
from include.ground.settings import Settings
from include.plans.plan import PlanRecord
from include.plans.stage_results import Published, Stage
from include.read.publication import Publication

# The version of the plan's transaction in each table that it changed.
TRANSACTION = {Stage.APPLIED: 1, Stage.ROLLED_BACK: 2}


class NotConfirmed(Terminal):
    """A plan's events record an outcome that the tables do not have; `why` names what is missing."""

    def __init__(self, plan: str, stage: Stage, why: str) -> None:
        super().__init__(f"plan {plan} is recorded as {stage}, but {why}", "headrace audit")
        self.plan, self.stage, self.why = plan, stage, why


def confirm_release(_: Settings, record: PlanRecord, published: Publication) -> Confirmation:
    """Confirm that the plan's release is published, or its base after a rollback. Raises NotConfirmed."""
    is_applied = record.stage is Stage.APPLIED
    expected = record.plan.release if is_applied else record.plan.base
    if published.release != expected:
        raise NotConfirmed(record.plan.id, record.stage, f"release {published.release} is published, not {expected}")
    return _confirmation(record, published, "published" if is_applied else "rolled back")


def confirm_backfill(settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
    """Confirm a backfill like any slice; an equal one by the file that verifies its range. Raises NotConfirmed.

    With other reference tables than each batch's own, an equal range is not verified and has no such file.
    """
    plan = record.plan
    if record.last(Published).changed == 0:
        if plan.records.reference is not None:
            return _confirmation(record, published, "equal with the current reference tables")
        if not verified_path(settings, plan.dataset, plan.release, plan.id).is_file():
            raise NotConfirmed(plan.id, record.stage, "its range was not recorded as verified")
        return _confirmation(record, published, "verified")
    return confirm_slice(settings, record, published)


def confirm_slice(settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
    """Confirm that the patch is committed and published. Raises NotConfirmed.

    Every patch commits to silver, also when no row of silver differs, and is published after that.
    """
    plan, name = record.plan, f"silver.{record.plan.dataset}"
    if record.last(Published).changed == 0:
        return _confirmation(record, published, "verified")
    app_id = plan_app_id(plan.dataset, plan.release, plan.id)
    transaction, silver = TRANSACTION[record.stage], silver_path(settings, plan.dataset, plan.release)
    if (transaction_version(silver, app_id) or 0) < transaction:
        raise NotConfirmed(plan.id, record.stage, f"{name} has no commit of it")
    own = (c.version for c in commits_descending(silver) if (c.app_id, c.app_version) == (app_id, transaction))
    version = next(own)
    shown = published.tables[name].version if published.release == plan.release else version
    if shown < version:
        raise NotConfirmed(plan.id, record.stage, f"{name} is published at version {shown}, before it ({version})")
    result = "corrected" if record.stage is Stage.APPLIED else "rolled back"
    return _confirmation(record, published, result, version)


def confirm_derived_backfill(settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
    """Confirm an equal backfill by the file that verifies its range, a patch by its commit in each table.

    Raises NotConfirmed.
    """
    plan, root = record.plan, warehouse(settings)
    if record.last(Published).changed == 0:
        return confirm_backfill(settings, record, published)
    app_id, transaction = plan_app_id(plan.dataset, plan.release, plan.id), TRANSACTION[record.stage]
    for name, table in published.tables.items() if published.release == plan.release else ():
        if (transaction_version(root / table.path, app_id) or 0) < transaction:
            raise NotConfirmed(plan.id, record.stage, f"{name} has no commit of it")
        newest = next((c.version for c in commits_descending(root / table.path) if c.app_id == app_id), None)
        if newest is not None and table.version < newest:
            raise NotConfirmed(plan.id, record.stage, f"{name} is published at version {table.version}, before it")
    return _confirmation(record, published, "corrected" if record.stage is Stage.APPLIED else "rolled back")


def _confirmation(
    record: PlanRecord, publication: Publication, result: str, version: int | None = None
) -> Confirmation:
    return Confirmation(record.plan.id, str(record.stage), publication.release, publication.batch, result, version)
