"""A release from a batch on: earlier batches are inherited as they are, later ones validated, and no run does both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from compactable_release import METER, reading
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from small_release import SmallRelease, small_release

from include.declare.dataset import ReleaseStart, snapshot_dataset
from include.ground.settings import Settings
from spark_jobs.tables.delta_table import RowsUnaccounted

START, LAST = 2, 3


@pytest.fixture
def late(spark: SparkSession, tmp_path: Path) -> SmallRelease:
    """Return a release that doubles litres from batch 2 on, over the four batches of the release before."""
    folder = tmp_path / "datasets" / "meter"
    shutil.copytree(METER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = Settings(state=tmp_path / "state", datasets=folder.parent)
    base = small_release(spark, settings, "meter", snapshot_dataset(settings, "meter").folder)
    for batch in range(LAST + 1):
        base.take([reading(4 * batch, 1), reading(4 * batch + 1, "seven")])
    code = folder / "silver.py"
    doubled = 'return accepted.withColumn("litres", accepted.litres * 2)'
    code.write_text(code.read_text().replace("return accepted", doubled))
    writer = base.release.writer
    start = ReleaseStart(base.dataset.release, START, writer.silver.version, writer.rejected.version)
    fresh = snapshot_dataset(settings, "meter", start)
    return SmallRelease(spark, settings, fresh, base.epoch, base.ends, base.batches)


@pytest.mark.extended
def test_run_ends_where_inherited_batches_end(late: SmallRelease) -> None:
    bounds = []
    while (run := late.release.next_run(LAST, 1_000)) is not None:
        late.refine(*run)
        bounds.append(run)
        late.restart()
    assert bounds == [(0, START - 1), (START, LAST)]
    assert late.silver().select("_batch_id", "litres").rows() == [(0, 1), (1, 1), (2, 2), (3, 2)]
    assert late.rejected()["_batch_id"].to_list() == [0, 1, 2, 3]


@pytest.mark.parametrize("last", [START, LAST])
def test_run_over_inherited_and_later_batches_commits_nothing(late: SmallRelease, last: int) -> None:
    published, versions = late.silver(), late.versions()
    with pytest.raises(RowsUnaccounted, match="batches before 2 are inherited, later ones validated"):
        late.refine(START - 1, last)
    assert late.versions() == versions
    assert_frame_equal(late.silver(), published)
