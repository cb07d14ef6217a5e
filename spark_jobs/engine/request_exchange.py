"""Receives owner requests and sends the responses, for the loops of streams and derived datasets."""

from __future__ import annotations

from collections.abc import Callable

from include.reading.publication import find_publication
from include.settings import Settings
from include.state.json_file import StateFileUnreadable
from include.state.owner_requests import OwnerRequest, OwnerResponse, dismiss_invalid, pending_request, respond
from spark_jobs.log_lines import log_line


def receive_request(settings: Settings, dataset: str, batch: Callable[[], int]) -> OwnerRequest | None:
    """Return the pending request, unless other datasets have to move before it.

    An invalid one is dismissed with a response that names the refined `batch`.
    Raises OSError when its file cannot be read.
    """
    try:
        request = pending_request(settings, dataset)
        return request if request is not None and is_due(settings, request) else None
    except StateFileUnreadable as error:
        log_line(error.what)
        dismiss_invalid(settings, dataset, error, batch())
        return None


def is_due(settings: Settings, request: OwnerRequest) -> bool:
    """Return whether the releases are published that a request comes after."""
    published = ((find_publication(settings, dataset), release) for dataset, release in request.after.items())
    return all(found is not None and found.release == release for found, release in published)


def awaits_sources(settings: Settings, dataset: str) -> bool:
    """Return whether a request is pending that comes after moves of sources. Raises StateFileUnreadable."""
    request = pending_request(settings, dataset)
    return request is not None and bool(request.after)


def send_response(settings: Settings, dataset: str, request: OwnerRequest, response: OwnerResponse) -> None:
    """Write the response; when that fails the request stays, and is executed again."""
    try:
        respond(settings, dataset, response)
    except OSError as error:
        log_line(f"the response to {request.requester} cannot be written; the request is executed again", error)
