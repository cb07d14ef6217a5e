"""Gold of kinds `last` and `fold`: the rows that plain Python makes of each key's, whatever comes when."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from compactable_release import EARLY, assert_same_rows, head_rows
from dealt_events import DEATHS, ORDERS, deal, refined_after_death, take
from declared_gold import audited
from machine_reports import MACHINES, ORACLES, Report, assert_right, published, reports
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from slice_patcher import SlicePatcher, copy_release
from small_release import SmallRelease, small_release
from test_recomputed_history import differing, recomputed, rewrite

from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings
from include.state.release_files import PatchDirection
from spark_jobs.layers.gold_files import history_of, silver_within
from spark_jobs.layers.gold_layer import GoldFailed
from spark_jobs.stream.compaction import compact_tables
from spark_jobs.tables.failpoints import Step

ALL = reports(1, 120)
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])


def opened(spark: SparkSession, folder: Path, backend: str = "local") -> SmallRelease:
    return small_release(spark, Settings(state=folder, backend=backend), "machines", MACHINES)


def lower_watts(folder: Path) -> None:
    path = folder / "contract.yaml"
    path.write_text(path.read_text("utf-8").replace("maximum: 1000", "maximum: 3"), "utf-8")


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Return a release that has taken all reports in four batches."""
    release = opened(spark, tmp_path_factory.mktemp("machines"))
    for first in range(0, len(ALL), 30):
        take(release, ALL[first : first + 30])
    return release


@pytest.fixture
def release(filled: SmallRelease, tmp_path: Path) -> SmallRelease:
    return copy_release(filled, tmp_path / "production")


@pytest.mark.extended
def test_stream_gives_the_rows_that_plain_python_makes(filled: SmallRelease) -> None:
    assert_right(filled, ALL)
    for table in ORACLES:
        assert audited(filled, table) == []


@pytest.mark.parametrize("backend", ["local", pytest.param("spark", marks=pytest.mark.extended)])
def test_rows_of_a_key_that_is_null_are_kept(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    folder = shutil.copytree(MACHINES, tmp_path / "machines", ignore=shutil.ignore_patterns("__pycache__"))
    silver, pipeline = folder / "silver.py", folder / "pipeline.yaml"
    silver.write_text(silver.read_text().replace("return accepted", "return accepted.selectExpr('*', HALL)"))
    silver.write_text(silver.read_text() + "\nHALL = \"nullif(substr(machine, 1, 1), 'm') as hall\"\n")
    pipeline.write_text(pipeline.read_text().replace("keys: [machine, state]", "keys: [hall]"))
    release = small_release(spark, Settings(state=tmp_path / "state", backend=backend), "machines", folder)
    found = [each for each in ALL[:40] if each.watts > 1]
    take(release, ALL[:20])
    take(release, ALL[20:40])
    newest = sorted(found, key=lambda each: each.place)[-2:]
    rows = release.read("gold.last_watts").sort("place").select("hall", "watts", "mean", "reports").rows()
    mean = sum(each.watts for each in newest) / 2
    assert rows == [(None, each.watts, mean, 2) for each in reversed(newest)]
    assert audited(release, "last_watts") == []


@pytest.mark.parametrize("orders", ORDERS)
def test_every_order_of_arrival_and_replay_gives_the_same_rows(
    filled: SmallRelease, spark: SparkSession, tmp_path: Path, orders: Sequence[int]
) -> None:
    for seed in orders:
        other = opened(spark, tmp_path / str(seed))
        for batch in deal(ALL, seed, 1 + seed % 4):
            take(other, batch, seed)
        for table in ORACLES:
            assert published(other, table) == published(filled, table), (seed, table)
    take(other, ALL[:30])
    assert other.rejected().height == 30
    assert_right(other, ALL)


@pytest.mark.extended
def test_rows_after_each_batch_are_those_of_the_reports_so_far(spark: SparkSession, tmp_path: Path) -> None:
    release, so_far = opened(spark, tmp_path), list[Report]()
    for batch, step in zip(deal(ALL, 77, len(DEATHS)), DEATHS, strict=True):
        refined_after_death(release, batch, step)
        so_far += batch
        assert_right(release, so_far)


@pytest.mark.extended
def test_spark_gives_the_same_rows(filled: SmallRelease, spark: SparkSession, tmp_path: Path) -> None:
    by_spark = opened(spark, tmp_path / "spark", "spark")
    for first in range(0, len(ALL), 30):
        take(by_spark, ALL[first : first + 30])
    assert_same_rows(head_rows(by_spark), head_rows(filled))


@pytest.mark.extended
def test_spark_gives_the_same_rows_in_other_orders_and_after_deaths(spark: SparkSession, tmp_path: Path) -> None:
    for seed in range(2):
        release, so_far = opened(spark, tmp_path / str(seed), "spark"), list[Report]()
        for number, batch in enumerate(deal(ALL, seed, 3)):
            take(release, batch, seed) if number else refined_after_death(release, batch, DEATHS[seed])
            so_far += batch
            assert_right(release, so_far)


@pytest.mark.extended
def test_a_slice_that_is_computed_again_is_equal_and_a_correction_is_applied_and_reverted(
    release: SmallRelease, tmp_path: Path
) -> None:
    patcher = SlicePatcher(release, tmp_path)
    for slice_ in (WHOLE_HISTORY, Slice([Span(0, 110, 130, BRONZE)])):
        _, _, differing_rows = patcher.rebuild(slice_)
        assert set(differing_rows.values()) == {0}

    before = {table: published(release, table) for table in ORACLES}
    patch, _, _ = patcher.rebuild(WHOLE_HISTORY, lower_watts)
    patcher.apply(patch)
    assert_right(release, [each for each in ALL if each.watts <= 3])
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    assert {table: published(release, table) for table in ORACLES} == before


def test_a_function_that_fails_on_a_key_names_it_and_publishes_nothing(release: SmallRelease) -> None:
    before = {table: published(release, table) for table in ORACLES}
    number = release.ingest([Report(900, "m1", "on", 700, 60).sent()])
    expected = r"spells fails on .*spells.py:spells fails on the rows of machine='m1': ValueError: 700 watts"
    with pytest.raises(GoldFailed, match=expected) as failed:
        release.refine(number, number)
    assert "release run --dataset machines" in str(failed.value)
    release.restart()
    with pytest.raises(GoldFailed):
        release.refine(number, number)
    assert {table: published(release, table) for table in ORACLES} == before


def test_a_run_reads_only_files_of_the_history_that_counts(release: SmallRelease) -> None:
    late = [Report(900 + n, f"m{n}", "on", 3, 5_000 + n) for n in range(3)]
    number = release.ingest([each.sent() for each in late])
    with pytest.raises(Died), dying_at(Step.SILVER_COMMITTED):
        release.refine(number, number)
    release.restart()
    recent = next(target for target in release.release.gold if target.gold.name == "recent_spells")
    fresh = release.release.writer.silver.batch_files(number, number)
    since = history_of(recent.gold, fresh)
    assert since == late[0].at - timedelta(minutes=10)
    assert silver_within(recent.gold, release.release.writer.silver, None, since) == fresh


def test_compaction_moves_no_row(release: SmallRelease) -> None:
    before = head_rows(release)
    compact_tables(release.settings, [release.release], 600, EARLY)
    assert_same_rows(head_rows(release), before)


@pytest.mark.extended
def test_both_audits_find_a_wrong_row_in_each_table(release: SmallRelease) -> None:
    assert differing(release) == {}
    for target in release.release.gold:
        rewrite(release, target.table, "select * replace (upper(machine) as machine) from rows")
    assert {each.table for each in recomputed(release).differences if each.counts} == {f"gold.{t}" for t in ORACLES}
    for table in ORACLES:
        assert audited(release, table) != []
