"""Gold of kind `changes`: the rows that plain Python makes of the changes, whatever comes when, by both backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from account_changes import ACCOUNTS, Change, assert_right, history, published, snapshot, versions
from compactable_release import EARLY, assert_same_rows, head_rows
from dealt_events import DEATHS, ORDERS, deal, refined_after_death, take
from declared_gold import audited
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher, copy_release
from small_release import SmallRelease, small_release
from test_recomputed_history import differing, recomputed, rewrite

from include.change.compare import Side, compare
from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings
from include.read.published_tables import open_dataset, published_tables
from include.state.release_files import PatchDirection
from spark_jobs.stream.compaction import compact_tables

CHANGES = history(1, 120)
OVERLAPPING = snapshot(CHANGES, 600)
ALL = [*CHANGES, *OVERLAPPING]
TABLES = ("account_now", "account_versions")
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])


def opened(spark: SparkSession, folder: Path, backend: str = "local") -> SmallRelease:
    return small_release(spark, Settings(state=folder, backend=backend), "accounts", ACCOUNTS)


def lower_balance(folder: Path) -> None:
    path = folder / "contract.yaml"
    path.write_text(path.read_text("utf-8").replace("maximum: 1000", "maximum: 1"), "utf-8")


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Return a release that has taken all changes in four batches, in the order of the table."""
    release = opened(spark, tmp_path_factory.mktemp("accounts"))
    for first in range(0, len(ALL), 40):
        take(release, ALL[first : first + 40])
    return release


@pytest.fixture
def release(filled: SmallRelease, tmp_path: Path) -> SmallRelease:
    return copy_release(filled, tmp_path / "production")


@pytest.mark.extended
def test_stream_gives_the_rows_of_the_table_and_a_snapshot_doubles_nothing(filled: SmallRelease) -> None:
    assert_right(filled, ALL)
    assert [row[:3] for row in versions(ALL)] == [row[:3] for row in versions(CHANGES)]
    assert any(row[-1] for row in versions(ALL))
    for table in TABLES:
        assert audited(filled, table) == []


@pytest.mark.parametrize("orders", ORDERS)
def test_every_order_of_arrival_and_replay_gives_the_same_rows(
    filled: SmallRelease, spark: SparkSession, tmp_path: Path, orders: Sequence[int]
) -> None:
    for seed in orders:
        other = opened(spark, tmp_path / str(seed))
        for batch in deal(ALL, seed, 1 + seed % 4):
            take(other, batch, seed)
        for table in TABLES:
            assert published(other, table) == published(filled, table), (seed, table)
    take(other, CHANGES[:30])
    assert other.rejected().height == 30
    assert_right(other, ALL)


@pytest.mark.extended
def test_rows_after_each_batch_are_those_of_the_changes_so_far(spark: SparkSession, tmp_path: Path) -> None:
    release, so_far = opened(spark, tmp_path), list[Change]()
    for batch, step in zip(deal(ALL, 77, len(DEATHS)), DEATHS, strict=True):
        refined_after_death(release, batch, step)
        so_far += batch
        assert_right(release, so_far)


@pytest.mark.extended
def test_spark_gives_the_same_rows(filled: SmallRelease, spark: SparkSession, tmp_path: Path) -> None:
    by_spark = opened(spark, tmp_path / "spark", "spark")
    for first in range(0, len(ALL), 40):
        take(by_spark, ALL[first : first + 40])
    assert_same_rows(head_rows(by_spark), head_rows(filled))


@pytest.mark.extended
def test_spark_gives_the_same_rows_in_other_orders_and_after_deaths(spark: SparkSession, tmp_path: Path) -> None:
    for seed in range(3):
        release, so_far = opened(spark, tmp_path / str(seed), "spark"), list[Change]()
        for number, batch in enumerate(deal(ALL, seed, 3)):
            take(release, batch, seed) if number else refined_after_death(release, batch, DEATHS[seed])
            so_far += batch
            assert_right(release, so_far)


@pytest.mark.extended
def test_a_slice_that_is_computed_again_is_equal_and_a_correction_is_applied_and_reverted(
    release: SmallRelease, tmp_path: Path
) -> None:
    patcher = SlicePatcher(release, tmp_path)
    _, rebuilt, differing_rows = patcher.rebuild(WHOLE_HISTORY)
    assert (rebuilt.closure, set(differing_rows.values())) == (0, {0})
    corner = Slice([Span(0, 110, 130, BRONZE)])
    _, _, differing_rows = patcher.rebuild(corner)
    assert set(differing_rows.values()) == {0}

    before = {table: published(release, table) for table in TABLES}
    patch, _, _ = patcher.rebuild(WHOLE_HISTORY, lower_balance)
    patcher.apply(patch)
    kept = [each for each in ALL if each.balance != 2]
    assert_right(release, kept)
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    assert {table: published(release, table) for table in TABLES} == before


def test_compaction_moves_no_row_and_comparison_finds_equal_tables(release: SmallRelease) -> None:
    before = head_rows(release)
    compact_tables(release.settings, [release.release], 600, EARLY)
    assert_same_rows(head_rows(release), before)
    tables = {name: open_dataset(table) for name, table in published_tables(release.settings).items()}
    side = Side(release.dataset, tables)
    assert [each.changed for each in compare(side, side, 3, 0, lambda _: None).tables] == [0] * 4


@pytest.mark.extended
def test_audits_find_a_row_that_was_deleted_and_is_there_and_a_version_that_ends_elsewhere(
    release: SmallRelease,
) -> None:
    assert differing(release) == {}
    now, past = (target.table for target in release.release.gold)
    rewrite(release, now, "from rows union all (select * replace (77 as id) from rows limit 1)")
    rewrite(release, past, "select * replace (coalesce(valid_to, now()) as valid_to) from rows")
    found = {each.table: each.counts for each in recomputed(release).differences if each.counts}
    assert found.keys() == {"gold.account_now", "gold.account_versions"}
    for table in TABLES:
        assert audited(release, table) != []
