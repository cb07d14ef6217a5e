"""The index of plans follows what others do to the folder of plans, and is rebuilt when it cannot be read."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import Mock

import pytest
from plan_samples import TO_APPLIED, advanced, plan_at, result_of, sample_plan

from include.ground.paths import plan_path
from include.ground.settings import Settings
from include.plans import journal as plan_journal
from include.plans.index import PlanIndexUnavailable, enter, entry_of, index_path, number_of_plans
from include.plans.journal import (
    PlanUnknown,
    find_plan,
    last_applied,
    load_plan,
    newest_plans,
    next_plan_id,
    open_plans,
    record_result,
    rolled_back_by,
    save_plan,
)
from include.plans.plan import BACKFILL, Stage


def damaged_header(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4096])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("lose", [Path.unlink, damaged_header, cut_off, emptied])
def test_lost_index_is_built_from_the_plans(settings: Settings, lose: Callable[[Path], None]) -> None:
    applied = plan_at(settings, *TO_APPLIED, kind=BACKFILL)
    reverted = plan_at(settings, *TO_APPLIED, Stage.ROLLED_BACK, kind=BACKFILL)
    opened = plan_at(settings, Stage.BUILT, origin="release__flights/manual__1")
    lose(index_path(settings))
    # Damage beyond the first page may be met by a query; it is reported once.
    with suppress(PlanIndexUnavailable):
        open_plans(settings)
    assert open_plans(settings) == [opened]
    assert find_plan(settings, opened.plan.origin) == opened
    assert last_applied(settings, "flights") == applied
    assert rolled_back_by(settings, "flights", "ann") == reverted
    assert next_plan_id(settings, BACKFILL, "flights") == "backfill-flights-3"


def test_plan_that_was_copied_into_the_folder_is_found(settings: Settings, tmp_path: Path) -> None:
    opened = plan_at(settings, Stage.BUILT)
    other = Settings(state=tmp_path / "other")
    plan_at(other, Stage.CANCELLED)
    copied = plan_at(other, Stage.BUILT, origin="release__flights/manual__1")
    assert open_plans(settings) == [opened]
    shutil.copytree(plan_path(other, copied.plan.id), plan_path(settings, copied.plan.id))
    assert open_plans(settings) == [opened, copied]
    assert find_plan(settings, copied.plan.origin) == copied
    assert next_plan_id(settings, "release", "flights") == "release-flights-3"


def test_plan_that_was_moved_away_is_not_listed(settings: Settings, tmp_path: Path) -> None:
    plans = [plan_at(settings, Stage.BUILT), plan_at(settings, *TO_APPLIED)]
    for record in plans:
        shutil.move(plan_path(settings, record.plan.id), tmp_path / record.plan.id)
    assert (open_plans(settings), last_applied(settings, "flights")) == ([], None)
    assert (newest_plans(settings).plans, newest_plans(settings).total) == ([], 0)


def test_stages_that_an_earlier_version_recorded_are_known(settings: Settings) -> None:
    """It keeps an index of its own, `.index`, and enters nothing in this one."""
    first, last = (plan_at(settings, *TO_APPLIED, kind=BACKFILL) for _ in range(2))
    before = index_path(settings).read_bytes()
    record_result(settings, last.plan.id, result_of(Stage.ROLLED_BACK), "bob")
    index_path(settings).write_bytes(before)
    assert rolled_back_by(settings, "flights", "bob") is None
    (plan_path(settings, ".index") / "open").mkdir(parents=True)
    assert rolled_back_by(settings, "flights", "bob") == load_plan(settings, last.plan.id)
    assert last_applied(settings, "flights") == first
    assert not plan_path(settings, ".index").exists()


@pytest.mark.parametrize("stage", [Stage.APPLIED, Stage.ROLLED_BACK])
def test_rollback_finds_its_plan_when_the_command_is_killed_at_a_stage(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    plan_at(settings, *TO_APPLIED, kind=BACKFILL)
    stages = TO_APPLIED[:-1] if stage is Stage.APPLIED else TO_APPLIED
    record = plan_at(settings, *stages, kind=BACKFILL)
    with monkeypatch.context() as killed:
        killed.setattr(plan_journal, "enter", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            record_result(settings, record.plan.id, result_of(stage), "ann (a/run)")
    found = load_plan(settings, record.plan.id)
    if stage is Stage.APPLIED:
        assert last_applied(settings, "flights") == found
    else:
        assert rolled_back_by(settings, "flights", "ann (a/run)") == found
        assert last_applied(settings, "flights") != found


def test_stage_that_was_entered_and_never_recorded_is_not_reported(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = plan_at(settings, *TO_APPLIED[:-1], kind=BACKFILL)
    monkeypatch.setattr(plan_journal, "_append", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        record_result(settings, record.plan.id, result_of(Stage.APPLIED), "ann")
    assert last_applied(settings, "flights") is None
    assert open_plans(settings) == [record]


def test_recorded_stage_stands_when_the_index_cannot_be_written(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = plan_at(settings, Stage.BUILT)
    refused = PlanIndexUnavailable(index_path(settings), "disk full", is_damaged=False)
    monkeypatch.setattr(plan_journal, "enter", Mock(side_effect=refused))
    assert record_result(settings, record.plan.id, result_of(Stage.CANCELLED), "ann").stage is Stage.CANCELLED
    assert open_plans(settings) == []


def test_index_that_another_process_is_writing_is_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sample_plan(settings)
    save_plan(settings, plan)
    monkeypatch.setattr("include.plans.index.LOCKED_WITHIN", 0.05)
    other = sqlite3.connect(index_path(settings), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(PlanIndexUnavailable, match="the same command again"):
        open_plans(settings)
    other.close()
    assert [record.plan.id for record in open_plans(settings)] == [plan.id]


def test_look_for_a_plan_where_there_was_none_creates_nothing(settings: Settings) -> None:
    assert (open_plans(settings), newest_plans(settings).plans, last_applied(settings, "flights")) == ([], [], None)
    assert next_plan_id(settings, BACKFILL, "flights") == "backfill-flights-1"
    with pytest.raises(PlanUnknown, match="no plans yet"):
        load_plan(settings, "release-flights-1")
    assert not plan_path(settings, "any").parent.exists()


def enter_many(settings: Settings, kind: str) -> None:
    for _ in range(10):
        record = save_plan(settings, sample_plan(settings, kind))
        advanced(settings, record, Stage.BUILT, Stage.CANCELLED)
        open_plans(settings)


def test_processes_that_plan_and_look_at_once_lose_no_plan(settings: Settings) -> None:
    kinds = ("release", "replay", BACKFILL)
    processes = [get_context("spawn").Process(target=enter_many, args=(settings, kind)) for kind in kinds]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert number_of_plans(settings) == 30
    assert open_plans(settings) == []
    (oldest,) = newest_plans(settings, 1, 29).plans
    enter(settings, entry_of(oldest))
    assert number_of_plans(settings) == 30
