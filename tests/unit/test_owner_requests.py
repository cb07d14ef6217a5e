"""Owner requests on disk: values of earlier versions are read, invalid requests are named and dismissed."""

from __future__ import annotations

import json

import pytest

from include.ground.paths import request_path
from include.ground.settings import Settings
from include.state.json_file import StateFileUnreadable
from include.state.owner_requests import (
    OwnerRequest,
    OwnerResponse,
    RequestKind,
    dismiss_invalid,
    find_response,
    pending_request,
    respond,
    response_file,
    submit_request,
)

MINE = OwnerRequest("replay-flights-1", RequestKind.PROMOTE, "aaa")


def write(settings: Settings, text: str) -> None:
    path = request_path(settings, "flights")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("correct", RequestKind.APPLY_PATCH),
        ("undo", RequestKind.REVERT_PATCH),
        ("maintain", RequestKind.COMPACT),
        *((kind.value, kind) for kind in RequestKind),
    ],
)
def test_request_of_an_earlier_version_is_read(settings: Settings, value: str, kind: RequestKind) -> None:
    write(settings, json.dumps({"plan": "replay-flights-1", "kind": value, "release": "aaa", "attempt": "one"}))
    assert pending_request(settings, "flights") == OwnerRequest("replay-flights-1", kind, "aaa", "one")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"plan": "p", "kind": "jump", "release": "r"}', "key kind: .*'jump'"),
        ('{"plan": 1, "kind": "retire", "release": "r"}', "key plan: .*1"),
        ('{"plan": "p", "kind": "retire", "release": "r", "more": 1}', "key more: .*1"),
        ('{"plan": "p"}', "key kind: "),
        ("[1]", "object"),
        ('{"plan": ', "not JSON"),
    ],
)
def test_invalid_request_is_named_and_dismissed(settings: Settings, text: str, why: str) -> None:
    write(settings, text)
    with pytest.raises(StateFileUnreadable, match=f"cannot be read: .*{why}.*; the request was ignored") as invalid:
        pending_request(settings, "flights")
    dismiss_invalid(settings, "flights", invalid.value, batch=7)
    assert pending_request(settings, "flights") is None
    submit_request(settings, "flights", MINE)
    assert pending_request(settings, "flights") == MINE


def test_requester_of_an_unknown_kind_gets_a_refusal(settings: Settings) -> None:
    write(settings, '{"plan": "replay-flights-1", "kind": "promote", "release": "aaa", "more": 1}')
    with pytest.raises(StateFileUnreadable) as invalid:
        pending_request(settings, "flights")
    dismiss_invalid(settings, "flights", invalid.value, batch=7)
    response = find_response(settings, "flights", MINE)
    assert response is not None
    assert (response.refused, response.batch) == (invalid.value.what, 7)


def test_response_of_an_earlier_version_is_read(settings: Settings) -> None:
    request_path(settings, "flights").parent.mkdir(parents=True)
    text = '{"plan": "replay-flights-1", "kind": "promote", "release": "aaa", "refused": "", "batch": 3}'
    request_path(settings, "flights").with_suffix(".answer.json").write_text(text)
    assert find_response(settings, "flights", MINE) == OwnerResponse("replay-flights-1", "promote", "aaa", "", 3)


def test_request_on_a_failing_disk_is_not_dismissed(settings: Settings) -> None:
    request_path(settings, "flights").mkdir(parents=True)
    with pytest.raises(StateFileUnreadable) as unreadable:
        pending_request(settings, "flights")
    with pytest.raises(IsADirectoryError):
        dismiss_invalid(settings, "flights", unreadable.value, batch=7)
    assert request_path(settings, "flights").exists()


def test_response_is_read_only_after_its_request_is_removed(settings: Settings) -> None:
    submit_request(settings, "flights", MINE)
    response = OwnerResponse(MINE.plan, MINE.kind, MINE.release, "", 3)
    response_file(settings, "flights").write(response)
    assert find_response(settings, "flights", MINE) is None, "the next request would be refused as pending"
    respond(settings, "flights", response)
    assert find_response(settings, "flights", MINE) == response
