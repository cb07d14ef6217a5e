"""Owner requests between two runs: received, executed by one function for each kind, answered.

Executing a request twice has the effect of once. After a crash the request stays pending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from include.ground.errors import HeadraceError, Terminal
from include.ground.settings import Settings
from include.plans.dependants import drop_obsolete, is_due
from include.read.rejected_records import decision_log_size
from include.state.json_file import StateFileUnreadable
from include.state.owner_requests import (
    OwnerRequest,
    OwnerResponse,
    RequestKind,
    dismiss_invalid,
    pending_request,
    respond,
)
from include.state.release_files import PatchDirection, PlanBuild
from spark_jobs.backends.release import refined_batch, unfinished_run
from spark_jobs.stream.active_releases import ActiveReleases, RequestWithdrawn
from spark_jobs.stream.compaction import compact_tables
from spark_jobs.stream.expiry import expire_batches
from spark_jobs.stream.publication import begin_patch, read_built
from spark_jobs.tables.log_lines import error_reason, log_line


def receive_request(settings: Settings, dataset: str, batch: Callable[[], int]) -> OwnerRequest | None:
    """Return the pending request, unless other datasets have to move before it.

    One that can never be due is removed; an invalid one is dismissed with a response that names the refined `batch`.
    Raises OSError when its file cannot be read.
    """
    try:
        request = pending_request(settings, dataset)
        if request is None or is_due(settings, request):
            return request
        if drop_obsolete(settings, dataset) is not None:
            log_line(f"the request of {request.requester} is removed: another plan has moved what it waited for")
        return None
    except StateFileUnreadable as error:
        log_line(error.what)
        dismiss_invalid(settings, dataset, error, batch())
        return None


def send_response(settings: Settings, dataset: str, request: OwnerRequest, response: OwnerResponse) -> None:
    """Write the response; when that fails the request stays, and is executed again."""
    try:
        respond(settings, dataset, response)
    except OSError as error:
        log_line(f"the response to {request.requester} cannot be written; the request is executed again", error)


# Maximum publication delay during maintenance, apart from the compaction of one group of files.
COMPACTION_SECONDS = 20.0
Done = TypeVar("Done")


class PatchNotCurrent(Terminal):
    """The patch was built for another state than the published one; `why` names the change."""

    def __init__(self, plan: str, why: str, remedy: str) -> None:
        super().__init__(f"plan {plan}: {why}; nothing was changed", remedy)
        self.plan, self.why = plan, why


def execute(active: ActiveReleases, request: OwnerRequest) -> OwnerResponse:
    """Execute a request; return the response, which has the reason when the request was refused."""
    done, refusal = attempted(request, lambda: EXECUTE[request.kind](active, request))
    batch = refined_batch(active.published.release)
    return OwnerResponse(request.plan, request.kind, request.release, refusal.why, batch, refusal.remedy, done or {})


@dataclass(frozen=True)
class Refusal:
    """The reason of a refusal and the next command; both are empty after an executed request."""

    why: str = ""
    remedy: str = ""


def attempted(request: OwnerRequest, action: Callable[[], Done]) -> tuple[Done | None, Refusal]:
    """Return what an action for a request returned; None and the refusal when it failed."""
    try:
        return action(), Refusal()
    except HeadraceError as error:
        return None, Refusal(error.what, error.remedy)
    except Exception as error:  # noqa: BLE001  (a request that fails must not end the driver)
        log_line(f"the {request.kind} request of {request.requester} failed", error)
        return None, Refusal(f"{type(error).__name__}: {error_reason(error)}"[:300], "headrace status")


def _promote(active: ActiveReleases, request: OwnerRequest) -> Mapping[str, Any]:
    active.promote(request.release, lambda: _is_pending(active, request))
    return {}


def _retire(active: ActiveReleases, request: OwnerRequest) -> Mapping[str, Any]:
    active.retire(request.release)
    return {}


def _compact(active: ActiveReleases, _: OwnerRequest) -> Mapping[str, Any]:
    releases = [each.release for each in active.all_releases]
    owner = active.published.lease
    for each in expire_batches(active.settings, releases, datetime.now(UTC), owner.is_held):
        log_line(each.report)
    return compact_tables(active.settings, releases, COMPACTION_SECONDS, is_owner=owner.is_held)


def _rebuild_identities(active: ActiveReleases, _: OwnerRequest) -> Mapping[str, Any]:
    return {each.name: each.release.backend.rebuild_identities(each.release.writer) for each in active.all_releases}


def _patch(active: ActiveReleases, request: OwnerRequest) -> Mapping[str, Any]:
    _refuse_outdated(active, request)
    published, settings = active.published, active.settings
    # A patch is applied between two runs: finish the one that was begun.
    while unfinished_run(published.release) is not None:
        published.refine_next(settings, refined_batch(published.release), publishing=True)
    if not _is_pending(active, request):
        raise RequestWithdrawn(f"plan {request.plan}")
    begin_patch(settings, published.release, request.plan, patch_direction(request))
    active.finish_patch()
    return {}


def patch_direction(request: OwnerRequest) -> PatchDirection:
    """Return which way a request patches."""
    return PatchDirection.APPLY if request.kind is RequestKind.APPLY_PATCH else PatchDirection.REVERT


def refuse_other_build(settings: Settings, dataset: str, published: str, request: OwnerRequest) -> PlanBuild:
    """Return the build that a patch was approved for; `published` is the release.

    Raises PatchNotCurrent for another release or build.
    """
    plan = request.plan
    if request.release != published:
        why = f"it patches release {request.release}, and release {published} is published"
        raise PatchNotCurrent(plan, why, "headrace plan list")
    built = read_built(settings, dataset, published, plan)
    if built.attempt != request.attempt:
        raise PatchNotCurrent(plan, "it was rebuilt after its approval", f"headrace plan compare {plan}")
    return built


def _refuse_outdated(active: ActiveReleases, request: OwnerRequest) -> None:
    plan = request.plan
    built = refuse_other_build(active.settings, active.dataset, active.published.name, request)
    # Builds of earlier versions have None. Reverting validates no record.
    current = (None, decision_log_size(active.settings, active.dataset))
    if request.kind is RequestKind.APPLY_PATCH and built.decided_until not in current:
        why = "a decision about rejected records was made after it was built"
        raise PatchNotCurrent(plan, why, f"headrace plan compare {plan}")


def _is_pending(active: ActiveReleases, request: OwnerRequest) -> bool:
    """Whether the request still stands: its requester may withdraw it while it is prepared."""
    return pending_request(active.settings, active.dataset) == request


EXECUTE: Mapping[RequestKind, Callable[[ActiveReleases, OwnerRequest], Mapping[str, Any]]] = {
    RequestKind.PROMOTE: _promote,
    RequestKind.RETIRE: _retire,
    RequestKind.APPLY_PATCH: _patch,
    RequestKind.REVERT_PATCH: _patch,
    RequestKind.COMPACT: _compact,
    RequestKind.REBUILD_IDENTITIES: _rebuild_identities,
}
