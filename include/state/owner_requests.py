"""Owner requests: what a plan or a command requests from the process that owns a dataset's tables.

Guarantee: a request stays until the owner has responded; executing it twice has the effect of executing it once.
After a crash: the next owner finds the request and executes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from include.ground.errors import Transient
from include.ground.paths import request_path
from include.ground.settings import Settings
from include.state.json_file import JsonFile, StateFileUnreadable


class RequestKind(StrEnum):
    """What can be requested from the owner."""

    PROMOTE = "promote"
    """Publish a release in place of the published one."""
    RETIRE = "retire"
    """Stop advancing a shadow release; its tables stay."""
    APPLY_PATCH = "apply_patch"
    """Replace rows of the published release by the rows that a plan has built."""
    REVERT_PATCH = "revert_patch"
    """Put back the rows that the plan's patch replaced."""
    COMPACT = "compact"
    """Compact small files and remove obsolete ones."""
    REBUILD_IDENTITIES = "rebuild_identities"
    """Build the identity indexes of the active releases again."""
    LOAD = "load"
    """Commit records of the release's last set of files to bronze; repeated until the set is loaded."""

    @classmethod
    def _missing_(cls, value: object) -> RequestKind | None:
        """Requests written by earlier versions used other values."""
        former = {"correct": cls.APPLY_PATCH, "undo": cls.REVERT_PATCH, "maintain": cls.COMPACT}
        return former.get(str(value))


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class OwnerRequest:
    """A request about `release`; `plan` is the plan that submitted it, "" for a command."""

    plan: str
    kind: RequestKind
    release: str
    attempt: str = ""
    """The build of the plan that a patch was approved for."""
    after: Mapping[str, str] = field(default_factory=dict)
    """By dataset, the releases that must be published first; until then the request waits."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """By the same datasets, the plan's other releases: with a third one published the request is never due."""
    again: str = ""
    """The command that continues what the request is part of."""

    @property
    def requester(self) -> str:
        command = "repair --identities" if self.kind is RequestKind.REBUILD_IDENTITIES else "maintain"
        return f"plan {self.plan}" if self.plan else f"headrace {command}"


@dataclass(frozen=True)
class OwnerResponse:
    """The owner's response: `refused` is the reason for a refusal, "" when it executed the request.

    `batch` is the published batch after the request, `remedy` the next command after a refusal, `done` the result.
    """

    plan: str
    kind: str
    release: str
    refused: str
    batch: int
    remedy: str = ""
    done: Mapping[str, Any] = field(default_factory=dict)

    def answers(self, request: OwnerRequest) -> bool:
        return (self.plan, self.kind, self.release) == (request.plan, request.kind, request.release)


def request_file(settings: Settings, dataset: str) -> JsonFile[OwnerRequest]:
    """Return the file of the pending request."""
    path = request_path(settings, dataset)
    return JsonFile(path, OwnerRequest, f'rm "{path}", then the same command again', "the request was ignored")


def response_file(settings: Settings, dataset: str) -> JsonFile[OwnerResponse]:
    """Return the file of the owner's last response."""
    path = request_path(settings, dataset).with_suffix(".answer.json")
    return JsonFile(path, OwnerResponse, f'rm "{path}", then the same command again')


def pending_request(settings: Settings, dataset: str) -> OwnerRequest | None:
    """Return the request that has no response yet. Raises StateFileUnreadable."""
    return request_file(settings, dataset).read()


def find_response(settings: Settings, dataset: str, request: OwnerRequest) -> OwnerResponse | None:
    """Return the response to `request`; None until it is written and the request removed. Raises StateFileUnreadable.

    A requester that continued between the two could submit its next request while this one still counts as pending.
    """
    response = response_file(settings, dataset).read()
    if response is None or not response.answers(request) or pending_request(settings, dataset) == request:
        return None
    return response


def submit_request(settings: Settings, dataset: str, request: OwnerRequest) -> None:
    """Submit a request; again changes nothing. Raises Transient (`request-pending`) when another one is pending.

    A request of the same plan that waits for moves of sources is replaced: the plan goes the other way now.
    """
    pending = pending_request(settings, dataset)
    is_replaced = pending is not None and bool(pending.after) and pending.plan == request.plan
    if pending is not None and pending != request and not is_replaced:
        raise Transient(
            f"{dataset}: the request of {pending.requester} is still pending; nothing was submitted",
            f"{pending.again or 'headrace status'}, then the same command again",
            code="request-pending",
        )
    response_file(settings, dataset).remove()
    request_file(settings, dataset).write(request)


def withdraw_request(settings: Settings, dataset: str) -> None:
    """Remove the pending request."""
    request_file(settings, dataset).remove()


def withdraw_own_request(settings: Settings, dataset: str, plan: str) -> None:
    """Remove the pending request if the plan submitted it."""
    request = pending_request(settings, dataset)
    if request is not None and request.plan == plan:
        withdraw_request(settings, dataset)


def respond(settings: Settings, dataset: str, response: OwnerResponse) -> None:
    """Write the response, then remove its request: a crash in between leaves the request to be executed again."""
    response_file(settings, dataset).write(response)
    pending = pending_request(settings, dataset)
    # The requester may have withdrawn it meanwhile, and another may have submitted one.
    if pending is not None and response.answers(pending):
        withdraw_request(settings, dataset)


def dismiss_invalid(settings: Settings, dataset: str, error: StateFileUnreadable, batch: int) -> None:
    """Remove an invalid request, so that it blocks no other; respond if its requester can be identified.

    Raises OSError when the file could not be read at all: the request may be valid.
    """
    if isinstance(error.__cause__, OSError):
        raise error.__cause__
    facts = [error.content.get(key) for key in ("plan", "kind", "release")]
    if all(isinstance(fact, str) for fact in facts):
        plan, kind, release = map(str, facts)
        response = OwnerResponse(plan, kind, release, error.what, batch, "headrace status")
        response_file(settings, dataset).write(response)
    withdraw_request(settings, dataset)
