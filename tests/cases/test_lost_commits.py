"""Tables that lost their last commits to a power cut come back to the same rows: each record once, in every table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from durable_disk import DurableDisk, write_files
from pyspark.sql import SparkSession
from slice_patcher import copy_state
from small_events import departed, flight_event
from small_release import Record, SmallRelease, small_release

from include.declare.dataset import snapshot_dataset
from include.ground.delta_log import LOG, commit_name, latest_version
from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.read.publication import find_publication, replace_publication
from spark_jobs.stream.recovery import planned_rollback, republish

pytestmark = pytest.mark.extended
BATCHES = [
    [flight_event("scheduled", 1), flight_event("scheduled", 2, partition=1), Record(b"no event")],
    [departed(1, 7), departed(2, 30, partition=1), flight_event("scheduled", 1)],
    [departed(3, 9), departed(1, 7), Record(b"{}")],
]


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    release = small_release(spark, Settings(state=tmp_path_factory.mktemp("whole") / "state"), "flights")
    snapshot_dataset(release.settings, "flights")
    for records in BATCHES:
        release.take(records)
    return release


@pytest.fixture
def release(whole: SmallRelease, tmp_path: Path) -> SmallRelease:
    """A copy of the state, with its tables still closed."""
    copy_state(whole.settings.state, tmp_path / "state")
    copied = small_release(whole.spark, Settings(state=tmp_path / "state"), "flights")
    copied.batches, copied.ends = whole.batches, dict(whole.ends)
    return copied


def tables(release: SmallRelease) -> list[Path]:
    """Return the paths of silver, rejected and gold, in this order."""
    writer = release.release.writer
    return [table.spec.path for table in (writer.silver, writer.rejected, *(g.table for g in release.release.gold))]


def lose(path: Path, commits: int) -> None:
    """Remove the table's last commits."""
    for _ in range(commits):
        (path / LOG / commit_name(latest_version(path))).unlink()


def contents(release: SmallRelease) -> dict[str, list[dict[str, object]]]:
    """Return the published rows of all tables, by table, without sketches, which depend on the order of merges."""
    publication = find_publication(release.settings, "flights")
    assert publication is not None
    found = {name: release.read(name).drop("_tails_sketch", strict=False) for name in publication.tables}
    return {name: sorted(rows.to_dicts(), key=repr) for name, rows in found.items()}


def finish(release: SmallRelease) -> None:
    """Refine the missing batches, as the next driver does."""
    release.restart()
    republish(release.settings, release.release)
    begun = release.release.unfinished_run
    while begun or release.refined() < release.batches - 1:
        release.refine(*(begun or (release.refined() + 1, release.refined() + 1)))
        begun = release.release.unfinished_run


def test_commit_of_bronze_lost_before_ingest_continued_is_reported(release: SmallRelease) -> None:
    """A new commit has taken the version of the lost one, so the version when the driver started counts."""
    bronze = release.release.writer.bronze.version
    assert republish(release.settings, release.release, bronze) is None
    event = republish(release.settings, release.release, bronze - 1)
    assert event is not None
    assert event.startswith("bronze.flights lost the last patch of a plan")


def test_publication_ahead_of_all_tables_is_rolled_back(whole: SmallRelease, release: SmallRelease) -> None:
    for path in tables(release):
        lose(path, 2)
    release.restart()
    event = republish(release.settings, release.release)
    assert event is not None
    assert "from batch 2 to 0" in event
    publication = find_publication(release.settings, "flights")
    assert publication is not None
    assert publication.batch == 0
    assert len(contents(release)["silver.flights"]) == 2
    assert republish(release.settings, release.release) is None
    finish(release)
    assert contents(release) == contents(whole)


LOSSES: dict[str, Callable[[list[Path]], None]] = {
    "gold lost two runs": lambda paths: lose(paths[2], 2),
    "silver lost a run that gold has": lambda paths: lose(paths[0], 1),
    "rejected lost two runs": lambda paths: lose(paths[1], 2),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_tables_apart_are_refused_then_rolled_back(whole: SmallRelease, release: SmallRelease, loss: str) -> None:
    LOSSES[loss](tables(release))
    release.restart()
    with pytest.raises(Terminal) as refused:
        republish(release.settings, release.release)
    assert refused.value.code == "commits-lost"
    assert "headrace repair flights" in refused.value.remedy
    planned = planned_rollback(release.settings, "flights")
    assert planned is not None
    planned.execute(release.settings.state / "removed")
    finish(release)
    assert contents(release) == contents(whole)


def test_run_that_is_cut_off_with_power_continues_where_the_disk_ends(
    whole: SmallRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts between any two syncs of a run; what was published before is there, and no table needs a rollback."""
    settings = Settings(state=tmp_path / "state", durability="power")
    release = small_release(whole.spark, settings, "flights")
    snapshot_dataset(settings, "flights")
    disk, cuts = DurableDisk(settings.state), list[dict[Path, bytes]]()
    with disk.recording(monkeypatch):
        for records in BATCHES[:2]:
            release.take(records)
        release.ingest(BATCHES[2])
        disk.after_sync = lambda: cuts.append(disk.files())
        release.refine(2, 2)
    assert len(cuts) > 20
    for number, left in enumerate(cuts[len(cuts) // 4 :: len(cuts) // 2]):
        after = Settings(state=tmp_path / str(number))
        write_files(left, after.state)
        publication = find_publication(after, "flights")
        assert publication is not None
        assert publication.batch >= 1
        assert planned_rollback(after, "flights") is None
        successor = small_release(whole.spark, after, "flights")
        successor.batches, successor.ends = release.batches, release.ends
        finish(successor)
        assert contents(successor) == contents(whole)


def test_lost_patch_is_reported_and_readers_see_the_remaining_rows(release: SmallRelease) -> None:
    publication = find_publication(release.settings, "flights")
    assert publication is not None
    silver = publication.tables["silver.flights"]
    patched = {**publication.tables, "silver.flights": replace(silver, version=silver.version + 1)}
    replace_publication(release.settings, replace(publication, tables=patched))
    event = republish(release.settings, release.release)
    assert event is not None
    assert event.startswith("silver.flights lost the last patch")
    found = find_publication(release.settings, "flights")
    assert found is not None
    assert found.tables == publication.tables
    assert republish(release.settings, release.release) is None


def test_publication_of_empty_tables_is_refused(release: SmallRelease) -> None:
    for path in tables(release):
        lose(path, 3)
    release.restart()
    with pytest.raises(Terminal) as refused:
        republish(release.settings, release.release)
    assert refused.value.code == "published-tables-lost"
