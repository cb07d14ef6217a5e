"""Desired streams: the last request or release counts, and a damaged file is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.declare.dataset import DatasetUnknown
from include.ground.paths import desired_path
from include.ground.settings import Settings
from include.state.json_file import StateFileUnreadable
from include.state.streams import (
    DesiredStream,
    desired_stream,
    desired_streams,
    last_change,
    release_of_run,
    release_stream,
    request_stream,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def desired(settings: Settings) -> dict[str, DesiredStream]:
    return {name: stream for name, stream in desired_streams(settings).items() if stream.desired}


def test_no_stream_is_desired_at_first(settings: Settings) -> None:
    assert desired(settings) == {}
    assert desired_stream(settings, "flights") is None
    release_stream(settings, "flights", "somebody")
    assert not desired_path(settings, "flights").exists(), "a stream that was never requested needs no release"


def test_requested_stream_is_read_back(settings: Settings) -> None:
    stream = request_stream(settings, "flights", "headrace up", NOON)
    assert (stream.dataset, stream.by, stream.since, stream.desired) == ("flights", "headrace up", NOON, True)
    assert desired(settings) == {"flights": stream}


def test_later_request_replaces_an_earlier_one(settings: Settings) -> None:
    request_stream(settings, "flights", "headrace up", NOON)
    request_stream(settings, "flights", "airflow", LATER)
    assert [(stream.by, stream.since) for stream in desired(settings).values()] == [("airflow", LATER)]


def test_release_names_who_released_the_stream(settings: Settings) -> None:
    request_stream(settings, "flights", "airflow", NOON)
    release_stream(settings, "flights", "headrace down", LATER)
    assert desired(settings) == {}
    stream = desired_stream(settings, "flights")
    assert stream is not None
    assert (stream.by, stream.desired) == ("headrace down", False)
    release_stream(settings, "flights", "airflow", LATER + timedelta(hours=1))
    assert desired_stream(settings, "flights") == stream, "a second release changes nothing"


@pytest.mark.parametrize("name", ["fligths", "../flights", "", "flights/../flights", "{{ ds }}"])
def test_unknown_dataset_is_refused_and_nothing_is_written(settings: Settings, name: str) -> None:
    with pytest.raises(DatasetUnknown):
        request_stream(settings, name, "somebody")
    assert not settings.state.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"dataset": "flights", "by": "x", "since": "noon", "wanted": true}', '{"since": 1}'],
)
def test_damaged_request_is_named_and_the_next_request_replaces_it(settings: Settings, text: str) -> None:
    path = desired_path(settings, "flights")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(StateFileUnreadable) as refused:
        desired(settings)
    assert refused.value.path == path
    release_stream(settings, "flights", "somebody", NOON)
    assert desired(settings) == {}
    request_stream(settings, "flights", "somebody", NOON)
    assert list(desired(settings)) == ["flights"]


def test_every_request_and_release_advances_the_last_change(settings: Settings) -> None:
    before = last_change(desired_streams(settings))
    request_stream(settings, "flights", "x", NOON)
    assert before < last_change(desired_streams(settings)) == NOON
    release_stream(settings, "flights", "x", LATER)
    assert last_change(desired_streams(settings)) == LATER


def test_run_on_a_host_whose_clock_is_behind_keeps_its_stream(settings: Settings) -> None:
    first, second = "stream__flights/scheduled__1", "stream__flights/scheduled__2"
    request_stream(settings, "flights", first, NOON)
    request_stream(settings, "flights", second, NOON - timedelta(seconds=40))
    assert not release_of_run(settings, "flights", first, NOON)
    assert release_of_run(settings, "flights", second, NOON - timedelta(seconds=40))
    request = desired_stream(settings, "flights")
    assert request is not None
    assert (request.desired, request.by) == (False, f"{second}, stopped")
