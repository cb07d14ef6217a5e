"""Fixtures of the golden cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from batch_snapshots import BatchSnapshots, TakeBatches
from compactable_release import compactable_release
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher, copy_release
from small_release import Record, SmallRelease, small_release

from include.ground.settings import Settings


@pytest.fixture(scope="module")
def take_batches(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> TakeBatches:
    """Return a function that refines batches of a dataset, one run per batch, in a new release."""

    def taken(dataset: str, batches: Sequence[Sequence[Record]], cut_gold: bool = False) -> BatchSnapshots:
        snapshots = BatchSnapshots(small_release(spark, Settings(state=tmp_path_factory.mktemp("a state")), dataset))
        if cut_gold:
            snapshots.release.cut_gold()
        for records in batches:
            snapshots.take(records)
        return snapshots

    return taken


@pytest.fixture(scope="session")
def compactable(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Return a release with five batches, each with a file in every table; tests change copies of it."""
    return compactable_release(spark, tmp_path_factory.mktemp("compaction"))


@pytest.fixture(scope="module")
def production(compactable: SmallRelease) -> SmallRelease:
    """Return the release that `patcher` copies; modules override it."""
    return compactable


@pytest.fixture
def patcher(production: SmallRelease, tmp_path: Path) -> SlicePatcher:
    """Return a patcher on the test's own copy of the release."""
    return SlicePatcher(copy_release(production, tmp_path / "production"), tmp_path)


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.extended)])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend; the cases by Spark are of `make test-all`."""
    return str(request.param)
