"""Owner requests between two runs: received, executed, answered; and what an owner can do with its releases.

Executing a request twice has the effect of once. After a crash the request stays pending.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from include.ground.errors import HeadraceError, Refused, Terminal
from include.ground.paths import patch_path
from include.ground.settings import Settings
from include.plans.dependants import drop_obsolete, is_due
from include.state.json_file import JsonFile, StateFileUnreadable
from include.state.owner_requests import (
    OwnerRequest,
    OwnerResponse,
    RequestKind,
    dismiss_invalid,
    pending_request,
    respond,
)
from include.state.release_files import (
    PatchDirection,
    PatchInProgress,
    PlanBuild,
    patch_in_progress_file,
    plan_build_file,
)
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.stream.compaction import CompactedTable
from spark_jobs.stream.expiry import RetainedTables
from spark_jobs.tables.failpoints import Step, pass_step
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


def outdated_patch(plan: str, why: str, remedy: str) -> Refused:
    """Return the error of a patch that was built for another state than the published one; `why` names the change."""
    return Refused(f"plan {plan}: {why}; nothing was changed", remedy, code="patch-not-current", plan=plan)


def withdrawn(subject: str) -> Refused:
    """Return the error of a request that its requester withdrew while it was prepared."""
    what = f"the request for {subject} was withdrawn; nothing was changed"
    return Refused(what, "headrace plan list", code="request-withdrawn")


class Owned(ABC):
    """The releases of a dataset that this process owns: the published one, and others that it keeps current.

    A patch is recorded before its first commit; no run begins before it is finished.
    """

    settings: Settings

    @property
    @abstractmethod
    def dataset(self) -> str:
        """The dataset's name."""

    @property
    @abstractmethod
    def release_name(self) -> str:
        """The name of the published release."""

    @property
    def advanced_names(self) -> list[str]:
        """The names of the releases that are kept current, unpublished."""
        return []

    @property
    @abstractmethod
    def batch(self) -> int:
        """The last batch, or run, that all tables of the published release have; -1: none."""

    @abstractmethod
    def compactable(self) -> Iterator[CompactedTable]:
        """Yield the tables that may be compacted now."""

    @abstractmethod
    def retained(self) -> RetainedTables:
        """Return all tables, and which of their versions stay readable."""

    @abstractmethod
    def promote(self, name: str, is_pending: Callable[[], bool] = lambda: True) -> None:
        """Publish another release. `is_pending` is evaluated last. Raises Refused when it is false."""

    @abstractmethod
    def retire(self, name: str) -> None:
        """Stop advancing a release that is not published."""

    @abstractmethod
    def compact(self) -> Mapping[str, Any]:
        """Compact small files and remove obsolete ones; return by table what was done."""

    def rebuild_identities(self) -> Mapping[str, Any]:
        """Rebuild the index of identities; return by release what was done."""
        what = f"{self.dataset} is derived: it executes no {RequestKind.REBUILD_IDENTITIES} request; nothing was done"
        raise Refused(what, "headrace status", code="request-not-known", dataset=self.dataset)

    def load(self, release: str) -> Mapping[str, Any]:
        """Commit records of the last set of files of a release to bronze; return how far that is."""
        raise Refused(f"{self.dataset} has no bronze; nothing was loaded", "headrace lineage", code="nothing-to-load")

    @abstractmethod
    def finish_runs(self) -> None:
        """Finish the run that was begun, if there is one."""

    @abstractmethod
    def apply_patch(self, recorded: PatchInProgress, folder: PlanFolder) -> None:
        """Commit a patch to each table that lacks it. Raises PatchOutdated before the first commit."""

    @abstractmethod
    def has_commit_of(self, recorded: PatchInProgress) -> bool:
        """Whether a commit of a patch was made, so that it must be finished."""

    @abstractmethod
    def republish(self) -> None:
        """Publish the tables as they are now."""

    @abstractmethod
    def refuse_decided(self, plan: str, built: PlanBuild) -> None:
        """Raise Refused when records that a patch was built from have been decided otherwise since."""

    def answer(self, request: OwnerRequest) -> OwnerResponse:
        """Execute a request; return the response, which has the reason when the request was refused."""
        why = remedy = ""
        done: Mapping[str, Any] = {}
        try:
            done = self._executed(request)
        except HeadraceError as error:
            why, remedy = error.what, error.remedy
        except Exception as error:  # noqa: BLE001  (a request that fails must not end the driver)
            log_line(f"the {request.kind} request of {request.requester} failed", error)
            why, remedy = f"{type(error).__name__}: {error_reason(error)}"[:300], "headrace status"
        return OwnerResponse(request.plan, request.kind, request.release, why, self.batch, remedy, done)

    def _executed(self, request: OwnerRequest) -> Mapping[str, Any]:
        match request.kind:
            case RequestKind.PROMOTE:
                self.promote(request.release, lambda: self._is_pending(request))
            case RequestKind.RETIRE:
                self.retire(request.release)
            case RequestKind.COMPACT:
                return self.compact()
            case RequestKind.REBUILD_IDENTITIES:
                return self.rebuild_identities()
            case RequestKind.LOAD:
                return self.load(request.release)
            case RequestKind.APPLY_PATCH | RequestKind.REVERT_PATCH:
                self._patch(request)
        return {}

    def _is_pending(self, request: OwnerRequest) -> bool:
        """Whether the request still stands: its requester may withdraw it while it is prepared."""
        return pending_request(self.settings, self.dataset) == request

    def _patch(self, request: OwnerRequest) -> None:
        """Apply or revert the patch of a plan. Raises Refused, and what a patch raises."""
        built, is_applied = self._current_build(request), request.kind is RequestKind.APPLY_PATCH
        if is_applied:
            # Reverting validates no record.
            self.refuse_decided(request.plan, built)
        # A patch is applied between two runs: finish the one that was begun.
        self.finish_runs()
        if not self._is_pending(request):
            raise withdrawn(f"plan {request.plan}")
        self.begin_patch(request.plan, PatchDirection.APPLY if is_applied else PatchDirection.REVERT)
        self.finish_patch()

    def _current_build(self, request: OwnerRequest) -> PlanBuild:
        """Return the build that a patch was approved for. Raises Refused for another release or build."""
        plan, published = request.plan, self.release_name
        if request.release != published:
            why = f"it patches release {request.release}, and release {published} is published"
            raise outdated_patch(plan, why, "headrace plan list")
        built = self.read_built(plan)
        if built.attempt != request.attempt:
            raise outdated_patch(plan, "it was rebuilt after its approval", f"headrace plan compare {plan}")
        return built

    def read_built(self, plan: str) -> PlanBuild:
        """Return what a plan's build recorded. Raises Terminal when it is not complete, StateFileUnreadable."""
        file = plan_build_file(self.settings, self.dataset, self.release_name, plan)
        built = file.read()
        if built is None:
            raise Terminal(f"plan {plan} has no complete build ({file.path})", file.remedy)
        return built

    @property
    def is_patching(self) -> bool:
        """Whether a patch was begun and is not finished."""
        return self._patch_file.path.exists()

    def begin_patch(self, plan: str, direction: PatchDirection) -> None:
        """Record a patch; `finish_patch` applies or reverts it."""
        self._patch_file.write(PatchInProgress(plan, direction))

    def finish_patch(self) -> None:
        """Apply the recorded patch, if there is one, and publish. Raises PatchOutdated and others.

        An error removes the record unless a table has a commit of the patch.
        """
        file = self._patch_file
        recorded = file.read()
        if recorded is None:
            return
        folder = PlanFolder(patch_path(self.settings, self.dataset, self.release_name, recorded.plan))
        try:
            self.apply_patch(recorded, folder)
        except Exception:
            if not self.has_commit_of(recorded):
                file.remove()
            raise
        self.republish()
        pass_step(Step.PATCH_PUBLISHED)
        file.remove()

    def resume_patch(self) -> None:
        """Finish a patch in progress; drop one without a commit that cannot be applied, raise for one with a commit."""
        try:
            self.finish_patch()
        except HeadraceError as error:
            if self.is_patching:
                raise
            log_line(f"patch dropped before its first commit: {error.what}")

    @property
    def _patch_file(self) -> JsonFile[PatchInProgress]:
        return patch_in_progress_file(self.settings, self.dataset, self.release_name)
