"""What ends the watch over a stream, and what is given time to pass."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from include.operators.health import BROKEN, FAILED, LET_GO, Judge, Limits, sentence
from include.operators.triggers import PlanClosed, StreamWatch
from include.settings import Settings
from include.supervision.health import StreamHealth
from include.supervision.states import ProcessState
from include.supervision.wanted import last_said, want

WELL = StreamHealth(
    dataset="flights",
    wanted=True,
    wanted_by="stream__flights/1",
    state=ProcessState.RUNNING,
    batch=7,
    lag_records=12,
    lag_seconds=0.4,
    boundary=datetime(2013, 1, 3, 4, 5, tzinfo=UTC),
    rejected_share=0.0125,
    reason="",
    runner=ProcessState.RUNNING,
)


def watch() -> Judge:
    return Judge(Limits(lag_seconds=60, grace_seconds=30))


def test_a_healthy_stream_is_watched_on() -> None:
    watching = watch()
    assert all(watching.judged(WELL, float(now)) is None for now in range(0, 1000, 10))


def test_a_stream_that_gave_up_fails_at_once_with_its_reason() -> None:
    verdict = watch().judged(replace(WELL, state=ProcessState.FAILED, reason="no memory"), 0.0)
    assert verdict is not None
    assert (verdict.outcome, "no memory" in verdict.why) == (FAILED, True)


def test_a_stream_that_was_let_go_says_by_whom() -> None:
    verdict = watch().judged(replace(WELL, wanted=False, wanted_by="headrace down"), 0.0)
    assert verdict is not None
    assert (verdict.outcome, "headrace down" in verdict.why) == (LET_GO, True)


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
def test_a_breach_fails_only_when_it_lasts(breach: StreamHealth) -> None:
    watching = watch()
    assert watching.judged(breach, 0.0) is None
    assert watching.judged(breach, 30.0) is None
    assert watching.judged(WELL, 31.0) is None
    assert watching.judged(breach, 32.0) is None
    assert watching.judged(breach, 62.0) is None
    verdict = watching.judged(breach, 62.1)
    assert verdict is not None
    assert verdict.outcome == BROKEN


def test_health_in_a_line() -> None:
    assert sentence(WELL) == (
        "flights: running, batch 7, 12 records / 0.4 s behind, complete up to 2013-01-03 04:05 UTC, 1.25% rejected"
    )
    unknown = replace(WELL, lag_records=None, lag_seconds=None, boundary=None, rejected_share=None, reason="why")
    assert sentence(unknown) == "flights: running (why), batch 7, lag unknown behind"


def test_stopping_the_run_lets_the_stream_drain(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.operators.triggers.load_settings", lambda: settings)
    mine = want(settings, "flights", "stream__flights/1")
    trigger = StreamWatch("flights", "stream__flights/1", mine.since.isoformat(), 60, 30)
    trigger.let_drain()
    said = last_said(settings, "flights")
    assert said is not None
    assert (said.wanted, said.by) == (False, "stream__flights/1, stopped")


def test_a_later_wish_is_not_undone_by_the_end_of_an_earlier_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleared task may want its stream again before the triggerer has heard that it was stopped."""
    monkeypatch.setattr("include.operators.triggers.load_settings", lambda: settings)
    mine = want(settings, "flights", "stream__flights/1")
    want(settings, "flights", "stream__flights/1")
    StreamWatch("flights", "stream__flights/1", mine.since.isoformat(), 60, 30).let_drain()
    said = last_said(settings, "flights")
    assert said is not None
    assert said.wanted


@pytest.mark.parametrize("trigger", [PlanClosed("replay-flights-1"), StreamWatch("flights", "a/b", "2026-01-01", 1, 2)])
def test_a_trigger_is_made_again_of_what_it_says(trigger: PlanClosed | StreamWatch) -> None:
    path, facts = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"
    assert type(trigger)(**facts).serialize() == trigger.serialize()
