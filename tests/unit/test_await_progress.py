"""Waits go on while something moves, and end when nothing does."""

from __future__ import annotations

import sys

import psutil
import pytest

from include.ground import processes as await_progress
from include.ground.processes import IDLE, LONGEST, NoProgress, Waiting, cpu_steps


class Clock:
    """Time passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(await_progress, "time", found)
    return found


def test_wait_goes_on_as_long_as_signs_change(clock: Clock) -> None:
    lines: list[str] = []
    Waiting("the broker", lambda: int(clock.now / 60), lines.append).holds(lambda: clock.now > 10 * IDLE)
    assert clock.now == pytest.approx(10 * IDLE, abs=1)
    assert lines[0] == "the broker: waiting for 15 s, no progress for 15 s"
    assert 70 <= len(lines) <= 81
    assert any("no progress" not in line for line in lines)


def test_wait_without_progress_ends_and_says_for_what(clock: Clock) -> None:
    with pytest.raises(NoProgress, match=f"the broker: made no progress for {IDLE:.0f} s"):
        Waiting("the broker", lambda: min(clock.now, 50)).holds(lambda: False)
    assert clock.now == pytest.approx(50 + IDLE, abs=1)


def test_what_restarts_for_ever_is_given_up(clock: Clock) -> None:
    with pytest.raises(NoProgress, match="was not done after 30 min"):
        Waiting("airflow", lambda: clock.now).holds(lambda: False, 1)
    assert clock.now == pytest.approx(LONGEST, abs=2)


def test_error_of_the_question_ends_the_wait_at_once(clock: Clock) -> None:
    def has_started() -> bool:
        raise ChildProcessError("exit code 3")

    with pytest.raises(ChildProcessError):
        Waiting("runner", lambda: 0).holds(has_started)
    assert clock.now == 0


def test_processor_time_of_children_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(await_progress, "CPU_STEP", 0.2)
    busy = "import time\nwhile time.process_time() < 1: pass\ntime.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    parent = psutil.Popen([sys.executable, "-c", code])
    try:
        Waiting("a child", lambda: 0, idle=60).holds(lambda: cpu_steps([parent.pid]) > 3)
        assert parent.cpu_times().user < 0.8, "the child's time, not its own"
    finally:
        for process in (*parent.children(), parent):
            process.kill()
        parent.wait()
