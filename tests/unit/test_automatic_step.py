"""The guard of the owner's automatic steps: an error never ends the runs, and each step pauses as it says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from include.ground.settings import Settings
from include.state.streams import DriverStatus
from spark_jobs.stream import expiry, requests, upkeep
from spark_jobs.stream.back_off import FIRST_CHECK, PAUSE_AFTER_FAILURE, AutomaticStep
from spark_jobs.stream.driver_loop import DriverLoop
from spark_jobs.stream.expiry import AutomaticDeletion, RetainedTables
from spark_jobs.stream.upkeep import AutomaticCompaction, AutomaticExpiry, AutomaticHistory, AutomaticRemoval
from spark_jobs.tables.delta_table import OwnershipLost

NOW = 1000.0


def clock() -> float:
    return NOW


def full_disk(*_: object, **__: object) -> bool:
    raise OSError(28, "No space left on device")


def compact(_: Settings) -> AutomaticStep:
    step = AutomaticCompaction(clock=clock)
    assert not step.step(full_disk() for _ in "1")
    return step


def expire(settings: Settings) -> AutomaticStep:
    step = AutomaticExpiry(clock=clock, next_check=0)
    assert not step.step(settings, [])
    return step


def move_commits(settings: Settings) -> AutomaticStep:
    step = AutomaticHistory(clock=clock, next_check=0)
    assert not step.step(settings, [])
    return step


def remove_ended(settings: Settings) -> AutomaticStep:
    step = AutomaticRemoval(clock=clock, next_check=0)
    assert not step.step(settings, "flights")
    return step


def delete_obsolete(settings: Settings) -> AutomaticStep:
    step = AutomaticDeletion(clock=clock, next_check=0)
    assert not step.step(lambda: retained(settings.state))
    return step


def retained(*folders: Path) -> RetainedTables:
    tables = [Mock(spec=["spec"], **{"spec.path": folder}) for folder in folders]
    return RetainedTables(tables, timedelta(minutes=20), dict, Path("reading.lock"), Settings())


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the work of each step fail."""
    monkeypatch.setattr(upkeep, "expire_batches", full_disk)
    monkeypatch.setattr(upkeep, "tables_of", full_disk)
    monkeypatch.setattr(upkeep, "advance_index", full_disk)
    monkeypatch.setattr(expiry, "files_to_delete", full_disk)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    ("run", "pause", "reported"),
    [
        (compact, PAUSE_AFTER_FAILURE, "compaction failed, next try in 60 s; runs continue"),
        (expire, upkeep.EXPIRY_EVERY, "old batches did not expire, the next check"),
        (move_commits, upkeep.HISTORY_EVERY, "old commits were not moved into the history, the next check"),
        (remove_ended, upkeep.REMOVAL_EVERY, "data of ended plans was not removed, the next check"),
        (delete_obsolete, 1200.0 / expiry.CHECKS_PER_RETENTION, "obsolete files were not deleted, the next"),
    ],
)
def test_step_that_fails_is_reported_and_pauses_and_runs_continue(
    settings: Settings,
    run: Callable[[Settings], AutomaticStep],
    pause: float,
    reported: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = run(settings)
    logged = capsys.readouterr().err
    assert reported in logged
    assert "No space left on device" in logged
    assert step.next_check == NOW + pause
    assert step.is_pausing()


def test_owner_that_lost_its_tables_is_not_guarded() -> None:
    class Losing(AutomaticStep[()]):
        def work(self) -> bool:
            raise OwnershipLost("silver.flights", "flights/stream", "version 7 exists")

    with pytest.raises(OwnershipLost):
        Losing().step()


def test_first_look_is_after_the_start() -> None:
    step = AutomaticStep()
    assert step.is_pausing()
    assert step.next_check - step.clock() == pytest.approx(FIRST_CHECK, abs=5)


def test_tables_of_a_release_that_is_not_active_any_more_are_not_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "other", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.parquet").touch()
    monkeypatch.setattr(expiry, "files_to_delete", lambda _, table: [table.spec.path / "part.parquet"])
    step = AutomaticDeletion(clock=clock, next_check=0)
    with monkeypatch.context() as patch:
        patch.setattr(expiry, "SECONDS_AT_ONCE", 0)
        assert step.step(lambda: retained(tmp_path / "old", tmp_path / "other")), "a file is left"
    while step.step(lambda: retained(tmp_path / "new")):
        pass
    step.next_check = 0
    assert not step.step(lambda: retained(tmp_path / "new"))
    assert [path.parent.name for path in sorted(tmp_path.rglob("*.parquet"))] == ["old", "other"]


def test_deletion_does_not_pause_before_a_table_is_open() -> None:
    step = AutomaticDeletion(clock=clock, next_check=0)
    assert not step.step(lambda: retained())
    assert not step.is_pausing()


def test_tables_are_kept_up_between_runs_also_when_there_is_always_another(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "pending_request", Mock(return_value=None))
    runs = Mock(side_effect=[True, True, True])
    stop = Mock(spec=threading.Event, **{"is_set.side_effect": [False, False, False, True]})
    upkeep, reporter = Mock(return_value=False), Mock(status=DriverStatus())
    loop = DriverLoop(Mock(settings=settings), Mock(), Mock(), reporter, stop)
    monkeypatch.setattr(loop, "advance", runs)
    monkeypatch.setattr(loop, "keep_up", upkeep)
    assert loop.run() == "stopped"
    assert (runs.call_count, upkeep.call_count) == (3, 3)
    stop.wait.assert_not_called()
