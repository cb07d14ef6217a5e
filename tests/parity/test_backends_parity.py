"""Both backends give the same rows: every column of every table, and a release begun on one continues on the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from deliveries import Batch, days_of, deliveries, split_in_order
from deltalake import DeltaTable
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from release_contents import assert_accounted, assert_same_contents, release_contents
from simulated_deaths import CRASH_STEPS, Died, dying_at
from small_release import SmallRelease, small_release

from include.ground.delta_log import commits
from include.ground.settings import Settings
from include.producers.faults import Shares
from spark_jobs.backends.release import tables_of
from spark_jobs.tables.failpoints import Step

SHARES = Shares(duplicates=0.08, late=0.05, reorder=0.2, corrupt=0.05)
DAYS = {"flights": days_of("2013-01-31", "2013-02-01"), "weather": days_of("2013-01-31", "2013-11-03")}
CUTS = 4
STEPS = [step for step in CRASH_STEPS if step is not Step.NEXT_VALIDATED]
"""Spark validates no run ahead."""
UNSTABLE = ("rows", "published_at", "transaction", "transactions")


def batches_of(name: str) -> list[Batch]:
    sent = deliveries(name, DAYS[name], SHARES, 11)
    return split_in_order(sent, CUTS, np.random.default_rng(11))


def opened(spark: SparkSession, state: Path, name: str, backend: str) -> SmallRelease:
    return small_release(spark, Settings(state=state, backend=backend), name)


@pytest.fixture(scope="module", params=sorted(DAYS))
def local(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> SmallRelease:
    """Return a release that the driver's process has filled batch by batch."""
    release = opened(spark, tmp_path_factory.mktemp("by the driver"), request.param, "local")
    for batch in batches_of(request.param):
        release.take(batch)
    return release


def rows_of(release: SmallRelease, table: str) -> pl.DataFrame:
    rows = release.read(table)
    sketches = [name for name in rows.columns if name.endswith("_sketch")]
    sortable = [name for name, kind in rows.drop(sketches).schema.items() if not isinstance(kind, pl.List | pl.Struct)]
    return rows.drop(sketches).select(sorted(set(rows.columns) - set(sketches))).sort(sorted(sortable))


def tables(release: SmallRelease) -> list[str]:
    return [table.spec.name for table in tables_of([release.release])]


def assert_same_rows(found: SmallRelease, expected: SmallRelease) -> None:
    """Assert that all rows are equal with coordinates, batches, revisions and the states of measures."""
    assert tables(found) == tables(expected)
    for table in tables(expected):
        assert_frame_equal(rows_of(found, table), rows_of(expected, table))


def facts(release: SmallRelease, table: str) -> list[dict[str, object]]:
    """Return the metadata of a table's commits, without what no reader compares."""
    (path,) = [each.spec.path for each in tables_of([release.release]) if each.spec.name == table]
    found = [each.metadata for each in commits(path) if each.metadata]
    return [{key: value for key, value in each.items() if key not in (*UNSTABLE, "epoch")} for each in found]


def assert_same_facts(found: SmallRelease, expected: SmallRelease) -> None:
    for table in tables(expected):
        assert facts(found, table) == facts(expected, table), table


@pytest.mark.extended
def test_spark_gives_the_rows_and_the_metadata_of_the_drivers_process(
    local: SmallRelease, spark: SparkSession, tmp_path: Path
) -> None:
    name = local.dataset.name
    release = opened(spark, tmp_path, name, "spark")
    for batch in batches_of(name):
        release.take(batch)
    assert_accounted(release)
    assert_same_rows(release, local)
    assert_same_facts(release, local)
    for table in tables_of([release.release]):
        protocol = DeltaTable(str(table.spec.path)).protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2), table.spec.name
        log = [each for each in commits(table.spec.path) if each.added or each.removed]
        assert [each.version for each in log if each.owner is None] == [], "a commit of rows is not fenced"


@pytest.mark.extended
@pytest.mark.parametrize("backends", [("spark", "local", "local", "spark"), ("local", "spark", "local", "spark")])
@pytest.mark.parametrize("local", ["flights"], indirect=True)
def test_release_that_one_backend_began_is_continued_by_the_other(
    local: SmallRelease, spark: SparkSession, tmp_path: Path, backends: Sequence[str]
) -> None:
    name = local.dataset.name
    release = opened(spark, tmp_path, name, backends[0])
    for backend, batch in zip(backends, batches_of(name), strict=True):
        release.settings = replace_backend(release.settings, backend)
        release.restart()
        release.take(batch)
    assert_accounted(release)
    assert_same_rows(release, local)


def replace_backend(settings: Settings, backend: str) -> Settings:
    return settings.model_copy(update={"backend": backend})


@pytest.mark.extended
def test_spark_continues_after_a_death_at_each_step(local: SmallRelease, spark: SparkSession, tmp_path: Path) -> None:
    name = local.dataset.name
    sent = deliveries(name, DAYS[name], SHARES, 11)
    batches = split_in_order(sent, len(STEPS) + 1, np.random.default_rng(12))
    release = opened(spark, tmp_path, name, "spark")
    for step in STEPS:
        with pytest.raises(Died), dying_at(step):
            take_next(release, batches)
        release.restart()
    while release.refined() < len(batches) - 1:
        take_next(release, batches)
    assert_accounted(release)
    assert_same_contents(release_contents(release), release_contents(local))


def take_next(release: SmallRelease, batches: list[Batch]) -> None:
    """Act as a driver after its start: finish an unfinished run, then take the next batch."""
    release.catch_up_publication()
    if (begun := release.begun()) is not None:
        release.refine(*begun)
    number = release.refined() + 1
    if release.batches <= number < len(batches):
        release.ingest(batches[number])
    if number < len(batches):
        release.refine(number, number)
