"""Published tables are read at the versions of one publication, lazily, from paths with spaces."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from small_warehouse import SmallWarehouse, silver_row

from include.ground.delta_log import LOG, commit_name
from include.ground.settings import Settings
from include.read.published_tables import PublishedVersionGone, TableUnknown, pinned


@pytest.fixture
def warehouse(settings: Settings) -> SmallWarehouse:
    made = SmallWarehouse(settings)
    made.write("silver", [silver_row(0, "a"), silver_row(1, "b")])
    made.write("rejected", [])
    made.move(batch=0)
    return made


def test_table_in_a_path_with_a_space_is_read(settings: Settings, warehouse: SmallWarehouse) -> None:
    assert " " in str(pinned(settings).table("silver.sales").path)
    assert pinned(settings).read("silver.sales").collect().sort("event_id")["event_id"].to_list() == ["a", "b"]


def test_only_requested_columns_are_read(settings: Settings, warehouse: SmallWarehouse) -> None:
    frame = pinned(settings).read("silver.sales", columns=["event_id", "amount"]).filter(pl.col("event_id") == "b")
    assert frame.collect().columns == ["event_id", "amount"]
    assert frame.collect().height == 1


def test_filter_is_pushed_down_to_the_files(settings: Settings, warehouse: SmallWarehouse) -> None:
    plan = pinned(settings).read("silver.sales").filter(pl.col("_offset") == 1).explain()
    assert "SELECTION" in plan
    assert "FILTER" not in plan


def test_unpublished_rows_are_not_read(settings: Settings, warehouse: SmallWarehouse) -> None:
    warehouse.write("silver", [silver_row(2, "c", batch=1)])
    assert pinned(settings).read("silver.sales").collect().height == 2


def test_pinned_tables_stay_while_the_publication_moves(settings: Settings, warehouse: SmallWarehouse) -> None:
    before = pinned(settings)
    warehouse.write("silver", [silver_row(2, "c", batch=1)])
    warehouse.move(batch=1)
    assert before.read("silver.sales").collect().height == 2
    assert pinned(settings).read("silver.sales").collect().height == 3


def test_row_and_file_counts_come_from_the_log(settings: Settings, warehouse: SmallWarehouse) -> None:
    warehouse.write("silver", [silver_row(2, "c", batch=1)])
    warehouse.move(batch=1)
    reading = pinned(settings)
    for file in reading.table("silver.sales").path.rglob("*.parquet"):
        file.unlink()
    facts = reading.facts("silver.sales")
    assert (facts.rows, facts.files) == (3, 2)
    assert facts.size > 0
    empty = reading.facts("rejected.sales")
    assert (empty.rows, empty.files, empty.size) == (0, 0, 0)


def test_unknown_table_lists_the_known_ones(settings: Settings, warehouse: SmallWarehouse) -> None:
    with pytest.raises(TableUnknown) as refused:
        pinned(settings).read("gold.nothing")
    assert refused.value.name == "gold.nothing"
    assert refused.value.known == ("rejected.sales", "silver.sales")


def test_missing_published_version_is_named(settings: Settings, warehouse: SmallWarehouse) -> None:
    reading = pinned(settings)
    shutil.rmtree(reading.table("silver.sales").path)
    with pytest.raises(PublishedVersionGone) as refused:
        reading.read("silver.sales")
    assert refused.value.table.version == 0


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b""), lambda file: file.unlink()])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_log_that_lost_a_commit_is_refused(
    settings: Settings, warehouse: SmallWarehouse, version: int, damage: Callable[[Path], object]
) -> None:
    """delta-rs reads an empty commit file as a commit without actions and returns the rows of the others."""
    for number in (2, 3, 4):
        warehouse.write("silver", [silver_row(number, f"e{number}", batch=number)])
        if number < 4:
            warehouse.move(batch=number)
    damage(commit_file(warehouse, version))
    with pytest.raises(PublishedVersionGone, match=f"{version}.json is (empty|missing)"):
        pinned(settings).read("silver.sales")


def test_commits_outside_the_published_version_are_not_needed(settings: Settings, warehouse: SmallWarehouse) -> None:
    warehouse.write("silver", [silver_row(2, "c", batch=1)])
    DeltaTable(str(warehouse.names["silver.sales"])).create_checkpoint()
    warehouse.write("silver", [silver_row(3, "d", batch=2)])
    warehouse.move(batch=2)
    warehouse.write("silver", [silver_row(4, "e", batch=3)])
    commit_file(warehouse, 0).write_bytes(b"")
    commit_file(warehouse, 3).write_bytes(b"")
    assert pinned(settings).read("silver.sales").collect()["event_id"].sort().to_list() == ["a", "b", "c", "d"]


def commit_file(warehouse: SmallWarehouse, version: int) -> Path:
    return warehouse.names["silver.sales"] / LOG / commit_name(version)
