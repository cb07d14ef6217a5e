"""Which log files `headrace repair` removes when a power cut took commits, checkpoints or data files of tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from ledgered_stream import Stream, commit

from include.declare.dataset import snapshot_dataset
from include.ground.delta_log import LOG, checkpoint_file, commit_name, commits, latest_version
from include.ground.paths import bronze_path, gold_path, identities_path, rejected_path, silver_path, warehouse
from include.ground.settings import Settings
from spark_jobs.backends.local.identity_index import IndexRecord, index_file
from spark_jobs.backends.release import are_one_run_apart
from spark_jobs.stream.recovery import PatchBlocksRollback, planned_rollback
from spark_jobs.tables.commit_log import log_tail

RUNS = [(0, 0), (1, 2), (3, 3), (4, 5)]


class Release:
    """A dataset whose tables have the runs RUNS; version n of each table but bronze is the commit of run n - 1."""

    def __init__(self, settings: Settings) -> None:
        dataset = snapshot_dataset(settings, "flights")
        gold = tuple(table.name for table in dataset.pipeline.gold)
        self.settings, self.stream = settings, Stream(settings, "flights", dataset.release, gold)
        for first, last in RUNS:
            self.stream.run(first, last)
        self.write_files()

    def write_files(self) -> None:
        """Write the data files that the commits name."""
        for log in warehouse(self.settings).rglob(LOG):
            for entry in commits(log.parent):
                for file in entry.added:
                    path = log.parent / file.path
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(b"x" * file.size)

    def path(self, table: str) -> Path:
        name, release = "flights", self.stream.release
        if table == "bronze":
            return bronze_path(self.settings, name)
        if table.startswith("gold/"):
            return gold_path(self.settings, name, release, table.removeprefix("gold/"))
        return (silver_path if table == "silver" else rejected_path)(self.settings, name, release)

    def log(self, table: str, version: int) -> Path:
        return self.path(table) / LOG / commit_name(version)

    @property
    def tables(self) -> list[str]:
        return ["bronze", "silver", "rejected", *(f"gold/{name}" for name in self.stream.gold)]

    def repair(self) -> dict[str, list[int]]:
        """Roll back; return the versions of the removed commits by table."""
        planned = planned_rollback(self.settings, "flights")
        if planned is None:
            return {}
        before = {table: latest_version(self.path(table)) for table in self.tables if (self.path(table) / LOG).exists()}
        planned.execute(self.settings.state / "removed")
        assert planned_rollback(self.settings, "flights") is None
        versions = {table: DeltaTable(str(self.path(table))).version() for table in before}
        return {
            table: list(range(versions[table] + 1, last + 1))
            for table, last in before.items()
            if versions[table] < last
        }


@pytest.fixture
def release(settings: Settings) -> Release:
    return Release(settings)


def test_whole_tables_need_no_rollback(release: Release) -> None:
    assert release.repair() == {}


def test_unfinished_run_needs_no_rollback(release: Release) -> None:
    """A crash of the driver leaves tables one run apart; the next driver finishes that run."""
    for table in ("rejected", "gold/carrier_hours"):
        release.log(table, 4).unlink()
    assert release.repair() == {}


def test_tables_that_lost_the_same_batches_need_no_rollback(release: Release) -> None:
    for table in release.tables[1:]:
        release.log(table, 4).unlink()
    assert release.repair() == {}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:200]),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_gold_that_lost_two_runs_takes_the_others_back(release: Release, damage: str) -> None:
    gold = [table for table in release.tables if table.startswith("gold/")]
    for version in (3, 4):
        DAMAGES[damage](release.log(gold[0], version))
    removed = release.repair()
    expected = {table: [3, 4] for table in ["silver", "rejected", *gold]}
    if damage == "missing":
        del expected[gold[0]]
    assert removed == expected
    assert (release.settings.state / "removed/flights" / release.stream.release / "silver" / commit_name(4)).exists()


def test_silver_behind_gold_takes_gold_back(release: Release) -> None:
    """Else gold would add the rows of the repeated run twice."""
    release.log("silver", 4).write_bytes(b"")
    assert release.repair() == {table: [4] for table in release.tables if table != "bronze"}


def test_rollback_removes_the_identity_index(release: Release) -> None:
    """It is derived again: a power cut may have left its files without their content."""
    folder = identities_path(release.settings, "flights", release.stream.release)
    index_file(folder).write(IndexRecord("hash", 0, 4, "digest", ()))
    assert release.repair() == {}
    assert index_file(folder).path.exists()
    release.log("silver", 4).write_bytes(b"")
    release.repair()
    assert not index_file(folder).path.exists()


def test_bronze_that_lost_batches_takes_whole_runs_back(release: Release) -> None:
    """Batch 5 is lost; the last run has batches 4 and 5."""
    release.log("bronze", 6).write_bytes(b"")
    assert release.repair() == {"bronze": [6]} | {table: [4] for table in release.tables if table != "bronze"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_lost_data_file_takes_its_commit_back(release: Release, damage: str) -> None:
    path = next(release.path("silver").glob("b00000005/*"))
    if damage == "cut":
        path.write_bytes(b"x")
    else:
        DAMAGES[damage](path)
    assert release.repair()["silver"] == [4]


def test_unreadable_checkpoint_is_removed(release: Release) -> None:
    DeltaTable(str(release.path("silver"))).create_checkpoint()
    checkpoint_file(release.path("silver"), 4).write_bytes(b"")
    assert release.repair() == {}
    assert not checkpoint_file(release.path("silver"), 4).exists()
    assert DeltaTable(str(release.path("silver"))).version() == 4


def test_data_file_that_a_later_commit_removed_is_not_needed(release: Release) -> None:
    silver = DeltaTable(str(release.path("silver")))
    silver.delete("true")
    for path in release.path("silver").glob("b*/*"):
        path.unlink()
    assert log_tail(release.path("silver")).whole == 5
    release.log("silver", 5).write_bytes(b"")
    assert log_tail(release.path("silver")).whole == 0


@pytest.mark.parametrize(
    ("run", "batches", "holds"),
    [
        ((4, 5), [5, 5, 5], True),
        ((4, 5), [5, 3, 5], True),
        ((4, 5), [5, 5, 2], False),
        ((4, 5), [5, 6, 5], False),
        ((4, 5), [5, 4, 5], False),
        ((-1, -1), [-1, -1], True),
        ((-1, -1), [-1, 0], False),
    ],
)
def test_tables_of_a_crash_are_at_most_one_run_apart(run: tuple[int, int], batches: list[int], holds: bool) -> None:
    assert are_one_run_apart(run, batches) is holds


def test_patch_is_not_removed(release: Release) -> None:
    metadata = {"plan": "replay-1", "direction": 1, "app_id": "flights/x/plan/replay-1", "batch": 5}
    commit(release.path("silver"), "flights/x/plan/replay-1", 1, metadata)
    release.write_files()
    for version in (3, 4):
        release.log("rejected", version).unlink()
    with pytest.raises(PatchBlocksRollback, match="replay-1") as refused:
        planned_rollback(release.settings, "flights")
    assert refused.value.plan == "replay-1"
