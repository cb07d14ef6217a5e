"""Fixtures of the golden cases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from batch_snapshots import BatchSnapshots, TakeBatches
from pyspark.sql import SparkSession
from small_release import Record, small_release

from include.settings import Settings


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
