"""How long `headrace up` waits for several drivers that start at once on a slow machine."""

from __future__ import annotations

import pytest

from include.ground import processes as await_progress
from include.ground.processes import IDLE
from include.ground.settings import Settings
from include.run import start_stop
from include.run.start_stop import await_streams
from include.state.process_states import ProcessState, ProcessStatus

NAMES = ("stream:flights", "stream:weather", "stream:days")


class SlowMachine:
    """Its time passes only while somebody waits; a stream works `works_at` seconds after the start.

    Until `moves_until` it shows progress.
    """

    def __init__(self, works_at: dict[str, float], moves_until: float) -> None:
        self.now, self.works_at, self.moves_until = 0.0, works_at, moves_until

    def signs(self, _: Settings, *names: str) -> object:
        return int(min(self.now, self.moves_until))

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def observe(self, _: Settings, name: str) -> ProcessStatus:
        is_working = self.now >= self.works_at[name]
        return ProcessStatus(name, 7, ProcessState.RUNNING if is_working else ProcessState.STARTING)


def wait(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, works_at: dict[str, float], moves_until: float = 1e9
) -> tuple[list[str], float]:
    """Return why streams did not start, and how long was waited."""
    machine = SlowMachine(works_at, moves_until)
    monkeypatch.setattr(await_progress, "time", machine)
    monkeypatch.setattr(start_stop, "time", machine)
    monkeypatch.setattr(start_stop, "observe_process", machine.observe)
    monkeypatch.setattr(start_stop, "process_signs", machine.signs)
    before = [ProcessStatus(name, None, ProcessState.STOPPED) for name in works_at]
    found = await_streams(settings, before, dict.fromkeys(works_at, 0), lambda _: None)
    return [failure.what.splitlines()[0] for failure in found if failure is not None], machine.now


def test_drivers_may_take_as_long_as_they_make_progress(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(settings, monkeypatch, dict.fromkeys(NAMES, 1_000.0))[0] == []


def test_driver_that_hangs_is_given_up_and_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    works_at = dict.fromkeys(NAMES, 20.0) | {NAMES[1]: 1_000.0}
    failures, waited = wait(settings, monkeypatch, works_at, moves_until=30)
    assert failures == [f"{NAMES[1]} does not work, made no progress for {IDLE:.0f} s"]
    assert waited == pytest.approx(30 + IDLE, abs=2)


def test_driver_on_a_cluster_waits_for_executors_without_a_sign(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, cluster = settings, settings.model_copy(update={"spark_master": "spark://one:7077"})
    assert wait(alone, monkeypatch, {NAMES[0]: IDLE + 60}, moves_until=0)[0] != []
    assert wait(cluster, monkeypatch, {NAMES[0]: IDLE + 60}, moves_until=0)[0] == []
