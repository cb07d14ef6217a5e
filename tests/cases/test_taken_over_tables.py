"""A process that becomes the owner of tables removes the commits that an earlier owner did not finish."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from derived_site import DerivedSite, flight, wind
from pyspark.sql import SparkSession
from small_release import SmallRelease, small_release
from test_derived_datasets import site as derived_site
from test_rejected_lifecycle import BATCHES

from include.ground.delta_log import LOG
from include.ground.settings import Settings
from spark_jobs.backends.release import tables_of
from spark_jobs.stream.active_releases import open_active_release
from spark_jobs.tables.commit_log import UNFINISHED
from spark_jobs.tables.delta_table import Table

site = derived_site


def left_by_a_crash(tables: Sequence[Table]) -> list[Path]:
    """Leave an unfinished commit in the log of each table."""
    left = [table.spec.path / LOG / UNFINISHED.replace("*", "12-3a") for table in tables]
    for path in left:
        path.write_text("{")
    return left


def release_of(spark: SparkSession, settings: Settings) -> SmallRelease:
    release = small_release(spark, settings, "flights")
    release.take(BATCHES[0])
    return release


def test_owner_of_a_release_removes_them_from_its_tables_and_leaves_bronze_alone(
    spark: SparkSession, settings: Settings
) -> None:
    """The process that builds a release does not own bronze, to which the stream commits meanwhile."""
    release = release_of(spark, settings)
    bronze = left_by_a_crash([release.bronze])
    left = left_by_a_crash([table for table in tables_of([release.release]) if table is not release.bronze])
    assert len(left) > 2
    open_active_release(spark, settings, release.dataset, release.bronze).lease.release()
    assert [path for path in (*bronze, *left) if path.exists()] == bronze


def test_owner_of_a_derived_dataset_removes_them(site: DerivedSite) -> None:
    site.flights.take([flight(1, 1, 20)])
    site.weather.take([wind(1, 3.0)])
    assert site.follow() == 1
    left = left_by_a_crash([each.target.table for each in site.derived.tables])
    site.restart()
    assert len(site.derived.open_tables()) == len(left) > 0
    assert not [path for path in left if path.exists()]
