"""Removal of what ended plans leave: what a declared retention names, and nothing else."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from plan_samples import NOON, TO_APPLIED, plan_at, publication, result_of
from sqlalchemy import select

from include.declare.dataset import released_dataset, snapshot_dataset
from include.ground.paths import (
    patch_path,
    plan_path,
    release_lease_path,
    release_path,
    removed_commits_path,
    removed_tables_path,
    snapshots_path,
)
from include.ground.settings import Settings
from include.observe import ended_plans
from include.observe.ended_plans import PartUse, delete_moved, disk_use, ended_data, move_ended, pass_over, remove_ended
from include.observe.ledger_rows import Row, upsert
from include.observe.ledger_schema import projected, runs
from include.observe.ledger_writer import open_writer
from include.plans.index import index_path, number_of_plans
from include.plans.journal import PlanUnreadable, comparison_path, load_plan, plan_ids_of_data, record_result
from include.plans.plan import BACKFILL, DERIVED_RELEASE, RELEASE, Stage
from include.read.publication import NothingPublished, publish
from include.state.lease import take_lock
from include.state.owner_requests import OwnerRequest, RequestKind, pending_request, submit_request, withdraw_request
from include.state.release_files import active_releases_file
from include.state.streams import DriverStatus
from spark_jobs.stream import upkeep
from spark_jobs.stream.driver_loop import DriverLoop, Source
from spark_jobs.stream.upkeep import AutomaticRemoval

LATER = datetime.now(UTC) + timedelta(days=7, hours=1)
CANCELLED = (Stage.CANCELLED,)
RETIRED = (*TO_APPLIED, Stage.RETIRED)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The folder's own release is published; releases aaa, bbb and ccc have files."""
    settings = Settings(state=tmp_path / "state")
    publish(settings, replace(publication(snapshot_dataset(settings, "flights").release), published_at=NOON))
    for release in ("aaa", "bbb", "ccc"):
        written(release_path(settings, "flights", release) / "silver" / "part.parquet")
    return settings


def written(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"12345")
    return path


def removable(settings: Settings, now: datetime = LATER) -> list[str]:
    return [each.path for each in ended_data(settings, "flights", now)]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ((), []),
        (TO_APPLIED, []),
        ((*TO_APPLIED, Stage.ROLLED_BACK), []),
        (CANCELLED, ["warehouse/flights/bbb"]),
        ((Stage.BUILT, Stage.COMPARED, Stage.REJECTED), ["warehouse/flights/bbb"]),
        (RETIRED, ["warehouse/flights/aaa"]),
    ],
)
def test_release_is_removed_when_its_plan_ended(
    settings: Settings, stages: tuple[Stage, ...], expected: list[str]
) -> None:
    plan_at(settings, *stages)
    assert removable(settings) == expected
    assert removable(settings, datetime.now(UTC) + timedelta(days=6)) == [], "the retention has not passed"


@pytest.mark.parametrize(
    ("stages", "other"),
    [
        ((), {"base": "bbb", "release": "ccc"}),
        ((Stage.BUILT,), {"base": "ccc", "release": "bbb"}),
        (TO_APPLIED, {"base": "bbb", "release": "ccc"}),
        ((*TO_APPLIED, Stage.ROLLED_BACK), {"base": "ccc", "release": "bbb"}),
        ((Stage.BUILT,), {"kind": BACKFILL, "base": "bbb", "release": "bbb"}),
    ],
)
def test_release_that_another_plan_needs_is_kept(settings: Settings, stages: tuple[Stage, ...], other: Any) -> None:
    plan_at(settings, *CANCELLED)
    plan_at(settings, *stages, **other)
    assert removable(settings) == []


def test_active_published_and_leased_releases_are_kept(settings: Settings) -> None:
    plan_at(settings, *CANCELLED)
    active_releases_file(settings, "flights").write(["bbb"])
    assert removable(settings) == []
    active_releases_file(settings, "flights").write([])
    with take_lock(release_lease_path(settings, "flights", "bbb"), "a job"):
        assert removable(settings) == []
    assert removable(settings) == ["warehouse/flights/bbb"]
    plan_at(settings, *CANCELLED, release=snapshot_dataset(settings, "flights").release)
    assert removable(settings) == ["warehouse/flights/bbb"]


def test_nothing_is_removed_while_a_plan_cannot_be_read(settings: Settings) -> None:
    plan_at(settings, *CANCELLED)
    (plan_path(settings, "release-flights-1.bak")).mkdir()
    assert removable(settings) == ["warehouse/flights/bbb"]
    (plan_path(settings, plan_at(settings).plan.id) / "plan.json").write_text("{")
    with pytest.raises(PlanUnreadable, match="release-flights-2"):
        removable(settings)


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize(("kind", "dataset"), [(BACKFILL, "weather"), (DERIVED_RELEASE, "flights-by-day")])
def test_damaged_plan_of_another_dataset_blocks_no_removal(
    settings: Settings, kind: str, dataset: str, is_indexed: bool
) -> None:
    plan_at(settings, *CANCELLED)
    damaged = plan_path(settings, plan_at(settings, kind=kind, dataset=dataset).plan.id)
    (damaged / "plan.json").write_text("{")
    if not is_indexed:
        shutil.rmtree(index_path(settings).parent)
    assert removable(settings) == ["warehouse/flights/bbb"]
    with pytest.raises(PlanUnreadable, match=f"{damaged}(.|\n)*mv"):
        ended_data(settings, dataset, LATER)
    shutil.move(damaged, settings.state)
    with pytest.raises(NothingPublished):
        ended_data(settings, dataset, LATER)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ("rename-weather-1", "{"),
        ("rename-1-1", '{\n "id": "rename-1-1",\n "kind": "rename",\n "dataset": "weather",\n "base'),
        ("rename-flights-1", '{\n "kind": "rename",\n "dataset": "weather"\n}'),
    ],
)
def test_damaged_plan_of_an_unknown_kind_blocks_only_the_dataset_that_it_names(
    settings: Settings, plan: str, text: str
) -> None:
    plan_at(settings, *CANCELLED)
    (folder := plan_path(settings, plan)).mkdir()
    (folder / "plan.json").write_text(text)
    assert removable(settings) == ["warehouse/flights/bbb"]
    with pytest.raises(PlanUnreadable, match=rf"{folder}.*data of ended plans of weather is not removed(.|\n)*mv"):
        ended_data(settings, "weather", LATER)
    pass_over(settings, "flights", [plan], LATER, math.inf)


def test_damaged_plan_that_names_no_dataset_blocks_every_removal_and_is_reported(settings: Settings) -> None:
    plan_at(settings, *CANCELLED)
    (folder := plan_path(settings, "rename-everything-1")).mkdir()
    (folder / "plan.json").write_text("{")
    with pytest.raises(PlanUnreadable, match=r"its dataset is unknown, .* not removed for any dataset(.|\n)*mv"):
        removable(settings)


def test_damaged_plan_that_names_no_known_kind_blocks_its_dataset(settings: Settings) -> None:
    plan_at(settings, *CANCELLED)
    (folder := plan_path(settings, "rename-flights-1")).mkdir()
    assert removable(settings) == ["warehouse/flights/bbb"], "nothing was planned"
    (folder / "plan.json").write_text("{")
    with pytest.raises(PlanUnreadable, match="rename-flights-1"):
        removable(settings)


def test_plan_that_left_nothing_is_not_read_again(settings: Settings) -> None:
    plans = [plan_at(settings, *CANCELLED).plan.id, plan_at(settings, *RETIRED, kind=RELEASE).plan.id]
    remove_ended(settings, "flights", datetime.now(UTC))
    assert plan_ids_of_data(settings, "flights") == plans, "the retention has not passed"
    written(snapshots_path(settings, "flights") / "bbb" / "pipeline.yaml")
    plan_at(settings, *TO_APPLIED, base="bbb", release="ccc")
    remove_ended(settings, "flights", LATER)
    assert plan_ids_of_data(settings, "flights") == [plans[0], "release-flights-3"], "bbb is needed"
    record_result(settings, "release-flights-3", result_of(Stage.RETIRED, releases=["bbb"]), "ann")
    remove_ended(settings, "flights", LATER)
    assert plan_ids_of_data(settings, "flights") == []


def test_rows_of_a_slice_that_is_rolled_back_later_are_removed(settings: Settings) -> None:
    record = plan_at(settings, *TO_APPLIED, kind=BACKFILL)
    rows = written(patch_path(settings, "flights", "aaa", record.plan.id) / "after" / "part.parquet")
    assert plan_ids_of_data(settings, "flights") == []
    record_result(settings, record.plan.id, result_of(Stage.ROLLED_BACK), "ann")
    remove_ended(settings, "flights", LATER)
    assert not rows.exists()
    assert plan_ids_of_data(settings, "flights") == []


@pytest.mark.parametrize(
    ("stages", "is_removed"),
    [
        ((Stage.BUILT,), False),
        (TO_APPLIED, False),
        ((Stage.BUILT, Stage.COMPARED, Stage.REJECTED), True),
        ((*TO_APPLIED, Stage.ROLLED_BACK), True),
    ],
)
def test_rows_of_a_slice_are_removed_when_nothing_can_need_them(
    settings: Settings, stages: tuple[Stage, ...], is_removed: bool
) -> None:
    record = plan_at(settings, *stages, kind=BACKFILL)
    rows = written(patch_path(settings, "flights", "aaa", record.plan.id) / "after" / "part.parquet")
    assert remove_ended(settings, "flights", datetime.now(UTC)) == []
    removed = remove_ended(settings, "flights", LATER)
    assert [(each.policy, each.bytes) for each in removed] == ([("plans", 5)] if is_removed else [])
    assert rows.exists() is not is_removed
    assert (release_path(settings, "flights", "aaa") / "silver" / "part.parquet").exists()


def entered(settings: Settings) -> list[str]:
    writer = open_writer(settings)
    with writer.transaction() as connection:
        found = [*connection.execute(select(projected.c.path)).scalars()]
        found += connection.execute(select(runs.c.release)).scalars()
    writer.close()
    return sorted(found)


@pytest.mark.parametrize("stages", [CANCELLED, (*TO_APPLIED, Stage.ROLLED_BACK)])
def test_comparison_is_removed_when_its_plan_ended(settings: Settings, stages: tuple[Stage, ...]) -> None:
    plan = plan_at(settings, *stages).plan.id
    pages = [written(comparison_path(settings, plan, kind)) for kind in ("json", "html")]
    assert remove_ended(settings, "flights", datetime.now(UTC)) == []
    removed = [each.path for each in remove_ended(settings, "flights", LATER) if each.policy == "plans"]
    has_ended = stages == CANCELLED
    assert removed == ([f"plans/{plan}/comparison.{kind}" for kind in ("json", "html")] if has_ended else [])
    assert [page.exists() for page in pages] == [not has_ended] * 2
    assert load_plan(settings, plan).stage == stages[-1], "the plan itself stays"


def test_snapshot_that_nothing_needs_is_removed_after_the_retention(settings: Settings) -> None:
    published = snapshots_path(settings, "flights") / snapshot_dataset(settings, "flights").release
    plan_at(settings, *CANCELLED)
    plan_at(settings, release="ddd")
    of = {name: written(snapshots_path(settings, "flights") / name / "pipeline.yaml").parent for name in
          ("aaa", "bbb", "ccc", "ddd", ".ddd.1", "never-planned")}  # fmt: skip
    assert remove_ended(settings, "flights", datetime.now(UTC)) == []
    remove_ended(settings, "flights", LATER)
    # aaa is the base of the open plan, ccc has tables that no plan has ended.
    assert [name for name, path in of.items() if path.exists()] == ["aaa", "ccc", "ddd"]
    assert published.is_dir()
    assert released_dataset(settings, "flights", published.name)


def test_removal_deletes_for_a_limited_time_and_another_process_may_continue(settings: Settings) -> None:
    plan_at(settings, *CANCELLED)
    for n in range(20):
        written(release_path(settings, "flights", "bbb") / "gold" / "t" / f"{n}.parquet")
    move_ended(settings, "flights", LATER)
    assert not release_path(settings, "flights", "bbb").exists()
    moved = removed_tables_path(settings, "flights") / "bbb"
    assert not delete_moved(settings, "flights", time.monotonic() - 1)
    assert len(list(moved.rglob("*.parquet"))) == 21
    assert delete_moved(settings, "flights", time.monotonic() + 60)
    assert not moved.exists()


def test_what_repairs_moved_away_is_removed_after_its_own_retention(settings: Settings) -> None:
    old, young = (removed_commits_path(settings, "flights") / each for each in ("20240101T120000Z", "20240102T120000Z"))
    for folder in (old, young):
        written(folder / "silver" / "00000000000000000007.json")
    os.utime(old, (NOON.timestamp(), NOON.timestamp()))
    month = timedelta(days=30)
    assert removable(settings, NOON + month - timedelta(hours=1)) == []
    (removed,) = remove_ended(settings, "flights", NOON + month + timedelta(hours=1))
    assert (removed.policy, removed.path, removed.bytes) == ("removed", "removed/flights/20240101T120000Z", 5)
    assert [each.exists() for each in (old, young)] == [False, True]


def looked_at(settings: Settings) -> list[PartUse]:
    return [use for use in disk_use(settings, "flights") if use.deletable]


def test_storage_shows_what_is_removed_next(settings: Settings) -> None:
    plan = plan_at(settings, *CANCELLED).plan.id
    written(comparison_path(settings, plan, "html"))
    assert looked_at(settings) == [], "the retention has not passed"
    end_long_ago(settings, plan)
    assert {use.part.name: use.deletable for use in looked_at(settings)} == {"silver.flights": 5, "plans": 5}
    move_ended(settings, "flights", datetime.now(UTC))
    (moved,) = looked_at(settings)
    assert (moved.part.name, moved.deletable) == ("being deleted", moved.total)


def end_long_ago(settings: Settings, plan: str) -> None:
    """Set the times of a plan's events back to January."""
    path = plan_path(settings, plan) / "events.jsonl"
    events = [json.loads(line) | {"at": NOON.isoformat()} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_driver_removes_data_of_ended_plans_between_two_runs(settings: Settings) -> None:
    end_long_ago(settings, plan_at(settings, *CANCELLED).plan.id)
    stop, owned = threading.Event(), Mock(is_patching=False, settings=settings, dataset="flights")

    class QuietSource(Source):
        """A source without runs, which fails after three turns of the loop."""

        poll_seconds, turns = 0.0, iter(range(3))

        def keep_reading(self) -> None:
            next(self.turns)

        def run_next(self) -> None:
            return None

    owned.compactable.return_value = []
    loop = DriverLoop(owned, QuietSource(), Mock(), Mock(), stop)
    loop.removal.next_check = 0
    with pytest.raises(StopIteration):
        loop.run()
    assert not release_path(settings, "flights", "bbb").exists()
    assert list(removed_tables_path(settings, "flights").glob("*")) == []


def test_driver_does_not_sleep_while_a_request_is_pending(settings: Settings) -> None:
    stop, owned = threading.Event(), Mock(is_patching=False, settings=settings, dataset="flights")
    asked = list[bool]()

    class RestingSource(Source):
        """A source that has nothing; the request is there for the first two looks."""

        poll_seconds = 0.0

        def run_next(self) -> None:
            return None

        def rests_at(self) -> dict[int, int]:
            asked.append(pending_request(settings, "flights") is not None)
            return {0: 5}

    owned.compactable.return_value, owned.batch = [], 3
    request = OwnerRequest("plan-1", RequestKind.RETIRE, "aaa", after={"weather": "bbb"})
    submit_request(settings, "flights", request)
    loop = DriverLoop(owned, RestingSource(), Mock(), Mock(status=DriverStatus()), stop)
    turns = iter(range(3))

    def is_held() -> bool:
        if next(turns) == 2:
            withdraw_request(settings, "flights")
        return True

    loop.lease.is_held = is_held  # type: ignore[method-assign]
    assert loop.run() == "asleep"
    assert asked == [False]
    assert stop.is_set(), "ingest plans no further batch"


def test_each_step_of_the_removal_is_short(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        end_long_ago(settings, plan_at(settings, *CANCELLED).plan.id)
    removal, tables = AutomaticRemoval(next_check=0), release_path(settings, "flights", "bbb")
    monkeypatch.setattr(upkeep, "SECONDS_AT_ONCE", 0)
    assert [(removal.step(settings, "flights"), tables.exists()) for _ in range(4)] == [
        (True, True), (True, True), (True, False), (True, False)
    ]  # fmt: skip
    monkeypatch.undo()
    assert not removal.step(settings, "flights")
    assert not (removed_tables_path(settings, "flights") / "bbb").exists()
    plan_at(settings, *CANCELLED, release="ccc")
    assert not removal.step(settings, "flights"), "the next look is an hour later"


def test_removal_builds_a_missing_index_in_short_steps(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        end_long_ago(settings, plan_at(settings, *CANCELLED).plan.id)
    shutil.rmtree(index_path(settings).parent)
    removal, entered = AutomaticRemoval(next_check=0), []
    monkeypatch.setattr(upkeep, "SECONDS_AT_ONCE", 0)
    for _ in range(3):
        assert removal.step(settings, "flights")
        entered.append(number_of_plans(settings))
    assert entered == [1, 2, 3]
    monkeypatch.undo()
    while removal.step(settings, "flights"):
        pass
    assert not release_path(settings, "flights", "bbb").exists()
    assert plan_ids_of_data(settings, "flights") == []


def test_plans_without_data_are_passed_over_before_the_look(settings: Settings) -> None:
    plans = [plan_at(settings, *CANCELLED, release=release).plan.id for release in ("gone", "bbb")]
    left = plans.copy()
    pass_over(settings, "flights", left, LATER, time.monotonic() + 60)
    assert left == []
    assert plan_ids_of_data(settings, "flights") == [plans[1]]


@pytest.mark.parametrize("step", [None, "rename", "delete_release"])
def test_removed_release_leaves_the_ledger_also_after_a_crash(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    writer = open_writer(settings)
    with writer.transaction() as connection:
        for release in ("aaa", "bbb", "bbb_"):
            upsert(connection, [Row(runs, {"dataset": "flights", "release": release, "last_batch": 3, "rows_in": 5})])
            upsert(connection, [Row(projected, {"path": f"flights/{release}/silver", "version": 1})])
    writer.close()
    plan_at(settings, *CANCELLED)
    if step is not None:
        target: Any = Path if step == "rename" else ended_plans
        original = getattr(target, step)

        def interrupted(*parameters: Any) -> None:
            original(*parameters)
            raise KeyboardInterrupt

        monkeypatch.setattr(target, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            remove_ended(settings, "flights", LATER)
        monkeypatch.setattr(target, step, original)
    remove_ended(settings, "flights", LATER)
    assert not release_path(settings, "flights", "bbb").exists()
    assert list(removed_tables_path(settings, "flights").glob("*")) == []
    assert entered(settings) == ["aaa", "bbb_", "flights/aaa/silver", "flights/bbb_/silver"]
    assert remove_ended(settings, "flights", LATER) == []
