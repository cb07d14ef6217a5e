"""What release plans have in common, of datasets with a topic and of derived ones: read the build, publish, revert."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from include.change.jobs import request_owner
from include.change.kind import AlreadyPublished, Confirmation, Given, NotConfirmed, PlanKind, confirmation
from include.change.readers import refuse_broken_readers, refuse_rollback
from include.ground.errors import HeadraceError, Terminal
from include.ground.settings import Settings
from include.plans.plan import Plan, PlanRecord
from include.plans.sources import drop_obsolete
from include.plans.stage_results import Applied, ReleaseBuilt, RolledBack, Stage
from include.read.publication import Publication, find_publication, read_publication
from include.state.owner_requests import (
    OwnerRequest,
    RequestKind,
    pending_request,
    submit_request,
    withdraw_own_request,
)
from include.state.release_files import active_releases_file


class OtherReleasePublished(Terminal):
    """Neither of the plan's two releases is published: another plan was applied in between."""

    def __init__(self, plan: Plan, published: str) -> None:
        super().__init__(
            f"plan {plan.id} is about releases {plan.base} and {plan.release}, {published} is published; "
            "nothing was done",
            "headrace plan list",
        )
        self.plan, self.published = plan.id, published


class HalfMoved(Terminal):
    """Some datasets of the plan have moved, and the owner of `part` did not follow: `error` says why."""

    def __init__(self, plan: Plan, part: Plan, error: HeadraceError) -> None:
        super().__init__(
            f"plan {plan.id} is between its moves: {part.dataset} still has the release of before ({error.what})",
            f"the same command again continues; until it is applied, headrace plan cancel {plan.id} moves all back",
        )
        self.plan, self.part = plan, part


class ReleaseKind(PlanKind[Given]):
    """A kind that publishes another release, of datasets with a topic and of derived ones."""

    builds_whole_tables = True

    def explain_apply(self, plan: Plan) -> str:
        """Say what replaces what."""
        own = f"publish release {plan.release} in place of {plan.base}, all tables in one publication"
        return own + "".join(f", then {m.dataset} {m.release} in place of {m.base}" for m in plan.members)

    def refuse_applied(self, settings: Settings, plan: Plan) -> None:
        """Raise AlreadyPublished when the releases of all datasets of the plan are published."""
        if all(_published(settings, part) == part.release for part in plan.parts):
            raise AlreadyPublished(plan.id)

    def read_build(self, output: Mapping[str, Any], seconds: float) -> ReleaseBuilt:
        """Return the job's figures."""
        return read_release_build(output, seconds)

    def refuse_apply(self, settings: Settings, record: PlanRecord) -> None:
        """Refuse while a running reader would stand still."""
        refuse_broken_readers(settings, record)

    def apply(self, settings: Settings, record: PlanRecord) -> Applied:
        """Have the plan's release published."""
        began = time.monotonic()
        return Applied(batch=_move(settings, record.plan, _released, "apply"), seconds=_since(began))

    def confirm(self, settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
        """Confirm that the plan's release is published, or its base after a rollback. Raises NotConfirmed."""
        is_applied = record.stage is Stage.APPLIED
        expected = record.plan.release if is_applied else record.plan.base
        if published.release != expected:
            raise NotConfirmed(
                record.plan.id, record.stage, f"release {published.release} is published, not {expected}"
            )
        return confirmation(record, published, "published" if is_applied else "rolled back")

    def refuse_revert(self, settings: Settings, record: PlanRecord) -> None:
        """Raise DependantsBreak while the rollback would stop a running reader."""
        refuse_rollback(settings, record)

    def revert(self, settings: Settings, record: PlanRecord) -> RolledBack:
        """Publish the state of before."""
        began = time.monotonic()
        return RolledBack(batch=_move(settings, record.plan, _base, "rollback"), seconds=_since(began))

    def drop_build(self, settings: Settings, plan: Plan) -> None:
        """Publish the bases of a plan that is cancelled between the moves of its datasets.

        Its release is maintained no longer: as a shadow without a plan it could be neither released again nor retired.
        """
        if any(_published(settings, part) == part.release for part in plan.parts):
            _move(settings, plan, _base, "cancel")
        if plan.release in (active_releases_file(settings, plan.dataset).read() or ()):
            retire = OwnerRequest(plan.id, RequestKind.RETIRE, plan.release, again=_command(plan, "cancel"))
            request_owner(settings, plan.dataset, retire)


def read_release_build(output: Mapping[str, Any], seconds: float) -> ReleaseBuilt:
    """Return the result of a build job's last output; `members` has the outputs of the other jobs of the plan."""
    parts = {key: output[key] for key in ("built", "published", "seen", "analysed") if key in output}
    members = {name: read_release_build(each, 0.0) for name, each in output.get("members", {}).items()}
    batch = output["built"]["batch"]
    return ReleaseBuilt.model_validate({**parts, "members": members, "batch": batch, "seconds": seconds})


def _move(settings: Settings, plan: Plan, target: Callable[[Plan], str], decision: str) -> int:
    """Have one of the two releases of each dataset of the plan published, the same for all; return the plan's batch.

    `decision` is the command on the plan that moves them, and continues a move that was interrupted.

    The owner of a derived dataset gets its request first and executes it when its sources have moved: it never follows
    them with its other release, also when this process is killed in between. Moving twice moves once (adr-0001).
    """
    first, *others = plan.parts
    _refuse_other_releases(settings, plan)
    waiting = [part for part in others if _has_to_move(settings, part, target) or _has_own_request(settings, part)]
    try:
        for part in waiting:
            drop_obsolete(settings, part.dataset)
            submit_request(settings, part.dataset, _request(plan, part, target, decision))
        batch = _publish(settings, first, _request(plan, first, target, decision))
    except BaseException:
        if _has_to_move(settings, first, target):
            # Those that are at the target already would follow the source back: their requests hold them there.
            for part in waiting:
                if _has_to_move(settings, part, target):
                    withdraw_own_request(settings, part.dataset, plan.id)
        raise
    for part in waiting:
        try:
            _publish(settings, part, _request(plan, part, target, decision))
        except HeadraceError as error:
            raise HalfMoved(plan, part, error) from error
    return batch


def _request(plan: Plan, part: Plan, target: Callable[[Plan], str], decision: str) -> OwnerRequest:
    """Return the request for a part of a plan, which is due when the parts before it are published."""
    earlier = plan.parts[: plan.datasets.index(part.dataset)]
    return OwnerRequest(
        plan.id,
        RequestKind.PROMOTE,
        target(part),
        after={each.dataset: target(each) for each in earlier},
        instead={each.dataset: each.base if target(each) == each.release else each.release for each in earlier},
        again=_command(plan, decision),
    )


def _command(plan: Plan, decision: str) -> str:
    return f"headrace plan {decision} {plan.id}"


def _publish(settings: Settings, part: Plan, request: OwnerRequest) -> int:
    """Have a release published; return the batch. Publishing it twice publishes it once."""
    publication = read_publication(settings, part.dataset)
    if publication.release == request.release and not _has_own_request(settings, part):
        return publication.batch
    return request_owner(settings, part.dataset, request, is_kept=bool(request.after)).batch


def _refuse_other_releases(settings: Settings, plan: Plan) -> None:
    for part in plan.parts:
        published = read_publication(settings, part.dataset).release
        if published not in (part.base, part.release):
            raise OtherReleasePublished(part, published)


def _has_to_move(settings: Settings, part: Plan, target: Callable[[Plan], str]) -> bool:
    return _published(settings, part) != target(part)


def _has_own_request(settings: Settings, part: Plan) -> bool:
    """Return whether the owner has, and perhaps executes, a request of the part's plan."""
    pending = pending_request(settings, part.dataset)
    return pending is not None and pending.plan == part.id


def _published(settings: Settings, part: Plan) -> str | None:
    publication = find_publication(settings, part.dataset)
    return publication.release if publication is not None else None


def _released(part: Plan) -> str:
    return part.release


def _base(part: Plan) -> str:
    return part.base


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)
