"""Silver's files of a run: the accepted rows without duplicates, by month, in row groups of bounded rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from indexed_silver import BOUNDED, COLUMNS
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.backends.local import duckdb_session as partitioned_files
from spark_jobs.backends.local.arrow_files import Words, batches_in_files, packed_places
from spark_jobs.backends.local.runs import originals_in_memory, write_originals
from spark_jobs.tables.data_files import HIVE_NULL, ParquetWriting, TableSpec
from spark_jobs.tables.delta_table import Table

NOON = datetime(2013, 3, 1, 12, tzinfo=UTC)
WRITING = ParquetWriting(distinct=("event_id",), compression="zstd", rows_per_group=4)
NONE = np.empty(0, np.uint64)


@pytest.fixture
def silver(tmp_path: Path) -> Table:
    return Table(TableSpec("silver.flights", tmp_path / "silver", COLUMNS, "_month", BOUNDED, writing=WRITING))


def rows(first: int, months: list[str | None], partition: int = 0) -> pa.Table:
    """Return a row for each month, at increasing offsets."""
    count = len(months)
    columns = {
        "event_id": [f"e{partition}{number}" for number in range(first, first + count)],
        "occurred_at": [NOON] * count,
        "_topic": ["flights"] * count,
        "_timestamp": [NOON] * count,
        "_partition": [partition] * count,
        "_offset": list(range(first, first + count)),
        "_batch_id": [7] * count,
        "_month": months,
    }
    return pa.table(columns, to_arrow_schema(COLUMNS, timezone="UTC"))


@pytest.fixture
def accepted(tmp_path: Path) -> list[Path]:
    """Return an Arrow file of several batches and a Parquet file."""
    arrow, parquet = tmp_path / "a.arrow", tmp_path / "b.parquet"
    mixed = rows(0, ["2013-03"] * 7 + ["2013-04", "2013-03", None])
    with pa.OSFile(str(arrow), "wb") as file, pa.ipc.new_file(file, mixed.schema) as writer:
        writer.write_table(mixed, max_chunksize=3)
    pq.write_table(rows(0, ["2013-04", "2013-03"], partition=1), parquet)
    return [arrow, parquet]


def places(*found: tuple[int, int]) -> Words:
    partitions, offsets = np.array(found, np.int64).T
    return np.sort(packed_places(partitions, offsets))


def written(silver: Table, accepted: list[Path], duplicates: Words) -> dict[str, list[str]]:
    """Return the identities in each partition's file, and check that the footer is as the file's name says."""
    files = write_originals(silver, accepted, duplicates, "run")
    assert len({file.partition for file in files}) == len(files)
    tables = {file.partition: pq.read_table(silver.spec.path / file.path, partitioning=None) for file in files}
    assert {file.partition: file.rows for file in files} == {name: len(table) for name, table in tables.items()}
    assert all(table.column_names == silver.spec.data_schema.names for table in tables.values())
    return {name: table["event_id"].to_pylist() for name, table in tables.items()}


def test_each_month_gets_its_rows_in_the_order_of_the_files(silver: Table, accepted: list[Path]) -> None:
    assert written(silver, accepted, NONE) == {
        "2013-03": [*(f"e0{number}" for number in range(7)), "e08", "e11"],
        "2013-04": ["e07", "e10"],
        HIVE_NULL: ["e09"],
    }


def test_duplicates_are_left_out_by_partition_and_offset(silver: Table, accepted: list[Path]) -> None:
    found = written(silver, accepted, places((0, 1), (1, 0), (0, 9), (1, 5)))
    assert found == {"2013-03": ["e00", *(f"e0{number}" for number in range(2, 7)), "e08", "e11"], "2013-04": ["e07"]}
    kept = originals_in_memory(accepted, ["event_id"], places((0, 1), (1, 0), (0, 9)))
    assert kept.column_names == ["event_id"]
    assert sorted(kept["event_id"].to_pylist()) == sorted(found["2013-03"] + found["2013-04"])


def test_run_of_duplicates_alone_has_no_file(silver: Table, accepted: list[Path]) -> None:
    everything = places(*((0, number) for number in range(10)), (1, 0), (1, 1))
    assert written(silver, accepted, everything) == {}
    assert written(silver, [], NONE) == {}
    assert list(silver.spec.path.glob("run*")) == []


def test_row_groups_have_as_many_rows_as_declared(silver: Table, accepted: list[Path]) -> None:
    (march,) = [file for file in write_originals(silver, accepted, NONE, "run") if file.partition == "2013-03"]
    footer = pq.read_metadata(silver.spec.path / march.path)
    assert [footer.row_group(number).num_rows for number in range(footer.num_row_groups)] == [4, 4, 1]
    assert not footer.row_group(0).column(0).has_dictionary_page
    assert (march.low["_offset"], march.high["_offset"]) == (0, 8)


def test_files_have_the_same_columns_whatever_may_be_null(silver: Table, tmp_path: Path) -> None:
    made = rows(0, ["2013-03"])
    strict = pa.schema([field.with_nullable(False) for field in made.schema])
    pq.write_table(made, tmp_path / "loose.parquet")
    pq.write_table(made.cast(strict), tmp_path / "strict.parquet")
    spec = replace(silver.spec, path=tmp_path / "other")
    (loose,) = write_originals(silver, [tmp_path / "loose.parquet"], NONE, "run")
    (other,) = write_originals(Table(spec), [tmp_path / "strict.parquet"], NONE, "run")
    schemas = [pq.read_metadata(path).schema for path in (silver.spec.path / loose.path, spec.path / other.path)]
    assert schemas[0].equals(schemas[1])


def test_file_without_rows_gives_no_rows_with_the_columns(tmp_path: Path) -> None:
    """Spark's Parquet writer leaves one on a cluster, when no record is accepted."""
    pq.write_table(rows(0, []), tmp_path / "empty.parquet")
    found = originals_in_memory([tmp_path / "empty.parquet"], ["event_id"], NONE)
    assert (found.column_names, len(found)) == (["event_id"], 0)


def test_files_of_queries_that_know_more_or_less_of_nulls_are_read_together(tmp_path: Path) -> None:
    made = rows(0, ["2013-03"])
    strict = pa.schema([field.with_nullable(False) for field in made.schema])
    pq.write_table(made.cast(strict), tmp_path / "strict.parquet")
    pq.write_table(rows(1, ["2013-03"]), tmp_path / "loose.parquet")
    found = originals_in_memory([tmp_path / "strict.parquet", tmp_path / "loose.parquet"], ["event_id"], NONE)
    assert found["event_id"].to_pylist() == ["e00", "e01"]


def test_struct_without_a_value_may_have_members_that_are_never_null(tmp_path: Path) -> None:
    member = StructType([StructField("code", StringType(), nullable=False)])
    columns = StructType([StructField("detail", member), *COLUMNS.fields])
    table = Table(TableSpec("silver.flights", tmp_path / "silver", columns, "_month", BOUNDED, writing=WRITING))
    detail = pa.array([None, {"code": "a"}], pa.struct([("code", pa.string())]))
    made = rows(0, ["2013-03"] * 2).append_column("detail", detail)
    pq.write_table(made, tmp_path / "rows.parquet")
    (file,) = write_originals(table, [tmp_path / "rows.parquet"], NONE, "run")
    found = pq.read_table(table.spec.path / file.path, partitioning=None)["detail"].to_pylist()
    assert found == [None, {"code": "a"}]


def test_large_rows_are_read_by_row_group(tmp_path: Path) -> None:
    pq.write_table(rows(0, ["2013-03"] * 10), tmp_path / "rows.parquet", row_group_size=4)
    batches = list(batches_in_files([tmp_path / "rows.parquet"], ["event_id"]))
    assert [len(batch) for batch in batches] == [4, 4, 2]


def test_rows_of_more_months_than_files_may_be_open_are_all_written(
    silver: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned_files, "MOST_OPEN", 2)
    months: list[str | None] = ["2013-01", "2013-02", "2013-03", "2013-01", None, "2013-01"]
    for number in range(2):
        pq.write_table(rows(10 * number, months), tmp_path / f"{number}.parquet")
    files = write_originals(silver, [tmp_path / "0.parquet", tmp_path / "1.parquet"], NONE, "run")
    assert len({file.path for file in files}) == len(files) > 4
    found = Counter[str | None]()
    for file in files:
        found[None if file.partition == HIVE_NULL else file.partition] += file.rows
    assert found == {"2013-01": 6, "2013-02": 2, "2013-03": 2, None: 2}
