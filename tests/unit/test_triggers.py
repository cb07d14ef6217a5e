"""What ends the watch over a stream at once, and what only after its grace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger
from airflow_server import fired, served
from headrace_airflow import triggers
from headrace_airflow.triggers import PlanClosed, StreamEnds, WorkDone

from include.ground.settings import Settings
from include.plans.journal import record_result, save_plan
from include.plans.plan import REPLAY, Cancelled, Plan, Prediction
from include.serve.health import FAILED, RELEASED, StreamHealth, current_breaches, end_of_watch, health_line
from include.state.process_states import ProcessState
from include.state.streams import desired_stream, release_of_run, release_stream, request_stream

WELL = StreamHealth(
    dataset="flights",
    desired=True,
    requested_by="stream__flights/1",
    state=ProcessState.RUNNING,
    batch=7,
    lag_records=12,
    lag_seconds=0.4,
    watermark=datetime(2013, 1, 3, 4, 5, tzinfo=UTC),
    rejected_share=0.0125,
    reason="",
    runner=ProcessState.RUNNING,
)


LIMIT = 60.0
BREACHED = "breached"
REQUESTER = "stream__flights/1"


def test_healthy_stream_breaches_nothing_and_is_watched_on() -> None:
    assert (current_breaches(WELL, LIMIT), end_of_watch(WELL)) == ({}, None)


def test_failed_stream_fails_the_run_at_once_with_its_reason() -> None:
    ended = end_of_watch(replace(WELL, state=ProcessState.FAILED, reason="no memory"))
    assert ended is not None
    assert (ended.outcome, "no memory" in ended.why) == (FAILED, True)


def test_released_stream_names_who_released_it() -> None:
    ended = end_of_watch(replace(WELL, desired=False, requested_by="headrace down"))
    assert ended is not None
    assert (ended.outcome, "headrace down" in ended.why) == (RELEASED, True)


@pytest.mark.parametrize(
    "breach",
    [
        replace(WELL, lag_seconds=61.0),
        replace(WELL, state=ProcessState.HALTED),
        replace(WELL, state=ProcessState.PENDING),
        replace(WELL, state=ProcessState.UNKNOWN),
        replace(WELL, state=ProcessState.STOPPED),
        replace(WELL, runner=ProcessState.CRASHED),
    ],
)
def test_breach_fails_only_after_its_grace(breach: StreamHealth, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look each 20 s: a breach of 20 s ends, the next one lasts for longer than 30 s."""
    looks = [breach, breach, WELL, breach, breach, breach, WELL]
    times = iter(range(0, 1000, 20))
    monkeypatch.setattr(triggers, "time", SimpleNamespace(monotonic=lambda: float(next(times))))
    monkeypatch.setattr(triggers, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0.0)

    async def answer(*_: object, lag_seconds: float) -> dict[str, Any]:
        health = looks.pop(0)
        assert end_of_watch(health) is None
        breaches = current_breaches(health, lag_seconds)
        return {"line": "", "state": health.state.label, "breaches": breaches, "ended": None}

    async def connected() -> None:
        return None

    trigger = StreamEnds("headrace_default", "flights", REQUESTER, "2026-01-01", LIMIT, 30)
    monkeypatch.setattr(trigger, "answer", answer)
    monkeypatch.setattr(trigger, "connected", connected)

    async def first() -> dict[str, Any]:
        return dict((await anext(trigger.run())).payload)

    assert asyncio.run(first())["outcome"] == BREACHED
    assert looks == [WELL], "not before the third look at the second breach"


def test_health_is_formatted_as_one_line() -> None:
    assert health_line(WELL) == (
        "flights: running, batch 7, 12 records / 0.4 s behind, complete up to 2013-01-03 04:05 UTC, 1.25% rejected"
    )
    unknown = replace(WELL, lag_records=None, lag_seconds=None, watermark=None, rejected_share=None, reason="why")
    assert health_line(unknown) == "flights: running (why), batch 7, lag unknown behind"


def stream_ends(since: datetime) -> StreamEnds:
    return StreamEnds("headrace_default", "flights", REQUESTER, since.isoformat(), 60, 3600)


@pytest.fixture
def own_settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    with served(settings, monkeypatch):
        yield settings


def test_stopping_the_run_releases_its_stream(own_settings: Settings) -> None:
    mine = request_stream(own_settings, "flights", REQUESTER)
    asyncio.run(stream_ends(mine.since).on_kill())
    stream = desired_stream(own_settings, "flights")
    assert stream is not None
    assert (stream.desired, stream.by) == (False, f"{REQUESTER}, stopped")


@pytest.mark.parametrize("later", [REQUESTER, "headrace up"])
def test_stopping_a_run_keeps_a_stream_that_was_requested_again(own_settings: Settings, later: str) -> None:
    """A cleared task, or a person, may request the stream again before the triggerer has heard that it was stopped."""
    mine = request_stream(own_settings, "flights", REQUESTER)
    request_stream(own_settings, "flights", later)
    asyncio.run(stream_ends(mine.since).on_kill())
    stream = desired_stream(own_settings, "flights")
    assert stream is not None
    assert (stream.desired, stream.by) == (True, later)


def test_request_after_a_mark_is_not_undone_by_the_trigger(own_settings: Settings) -> None:
    """The listener releases at the mark, a person requests the stream, then the triggerer hears that the run ended."""
    mine = request_stream(own_settings, "flights", REQUESTER)
    assert release_of_run(own_settings, "flights", REQUESTER)
    request_stream(own_settings, "flights", "headrace up")
    asyncio.run(stream_ends(mine.since).on_kill())
    stream = desired_stream(own_settings, "flights")
    assert stream is not None
    assert (stream.desired, stream.by) == (True, "headrace up")


@pytest.mark.parametrize(
    "trigger",
    [
        PlanClosed("headrace_default", "replay-flights-1"),
        StreamEnds("headrace_default", "flights", "a/b", "2026-01-01", 1, 2),
        WorkDone("headrace_default", "audit audit/1"),
    ],
)
def test_trigger_is_restored_from_its_serialized_form(trigger: BaseTrigger) -> None:
    path, facts = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"
    assert type(trigger)(**facts).serialize() == trigger.serialize()


def first_event(trigger: BaseTrigger, meanwhile: Callable[[], object]) -> dict[str, Any]:
    """Run a trigger as the triggerer does, call `meanwhile` while it polls, and return its event's payload."""

    async def fired() -> dict[str, Any]:
        events = trigger.run()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)
        assert not waiting.done(), "it fired at once"
        await asyncio.to_thread(meanwhile)
        event = await asyncio.wait_for(waiting, 30)
        return dict(event.payload)

    return asyncio.run(fired())


def test_watch_ends_when_the_stream_is_released(own_settings: Settings) -> None:
    """Nothing runs yet: unknown values do not end the watch."""
    stream = request_stream(own_settings, "flights", REQUESTER)
    event = first_event(stream_ends(stream.since), lambda: release_stream(own_settings, "flights", "headrace down"))
    assert (event["outcome"], "headrace down" in event["why"]) == (RELEASED, True)


def test_watch_fails_when_the_stream_breaches_its_level_for_longer_than_its_grace(own_settings: Settings) -> None:
    stream = request_stream(own_settings, "flights", REQUESTER)
    trigger = StreamEnds("headrace_default", "flights", REQUESTER, stream.since.isoformat(), 60, 1.0)
    event = first_event(trigger, lambda: None)
    assert (event["outcome"], event["why"].endswith("for more than 1 s")) == (BREACHED, True)


def test_work_that_the_server_does_not_know_is_lost(own_settings: Settings) -> None:
    assert fired(WorkDone("headrace_default", "audit audit/1")) == {"work": None}


def test_no_trigger_fires_before_the_scheduler_has_seen_its_task_defer(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0.5)
    began = time.monotonic()
    fired(WorkDone("headrace_default", "audit audit/1"))
    assert time.monotonic() - began >= 0.5


def test_trigger_fires_when_the_plan_is_closed(own_settings: Settings) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    plan = Plan("replay-flights-1", REPLAY, "flights", "a", "a", now, "ann", 0.0, [], Prediction(1, 2, 3, 4, 5.0, 6.0))
    save_plan(own_settings, plan)
    trigger = PlanClosed("headrace_default", plan.id)
    closed = first_event(trigger, lambda: record_result(own_settings, plan.id, Cancelled(), "ann"))
    assert closed == {"plan": plan.id}
