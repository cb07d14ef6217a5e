"""What ended releases of a derived dataset leave is removed as its `derived.yaml` declares, as for a stream."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest
from held_lease import HeldLease
from plan_samples import NOON, TO_APPLIED, plan_at

from include.declare.derived_dataset import released_derived, snapshot_derived
from include.ground.paths import log_path, release_path, snapshots_path
from include.ground.settings import CLONE, Settings
from include.observe.ended_plans import disk_use, ended_data, remove_ended
from include.plans.journal import comparison_path
from include.plans.plan import DERIVED_RELEASE, Stage
from include.read.publication import Publication, SourceVersion, publish
from include.run.log_trimming import OF_DATASET
from spark_jobs.stream.derived import DerivedRelease
from spark_jobs.stream.driver_loop import DriverLoop, Source
from spark_jobs.stream.upkeep import AutomaticRemoval

NAME = "weather_delays"
DAY = timedelta(days=1)
CANCELLED = (Stage.BUILT, Stage.COMPARED, Stage.CANCELLED)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The folder's own release is published, with a retention of two days; aaa and bbb have tables."""
    shutil.copytree(CLONE / "include" / "datasets" / NAME, tmp_path / "datasets" / NAME)
    declared = tmp_path / "datasets" / NAME / "derived.yaml"
    declared.write_text(declared.read_text() + "retention: {releases: 2 days, plans: 1 days, logs: 3 days}\n")
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    release = snapshot_derived(settings, NAME).release
    used = {"silver.flights": SourceVersion("flights/r/silver", 3, "r", 3, "0" * 64)}
    publish(settings, Publication(NAME, release, 3, NOON, {}, {}, used))
    for each in ("aaa", "bbb"):
        path = release_path(settings, NAME, each) / "gold" / NAME / "part.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"12345")
    return settings


def removable(settings: Settings, later: timedelta) -> list[str]:
    return [each.path for each in ended_data(settings, NAME, datetime.now(UTC) + later)]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ((Stage.BUILT,), []),
        (TO_APPLIED, []),
        ((*TO_APPLIED, Stage.ROLLED_BACK), []),
        ((*TO_APPLIED, Stage.RETIRED), ["aaa"]),
        (CANCELLED, ["bbb"]),
    ],
)
def test_tables_of_a_derived_release_are_removed_when_its_plan_ended(
    settings: Settings, stages: tuple[Stage, ...], expected: list[str]
) -> None:
    plan_at(settings, *stages, kind=DERIVED_RELEASE, dataset=NAME)
    assert removable(settings, 1 * DAY) == []
    assert removable(settings, 3 * DAY) == [f"warehouse/{NAME}/{name}" for name in expected]


def test_storage_names_what_is_deleted_next_and_the_driver_deletes_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_at(settings, *CANCELLED, kind=DERIVED_RELEASE, dataset=NAME).plan.id
    page = comparison_path(settings, plan, "html")
    page.write_bytes(b"123")
    parts = {(use.part.release, use.part.name): use.deletable for use in disk_use(settings, NAME)}
    assert parts["all", "plans"] == parts["bbb", f"gold.{NAME}"] == 0
    published = next(path.name for path in snapshots_path(settings, NAME).iterdir())
    release = DerivedRelease(settings, released_derived(settings, NAME, published), Mock(), HeldLease())
    loop = DriverLoop(release, Source(), Mock(), Mock(), Event(), removal=AutomaticRemoval(next_check=0))
    monkeypatch.setattr("include.observe.ended_plans._ended_at", lambda _: datetime.now(UTC) - 3 * DAY)
    parts = {(use.part.release, use.part.name): use.deletable for use in disk_use(settings, NAME)}
    assert (parts["all", "plans"], parts["bbb", f"gold.{NAME}"]) == (3, 5)
    loop.keep_up()
    assert not release_path(settings, NAME, "bbb").exists()
    assert release_path(settings, NAME, "aaa").exists()
    assert not page.exists()
    assert remove_ended(settings, NAME, datetime.now(UTC)) == []


def test_logs_and_folders_of_derived_plans_belong_to_the_dataset(settings: Settings) -> None:
    log = log_path(settings, f"plan:derived-release-{NAME}-1")
    match = OF_DATASET.fullmatch(log.name)
    assert match is not None
    assert match[2] == NAME
