"""What release plans have in common, of datasets with a topic and of derived ones: read the build, publish, revert."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from include.errors import Terminal
from include.planning.confirm_applied import confirm_release
from include.planning.owner_client import request_owner
from include.planning.plan_kind import PlanKind, nothing
from include.planning.plan_parameters import PlanParameters
from include.planning.plan_preconditions import AlreadyPublished
from include.plans.plan import Plan, PlanRecord
from include.plans.stage_results import Applied, ReleaseBuilt, RolledBack
from include.reading.publication import find_publication, read_publication
from include.settings import Settings
from include.state.owner_requests import OwnerRequest, RequestKind


class OtherReleasePublished(Terminal):
    """Neither of the plan's two releases is published: another plan was applied in between."""

    def __init__(self, plan: Plan, published: str) -> None:
        super().__init__(
            f"plan {plan.id} is about releases {plan.base} and {plan.release}, {published} is published; "
            "nothing was done",
            "headrace plan list",
        )
        self.plan, self.published = plan.id, published


def release_kind(name: str, parameters: type[PlanParameters], **functions: Any) -> PlanKind:
    """Return a kind of plan that publishes a release; `functions` are those that differ, and may replace `apply`."""
    common: dict[str, Callable[..., Any]] = {
        "describe_apply": lambda plan: (
            f"publish release {plan.release} in place of {plan.base}, all tables in one publication"
        ),
        "refuse_applied": _refuse_published,
        "read_build": read_release_build,
        "record_comparison": nothing,
        "apply": apply_release,
        "confirm": confirm_release,
        "refuse_revert": nothing,
        "revert": _revert,
        "drop_build": nothing,
        "undo_decisions": nothing,
    }
    return PlanKind(name=name, parameters=parameters, builds_whole_tables=True, **{**common, **functions})


def read_release_build(output: Mapping[str, Any], seconds: float) -> ReleaseBuilt:
    """Return the result of a build job's last output."""
    parts = {key: output[key] for key in ("built", "published", "seen") if key in output}
    return ReleaseBuilt.model_validate({**parts, "batch": output["built"]["batch"], "seconds": seconds})


def apply_release(settings: Settings, record: PlanRecord) -> Applied:
    """Have the plan's release published."""
    began = time.monotonic()
    return Applied(batch=_publish(settings, record.plan, record.plan.release), seconds=_since(began))


def _revert(settings: Settings, record: PlanRecord) -> RolledBack:
    began = time.monotonic()
    return RolledBack(batch=_publish(settings, record.plan, record.plan.base), seconds=_since(began))


def _publish(settings: Settings, plan: Plan, release: str) -> int:
    """Have one of the plan's two releases published; return the batch. Publishing it twice publishes it once."""
    publication = read_publication(settings, plan.dataset)
    if publication.release not in (plan.base, plan.release):
        raise OtherReleasePublished(plan, publication.release)
    if publication.release == release:
        return publication.batch
    return request_owner(settings, plan.dataset, OwnerRequest(plan.id, RequestKind.PROMOTE, release)).batch


def _refuse_published(settings: Settings, plan: Plan) -> None:
    """Raise AlreadyPublished when the plan's release is published."""
    publication = find_publication(settings, plan.dataset)
    if publication is not None and publication.release == plan.release:
        raise AlreadyPublished(plan.id)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)
