"""Removal of ended releases' tables and ended plans' rows: what a declared retention names, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from plan_samples import NOON, TO_APPLIED, plan_at, publication
from sqlalchemy import select

from include.catalog.dataset import snapshot_dataset
from include.ledger.commit_rows import Row
from include.ledger.ledger_rows import upsert
from include.ledger.ledger_schema import projected, runs
from include.ledger.ledger_writer import open_writer
from include.paths import patch_path, plan_path, release_lease_path, release_path, removed_tables_path
from include.plans import ended_plans
from include.plans.ended_plans import ended_data, remove_ended
from include.plans.plan import BACKFILL
from include.plans.plan_journal import PlanUnreadable
from include.plans.stage_results import Stage
from include.reading.publication import publish
from include.settings import Settings
from include.state.file_locks import take_lock
from include.state.release_files import active_releases_file

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
        (CANCELLED, ["flights/bbb"]),
        ((Stage.BUILT, Stage.COMPARED, Stage.REJECTED), ["flights/bbb"]),
        (RETIRED, ["flights/aaa"]),
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
    assert removable(settings) == ["flights/bbb"]
    plan_at(settings, *CANCELLED, release=snapshot_dataset(settings, "flights").release)
    assert removable(settings) == ["flights/bbb"]


def test_nothing_is_removed_while_a_plan_cannot_be_read(settings: Settings) -> None:
    plan_at(settings, *CANCELLED)
    (plan_path(settings, "release-flights-1.bak")).mkdir()
    assert removable(settings) == ["flights/bbb"]
    (plan_path(settings, plan_at(settings).plan.id) / "plan.json").write_text("{")
    with pytest.raises(PlanUnreadable, match="release-flights-2"):
        removable(settings)


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
