"""Ingest plans a batch just in time for refine's next run, and does not wait for one that is halted."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from spark_jobs.stream.pacing import SLOW_PACE, BronzePacing, CommittedBatch


@dataclass
class Scene:
    """A run of one second has taken place, by a clock that the test sets."""

    now: float = 100.0
    pacing: BronzePacing = field(init=False)

    def __post_init__(self) -> None:
        self.pacing = BronzePacing(clock=lambda: self.now)
        self.pacing.begin_run(7)
        self.now += 1.0
        self.pacing.end_run(has_run=True)

    def remaining(self, batch: int, seconds: float = 0.2, *, is_large: bool = False) -> float:
        return self.pacing.remaining(CommittedBatch(batch, seconds, is_large), self.now + SLOW_PACE)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_next_batch_is_planned_at_once_while_refine_is_idle(scene: Scene) -> None:
    assert scene.remaining(7) == 0


def test_the_next_batch_is_committed_when_the_run_is_expected_to_end(scene: Scene) -> None:
    scene.pacing.begin_run(8)
    assert scene.remaining(8) == pytest.approx(0.8)
    scene.now += 0.9
    assert scene.remaining(8) <= 0


def test_a_batch_that_refine_has_not_taken_is_waited_for_at_the_slow_pace(scene: Scene) -> None:
    assert scene.remaining(8) == pytest.approx(SLOW_PACE)


def test_poll_without_a_run_does_not_change_the_expected_duration_of_a_run(scene: Scene) -> None:
    scene.pacing.begin_run(7)
    scene.now += 0.001
    scene.pacing.end_run(has_run=False)
    assert scene.pacing.seconds == pytest.approx(1.0)


def test_after_a_large_batch_the_next_is_planned_when_spark_has_validated_it(scene: Scene) -> None:
    scene.pacing.begin_run(8)
    scene.now += 0.1
    assert scene.remaining(8, is_large=True) == pytest.approx(SLOW_PACE)
    scene.pacing.end_validation()
    assert scene.remaining(8, is_large=True) == 0
    assert scene.remaining(8) == pytest.approx(0.7)


def test_a_large_batch_that_is_validated_ahead_is_followed_when_it_is_validated(scene: Scene) -> None:
    scene.pacing.begin_run(8)
    scene.pacing.end_validation()
    assert scene.remaining(9, is_large=True) == pytest.approx(SLOW_PACE)
    scene.pacing.begin_validation(9)
    assert scene.remaining(9, is_large=True) == pytest.approx(SLOW_PACE)
    scene.pacing.end_validation()
    assert scene.remaining(9, is_large=True) == 0


def test_batch_that_came_after_a_run_was_validated_ahead_is_not_taken_by_it(scene: Scene) -> None:
    scene.pacing.begin_run(8, is_validated=True)
    assert scene.remaining(8, is_large=True) == 0
    assert scene.remaining(9, is_large=True) == pytest.approx(SLOW_PACE)


def test_a_long_run_does_not_stop_bronze(scene: Scene) -> None:
    scene.pacing.seconds = 60.0
    scene.pacing.begin_run(8)
    assert scene.remaining(8) == pytest.approx(SLOW_PACE)


def test_a_wait_ends_when_refine_takes_the_batch_and_is_idle_again() -> None:
    pacing, stop = BronzePacing(), threading.Event()
    waiting = threading.Thread(target=pacing.wait, args=(CommittedBatch(3, 0.1), stop))
    waiting.start()
    pacing.begin_run(3)
    pacing.end_run(has_run=True)
    waiting.join(SLOW_PACE / 2)
    assert not waiting.is_alive()


def test_a_drain_ends_the_wait() -> None:
    pacing, stop = BronzePacing(), threading.Event()
    stop.set()
    pacing.wait(CommittedBatch(3, 0.1), stop)
