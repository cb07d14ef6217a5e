"""What the loops of drivers share: the pause after failures, requests received and responses sent."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from include.ground.paths import request_path
from include.ground.settings import Settings
from include.state.owner_requests import OwnerRequest, OwnerResponse, RequestKind, pending_request, submit_request
from spark_jobs.stream import requests
from spark_jobs.stream.back_off import LONGEST_PAUSE, BackOff
from spark_jobs.stream.requests import receive_request, send_response

REQUEST = OwnerRequest("p1", RequestKind.PROMOTE, "r2", "a plan")
RESPONSE = OwnerResponse("p1", RequestKind.PROMOTE, "r2", "", 7)


def test_pause_doubles_with_each_failure_until_the_longest_and_is_over_at_its_end() -> None:
    now = [100.0]
    back_off = BackOff(lambda: now[0])
    assert not back_off.is_pausing
    assert [back_off.lengthen() for _ in range(8)] == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE]
    assert back_off.is_pausing
    now[0] += LONGEST_PAUSE
    assert not back_off.is_pausing


def test_success_ends_the_pause_and_the_next_failure_begins_with_the_shortest() -> None:
    back_off = BackOff(lambda: 100.0)
    assert not back_off.end()
    back_off.lengthen()
    back_off.lengthen()
    assert back_off.end()
    assert (back_off.is_pausing, back_off.end(), back_off.lengthen()) == (False, False, 1)


def test_invalid_request_is_dismissed_so_that_the_next_one_is_received(settings: Settings) -> None:
    path = request_path(settings, "flights")
    path.parent.mkdir(parents=True)
    path.write_text('{"plan": "p0"}')
    assert receive_request(settings, "flights", lambda: 7) is None
    submit_request(settings, "flights", REQUEST)
    assert receive_request(settings, "flights", lambda: 7) == REQUEST


def test_request_whose_response_cannot_be_written_is_received_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_request(settings, "flights", REQUEST)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "respond", Mock(side_effect=OSError("no space left")))
        send_response(settings, "flights", REQUEST, RESPONSE)
    assert receive_request(settings, "flights", lambda: 7) == REQUEST
    send_response(settings, "flights", REQUEST, RESPONSE)
    assert pending_request(settings, "flights") is None
