"""Owner requests: what a plan, or `headrace maintain`, requests from the process that owns a dataset's tables.

Reads / Writes: one request file and one response file for each dataset.
Guarantee: a request stays until the owner has responded; executing it twice has the effect of executing it once.
After a crash: the next owner finds the request and executes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from include.errors import Terminal, Transient
from include.paths import request_path
from include.settings import Settings
from include.state.atomic_files import write_atomically

T = TypeVar("T")


class RequestKind(StrEnum):
    """What the owner can be requested to do."""

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

    @classmethod
    def _missing_(cls, value: object) -> RequestKind | None:
        """Requests written by earlier versions used other values."""
        former = {"correct": cls.APPLY_PATCH, "undo": cls.REVERT_PATCH, "maintain": cls.COMPACT}
        return former.get(str(value))


class RequestPending(Transient):
    """The owner has not responded to an earlier request, which `requester` submitted."""

    def __init__(self, dataset: str, requester: str) -> None:
        super().__init__(
            f"{dataset}: the request of {requester} is still pending; nothing was submitted",
            "headrace status, then the same command again",
        )
        self.dataset, self.requester = dataset, requester


class InvalidRequest(Terminal):
    """The request file holds no request that this version knows. `content` is the file's JSON object, if it is one."""

    def __init__(self, path: Path, why: str, content: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"invalid owner request {path}: {why}; ignored", f'rm "{path}", then the same command again')
        self.path, self.content = path, content or {}


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class OwnerRequest:
    """A request about `release`; `plan` is the plan that submitted it, "" for maintenance."""

    plan: str
    kind: RequestKind
    release: str
    attempt: str = ""
    """The build of the plan that a patch was approved for."""

    @property
    def requester(self) -> str:
        """Name of the requester in messages."""
        return f"plan {self.plan}" if self.plan else "headrace maintain"


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
        """Whether this is the response to `request`."""
        return (self.plan, self.kind, self.release) == (request.plan, request.kind, request.release)


def pending_request(settings: Settings, dataset: str) -> OwnerRequest | None:
    """Return the request that has no response yet. Raises InvalidRequest."""
    return _read(request_path(settings, dataset), TypeAdapter(OwnerRequest))


def find_response(settings: Settings, dataset: str, request: OwnerRequest) -> OwnerResponse | None:
    """Return the response to `request`, None while there is none. Raises InvalidRequest."""
    response = _read(response_path(settings, dataset), TypeAdapter(OwnerResponse))
    return response if response is not None and response.answers(request) else None


def submit_request(settings: Settings, dataset: str, request: OwnerRequest) -> None:
    """Submit a request; submitting it again changes nothing. Raises RequestPending when another one is pending."""
    pending = pending_request(settings, dataset)
    if pending is not None and pending != request:
        raise RequestPending(dataset, pending.requester)
    response_path(settings, dataset).unlink(missing_ok=True)
    write_atomically(request_path(settings, dataset), json.dumps(asdict(request)))


def withdraw_request(settings: Settings, dataset: str) -> None:
    """Remove the pending request."""
    request_path(settings, dataset).unlink(missing_ok=True)


def respond(settings: Settings, dataset: str, response: OwnerResponse) -> None:
    """Write the response, then remove its request: a crash in between leaves the request to be executed again."""
    write_atomically(response_path(settings, dataset), json.dumps(asdict(response)))
    pending = pending_request(settings, dataset)
    # The requester may have withdrawn it meanwhile, and another may have submitted one.
    if pending is not None and response.answers(pending):
        withdraw_request(settings, dataset)


def dismiss_invalid(settings: Settings, dataset: str, error: InvalidRequest, batch: int) -> None:
    """Remove an invalid request, so that it blocks no other; respond if its requester can be identified."""
    facts = [error.content.get(key) for key in ("plan", "kind", "release")]
    if all(isinstance(fact, str) for fact in facts):
        plan, kind, release = map(str, facts)
        response = OwnerResponse(plan, kind, release, error.what, batch, "headrace status")
        write_atomically(response_path(settings, dataset), json.dumps(asdict(response)))
    withdraw_request(settings, dataset)


def response_path(settings: Settings, dataset: str) -> Path:
    """File of the owner's last response."""
    return request_path(settings, dataset).with_suffix(".answer.json")


def _read(path: Path, shape: TypeAdapter[T]) -> T | None:
    try:
        content = json.loads(path.read_text("utf-8"))
        return shape.validate_python(content)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        why = f"{where} {first['input']!r}: {first['msg']}" if where else first["msg"]
        raise InvalidRequest(path, why, content if isinstance(content, dict) else None) from error
    except ValueError as error:
        raise InvalidRequest(path, f"not JSON ({error})") from error
