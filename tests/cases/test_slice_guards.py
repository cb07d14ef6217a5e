"""A patch is refused, and a rebuilt slice is not used, where tables are not what the plan was made for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fewer_gold_tables import small_flights
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_events import departed
from small_release import SmallRelease
from test_slices import lower_distance, visible

from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings
from include.read.publication import publish, read_publication
from include.state.release_files import PatchDirection
from spark_jobs.backends.local import backend
from spark_jobs.history import rebuild_slice
from spark_jobs.history.apply_patch import PatchOutdated
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import RowsUnaccounted, Table

WINNER, LOSER = (0, 100), (1, 5000)
TOO_FAR = (0, 101), (0, 102)
BATCHES = [
    [departed(1, 5), departed(2, 9, distance=99_999), departed(2, 9, distance=99_998)],
    [departed(1, 7, partition=1)],
]


@pytest.fixture(scope="module")
def production(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    return small_flights(spark, Settings(state=tmp_path_factory.mktemp("guards") / "production"), BATCHES)


def only(position: tuple[int, int]) -> Slice:
    """Return the slice of one record."""
    partition, offset = position
    return Slice([Span(partition, offset, offset + 1, BRONZE)])


def raise_distance(folder: Path) -> None:
    """Make the contract weaker: no flight is too far."""
    path = folder / "contract.yaml"
    text = path.read_text("utf-8")
    assert "maximum: 12000}" in text
    path.write_text(text.replace("maximum: 12000}", "maximum: 100000}"), "utf-8")


def lose(release: SmallRelease, table: Table, is_lost: Callable[[DataFile], bool]) -> None:
    """Remove files of a table, and publish it as it is then."""
    table.commit("loss", 0, {"table": table.spec.name}, [], [file for file in table.files() if is_lost(file)])
    found, name = read_publication(release.settings, release.dataset.name), table.spec.name
    tables = {**found.tables, name: replace(found.tables[name], version=table.version)}
    publish(release.settings, replace(found, tables=tables))


@pytest.mark.extended
def test_patch_is_refused_after_another_one_has_added_its_identity(patcher: SlicePatcher) -> None:
    first, second = (patcher.rebuild(only(position), raise_distance)[0] for position in TOO_FAR)
    patcher.apply(first)
    before, versions = visible(patcher.production), patcher.production.versions()
    with pytest.raises(PatchOutdated, match="another record of the same identity has arrived"):
        patcher.apply(second)
    assert (visible(patcher.production), patcher.production.versions()) == (before, versions)
    patcher.apply(replace(first, direction=PatchDirection.REVERT))
    patcher.apply(second)
    assert patcher.production.silver().filter(flight=2)["_offset"].to_list() == [TOO_FAR[1][1]]


def test_record_that_silver_has_lost_is_recovered_by_a_slice_of_its_duplicate(patcher: SlicePatcher) -> None:
    release, expected = patcher.production, visible(patcher.production)
    lose(release, release.release.writer.silver, lambda file: file.overlaps("_batch_id", 0, 0))
    assert release.silver().is_empty()
    patch, rebuilt, differing = patcher.rebuild(only(LOSER))
    assert (rebuilt.core, rebuilt.closure) == (1, 1)
    assert (differing["silver.flights"], differing["rejected.flights"]) == (1, 0)
    patcher.apply(patch)
    assert visible(release) == expected


def test_slice_is_refused_when_bronze_lacks_a_record_that_it_needs(patcher: SlicePatcher) -> None:
    release = patcher.production
    lose(release, release.bronze, lambda file: file.overlaps("_batch_id", 1, 1))
    with pytest.raises(RowsUnaccounted, match="the slice needs 1 records of other batches, bronze has 0 of them"):
        patcher.rebuild(only(WINNER), lower_distance)


def test_slice_that_loses_a_record_is_refused(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    lossy = f"select * from ({rebuild_slice.ORIGINALS}) where false"
    monkeypatch.setattr(rebuild_slice, "ORIGINALS", lossy)
    with pytest.raises(RowsUnaccounted, match="2 records were rebuilt into 1 rows"):
        patcher.rebuild(only(WINNER))


def test_patch_that_would_lose_a_row_is_refused(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, _, _ = patcher.rebuild(only(TOO_FAR[0]), raise_distance)
    before, versions = visible(patcher.production), patcher.production.versions()
    monkeypatch.setattr(backend, "REPLACED", f"select * from ({backend.REPLACED}) limit 0")
    with pytest.raises(PatchOutdated) as refused:
        patcher.apply(patch)
    assert isinstance(refused.value.__cause__, RowsUnaccounted)
    assert (visible(patcher.production), patcher.production.versions()) == (before, versions)
