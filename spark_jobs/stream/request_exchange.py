"""Receives owner requests and sends the responses, for the loops of streams and derived datasets."""

from __future__ import annotations

from collections.abc import Callable

from include.ground.settings import Settings
from include.plans.awaited_moves import drop_obsolete, is_due
from include.state.json_file import StateFileUnreadable
from include.state.owner_requests import OwnerRequest, OwnerResponse, dismiss_invalid, pending_request, respond
from spark_jobs.tables.log_lines import log_line


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
