"""A run whose tables are committed and whose publication failed: the driver publishes it without another run."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from declared_gold import meter_release, reading
from pyspark.sql import SparkSession

from include.read.publication import read_publication
from spark_jobs.stream import refine
from spark_jobs.stream.active_releases import open_active_release

GOLD = """
  meter_days:
    kind: additive
    window: {column: read_at, size: 1 day, as: day}
    measures: {litres: {sum: litres}}
"""


def test_run_whose_publication_failed_is_published_without_another_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = meter_release(spark, tmp_path, GOLD)
    made.take([reading("d1", 1, 1)])
    last = made.ingest([reading("d1", 2, 2)])
    active = open_active_release(spark, made.settings, made.dataset, made.bronze)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(refine, "publish", full)
        with pytest.raises(OSError, match="No space left"):
            active.refine_next(made.settings, last, publishing=True)
    assert active.refine_next(made.settings, last, publishing=True) is None
    assert read_publication(made.settings, "meter").batch == last - 1
    assert active.refresh(made.settings, publishing=True)
    assert read_publication(made.settings, "meter").batch == last
    active.lease.release()
