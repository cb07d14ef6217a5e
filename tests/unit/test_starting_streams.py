"""How long `headrace up` waits for several drivers that start at once on a slow machine."""

from __future__ import annotations

import pytest

from include.process_control import start_stop
from include.process_control.start_stop import READY_WITHIN, await_streams
from include.settings import Settings
from include.state.process_states import ProcessState, ProcessStatus

NAMES = ("stream:flights", "stream:weather", "stream:days")


class SlowMachine:
    """Its time passes only while somebody waits; a stream works `works_at` seconds after the start."""

    def __init__(self, works_at: dict[str, float]) -> None:
        self.now, self.works_at = 0.0, works_at

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def observe(self, _: Settings, name: str) -> ProcessStatus:
        is_working = self.now >= self.works_at[name]
        return ProcessStatus(name, 7, ProcessState.RUNNING if is_working else ProcessState.STARTING)


def wait(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, works_at: dict[str, float], *running: str
) -> tuple[list[str], float]:
    """Return why streams did not start, and how long was waited; those `running` work before."""
    machine = SlowMachine(works_at)
    monkeypatch.setattr(start_stop, "time", machine)
    monkeypatch.setattr(start_stop, "observe_process", machine.observe)
    states = {name: ProcessState.RUNNING if name in running else ProcessState.STOPPED for name in works_at}
    before = [ProcessStatus(name, None, state) for name, state in states.items()]
    found = await_streams(settings, before, dict.fromkeys(works_at, 0), lambda _: None)
    return [failure.what.splitlines()[0] for failure in found if failure is not None], machine.now


def test_drivers_that_start_at_once_may_take_as_long_as_one_after_the_other(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wait(settings, monkeypatch, dict.fromkeys(NAMES, 2.5 * READY_WITHIN))[0] == []


def test_driver_that_starts_alone_is_given_up_as_early_as_before(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    works_at = dict.fromkeys(NAMES, 0.0) | {NAMES[1]: 2 * READY_WITHIN}
    failures, waited = wait(settings, monkeypatch, works_at, NAMES[0], NAMES[2])
    assert failures == [f"{NAMES[1]} did not work within {READY_WITHIN:.0f} s"]
    assert waited == pytest.approx(READY_WITHIN, abs=1)


def test_drivers_that_never_work_are_waited_for_together(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    failures, waited = wait(settings, monkeypatch, dict.fromkeys(NAMES, 1e9))
    assert failures == [f"{name} did not work within {3 * READY_WITHIN:.0f} s" for name in NAMES]
    assert waited == pytest.approx(3 * READY_WITHIN, abs=1)
