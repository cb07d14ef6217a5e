"""A DuckDB database of views: another process reads the published tables with it, all of one publication."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from error_codes import raises
from small_warehouse import SmallWarehouse, bronze_row, rejected_row, silver_row

from include.ground.errors import Refused
from include.ground.paths import silver_path
from include.ground.settings import Settings
from include.read.published_sql import write_catalog
from include.read.published_tables import pinned

READ = """
import duckdb, json, sys
with duckdb.connect(sys.argv[1], read_only=True) as connection:
    print(json.dumps(connection.sql(sys.argv[2]).fetchall(), default=str))
"""


def read_elsewhere(path: Path, sql: str) -> list[list[object]]:
    """The rows of a query in a process that knows nothing of Headrace."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", READ, str(path), sql], cwd="/", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


@pytest.fixture
def warehouse(settings: Settings) -> SmallWarehouse:
    made = SmallWarehouse(settings)
    made.write("bronze", [bronze_row(0, b"{}"), bronze_row(1, b"x")])
    made.write("silver", [silver_row(0, "a")])
    made.write("rejected", [rejected_row(1, "invalid", "malformed")])
    made.move(offsets={0: 2})
    return made


def test_other_process_reads_every_published_table_with_its_types(warehouse: SmallWarehouse, tmp_path: Path) -> None:
    path = tmp_path / "it's a catalog.duckdb"
    assert write_catalog(pinned(warehouse.settings), path) == ["bronze.sales", "silver.sales", "rejected.sales"]
    assert read_elsewhere(path, "select event_id, amount, sold_at from silver.sales") == [
        ["a", "1.50", "2026-03-01 12:00:00+00:00"]
    ]
    assert read_elsewhere(path, "select reasons[1].rule from rejected.sales") == [["malformed"]]
    assert read_elsewhere(path, "select count(*) from bronze.sales where _date = '2026-03-01'") == [[2]]
    (columns,) = read_elsewhere(path, "select list(column_name) from (describe bronze.sales)")
    assert columns == [pinned(warehouse.settings).arrow("bronze.sales").schema.names]
    assert [each.name for each in tmp_path.iterdir() if "state" not in each.name] == [path.name]


def test_database_stays_at_its_publication_until_it_is_written_again(warehouse: SmallWarehouse, tmp_path: Path) -> None:
    path = tmp_path / "catalog.duckdb"
    write_catalog(pinned(warehouse.settings), path)
    warehouse.write("silver", [silver_row(2, "b")])
    count = "select count(*) from silver.sales"
    write_catalog(pinned(warehouse.settings), path)
    assert read_elsewhere(path, count) == [[1]], "what is not published is not shown"
    warehouse.move(offsets={0: 3})
    assert read_elsewhere(path, count) == [[1]]
    write_catalog(pinned(warehouse.settings), path)
    assert read_elsewhere(path, count) == [[2]]


def test_files_from_before_a_column_was_added_have_nulls_in_it(warehouse: SmallWarehouse, tmp_path: Path) -> None:
    table, path = silver_path(warehouse.settings, "sales", warehouse.release), tmp_path / "catalog.duckdb"
    row = {**silver_row(2, "b"), "channel": "web"}
    write_deltalake(table, pa.Table.from_pylist([row]), mode="append", schema_mode="merge")
    warehouse.move(offsets={0: 3})
    write_catalog(pinned(warehouse.settings), path)
    assert read_elsewhere(path, "select event_id, channel from silver.sales order by 1") == [["a", None], ["b", "web"]]


def test_table_without_a_file_is_empty_and_typed(settings: Settings, tmp_path: Path) -> None:
    made, path = SmallWarehouse(settings), tmp_path / "catalog.duckdb"
    made.write("silver", [])
    made.move(offsets={0: 0})
    write_catalog(pinned(settings), path)
    assert read_elsewhere(path, "select sum(amount), count(sold_at) from silver.sales") == [[None, 0]]


def test_file_that_is_no_database_is_not_replaced(warehouse: SmallWarehouse, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine, and longer than a header")
    with raises(Refused, "no-catalog", match="not a DuckDB database"):
        write_catalog(pinned(warehouse.settings), path)
    assert path.read_text().startswith("mine")
    with raises(Refused, "no-catalog", match="is not a folder"):
        write_catalog(pinned(warehouse.settings), tmp_path / "none" / "catalog.duckdb")
