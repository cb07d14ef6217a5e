"""What the owner of a dataset's tables is asked, and its answer: the stream, or a job of our own when none runs.

Reads / Writes: the order and its answer (supervision/orders.py), a job's log.
Guarantee: an order that nobody waits for any more is taken back.
After a crash: an order that was not taken back is obeyed once.
Does not: decide what is asked.
"""

from __future__ import annotations

import time
from contextlib import suppress

from include.errors import HeadraceError, Terminal, Transient
from include.ledger.ledger_writer import open_writer
from include.ledger.project_commits import project_dataset
from include.planning.bounded_jobs import JobFailed, run_job
from include.settings import Settings
from include.state.owner_requests import OwnerRequest, OwnerResponse, find_response, submit_request, withdraw_request
from include.status.process_status import is_expected, observe_stream

RESPONSE_TIMEOUT = 300.0


class RequestRefused(Terminal):
    """The owner of the tables did not obey; `why` is what it said, `whose` who asked."""

    def __init__(self, whose: str, why: str, remedy: str) -> None:
        super().__init__(f"{whose}: the stream refused: {why}; readers see what they saw", remedy or "headrace status")
        self.requester, self.why = whose, why


class NoResponse(Transient):
    """The owner has not answered in time; the order was taken back."""

    def __init__(self, whose: str, seconds: float) -> None:
        super().__init__(
            f"{whose}: the stream did not answer within {seconds:.0f} s, or is gone; the order was taken back",
            "headrace status, then the same command again",
        )
        self.requester = whose


def request_owner(settings: Settings, dataset: str, order: OwnerRequest) -> OwnerResponse:
    """Ask, wait, and return the answer; RequestPending, OrderRefused, NoAnswer, JobFailed, JobDied."""
    submit_request(settings, dataset, order)
    try:
        if is_expected(observe_stream(settings, dataset)):
            answer = _awaited(settings, dataset, order)
        else:
            answer = _obeyed_by_job(settings, dataset, order)
    except BaseException:
        # An order that nobody waits for must not be obeyed some day.
        withdraw_request(settings, dataset)
        raise
    if answer.refused:
        raise RequestRefused(order.requester, answer.refused, answer.remedy)
    return answer


def _obeyed_by_job(settings: Settings, dataset: str, order: OwnerRequest) -> OwnerResponse:
    name, again = order.plan or f"maintain-{dataset}", "" if order.plan else "headrace maintain"
    done = run_job(settings, name, ("spark_jobs.jobs.request_job", dataset), lambda _: None, again)
    answer = find_response(settings, dataset, order)
    project_now(settings, dataset)
    if answer is None:
        raise JobFailed(name, str(done.get("failed", "the job gave no answer")), str(done.get("remedy", "")))
    return answer


def _awaited(settings: Settings, dataset: str, order: OwnerRequest) -> OwnerResponse:
    began = time.monotonic()
    while time.monotonic() < began + RESPONSE_TIMEOUT:
        answer = find_response(settings, dataset, order)
        if answer is not None:
            return answer
        if not is_expected(observe_stream(settings, dataset)):
            break
        time.sleep(0.05)
    raise NoResponse(order.requester, time.monotonic() - began)


def project_now(settings: Settings, dataset: str) -> None:
    """Let the ledger know now; one that does not answer is brought on by the stream, or by a rebuild."""
    with suppress(HeadraceError):
        project_dataset(open_writer(settings), settings, dataset)
