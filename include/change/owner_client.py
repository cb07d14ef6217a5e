"""Requests to the owner of a dataset's tables: the stream, or a job started here when no stream runs.

Reads / Writes: the request and its response (include/state/owner_requests.py), a job's log.
Guarantee: a request without a waiting requester is withdrawn.
After a crash: a request that was not withdrawn is executed once.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from include.change.bounded_jobs import JobFailed, run_job
from include.ground.await_progress import NoProgress, Waiting
from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.settings import Settings
from include.observe.ledger_writer import open_writer, project_dataset
from include.observe.processes import is_expected, observe_stream
from include.plans.awaited_moves import drop_obsolete
from include.state.owner_requests import OwnerRequest, OwnerResponse, find_response, submit_request, withdraw_request
from include.state.process_signs import process_signs
from include.state.process_states import stream_name

RESPONSE_IDLE = 300.0
"""Seconds without progress of the owner after which a request is withdrawn."""


class RequestRefused(Terminal):
    """The owner of the tables refused the request of `requester`; `why` is its reason."""

    def __init__(self, requester: str, why: str, remedy: str) -> None:
        super().__init__(
            f"{requester}: the stream refused: {why}; what readers see is unchanged", remedy or "headrace status"
        )
        self.requester, self.why = requester, why


class NoResponse(Transient):
    """The owner did not respond; `why` says what it did instead. The request was withdrawn."""

    def __init__(self, requester: str, why: str) -> None:
        super().__init__(
            f"{requester}: the stream did not respond, it {why}; the request was withdrawn",
            "headrace status, then the same command again",
        )
        self.requester = requester


def request_owner(settings: Settings, dataset: str, request: OwnerRequest, *, is_kept: bool = False) -> OwnerResponse:
    """Submit a request and return the response. One that is kept stays pending when this process stops waiting.

    Raises RequestPending, RequestRefused, NoResponse, JobFailed, JobDied.
    """
    drop_obsolete(settings, dataset)
    submit_request(settings, dataset, request)
    try:
        if is_expected(observe_stream(settings, dataset)):
            response = _awaited(settings, dataset, request)
        else:
            response = _executed_by_job(settings, dataset, request)
    except BaseException:
        # Without a waiting requester it must not be executed later.
        if not is_kept:
            withdraw_request(settings, dataset)
        raise
    if response.refused:
        raise RequestRefused(request.requester, response.refused, response.remedy)
    return response


def _executed_by_job(settings: Settings, dataset: str, request: OwnerRequest) -> OwnerResponse:
    name, again = request.plan or f"maintain-{dataset}", request.again if request.plan else request.requester
    done = run_job(settings, name, dataset, ("spark_jobs.jobs.request_job", dataset), lambda _: None, again)
    response = find_response(settings, dataset, request)
    project_now(settings, dataset)
    if response is None:
        raise JobFailed(name, str(done.get("failed", "the job gave no response")), str(done.get("remedy", "")))
    return response


def _awaited(settings: Settings, dataset: str, request: OwnerRequest) -> OwnerResponse:
    def response() -> OwnerResponse | None:
        found = find_response(settings, dataset, request)
        if found is None and not is_expected(observe_stream(settings, dataset)):
            raise NoResponse(request.requester, "has ended")
        return found

    signs = partial(process_signs, settings, stream_name(dataset))
    try:
        return Waiting(request.requester, signs, idle=RESPONSE_IDLE).until(response, 0.05)
    except NoProgress as error:
        raise NoResponse(request.requester, error.why) from error


def project_now(settings: Settings, dataset: str) -> None:
    """Project the new commits into the ledger; if it is not available, the stream or a rebuild does it later."""
    with suppress(HeadraceError):
        project_dataset(open_writer(settings), settings, dataset)
