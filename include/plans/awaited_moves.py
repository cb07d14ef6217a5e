"""Requests to the owners of derived datasets that wait until a plan has moved their sources."""

from __future__ import annotations

from include.ground.settings import Settings
from include.read.publication import find_publication
from include.state.owner_requests import OwnerRequest, pending_request, withdraw_request


def is_due(settings: Settings, request: OwnerRequest) -> bool:
    """Return whether the releases are published that a request comes after."""
    return all(_published(settings, dataset) == release for dataset, release in request.after.items())


def can_come(settings: Settings, request: OwnerRequest) -> bool:
    """Return whether each dataset that a request comes after has one of the plan's two releases.

    With a third one published, the plan moves it no more.
    """
    return all(
        _published(settings, dataset) in (request.after[dataset], other) for dataset, other in request.instead.items()
    )


def awaited_moves(settings: Settings, request: OwnerRequest) -> str:
    """Return in words which moves a request waits for, and the command that continues them; "" when it is due."""
    missing = [f"{each} {of}" for each, of in request.after.items() if _published(settings, each) != of]
    if not missing:
        return ""
    return f"{request.requester} has to publish {', '.join(missing)} first: {request.again or 'headrace plan list'}"


def drop_obsolete(settings: Settings, dataset: str) -> OwnerRequest | None:
    """Remove the pending request if it can never be due, and return it. Raises StateFileUnreadable."""
    request = pending_request(settings, dataset)
    if request is None or can_come(settings, request):
        return None
    withdraw_request(settings, dataset)
    return request


def _published(settings: Settings, dataset: str) -> str | None:
    publication = find_publication(settings, dataset)
    return publication.release if publication is not None else None
