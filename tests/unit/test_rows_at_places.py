"""Rows at places are read from the row groups that have one, and from no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from spark_jobs.backends.local import identities
from spark_jobs.backends.local.arrow_files import packed_places
from spark_jobs.backends.local.identities import rows_at
from spark_jobs.tables.data_files import DataFile, TableSpec, written_file
from spark_jobs.tables.delta_table import Table

COLUMNS = StructType().add("_partition", IntegerType()).add("_offset", LongType()).add("_month", StringType())
Place = tuple[int, int]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(TableSpec("silver.test", tmp_path / "silver", COLUMNS, "_month", ("_partition", "_offset")))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the row groups that are read as rows from now on."""
    numbers, inner = list[int](), pq.ParquetFile.read_row_groups

    def read_row_groups(self: pq.ParquetFile, groups: list[int], **options: object) -> pa.Table:
        numbers.extend(groups)
        return inner(self, groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read_row_groups)
    return numbers


def written(table: Table, name: str, places: Sequence[Place], group_rows: int) -> DataFile:
    path = table.spec.path / "_month=2013-03" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "_partition": pa.array([partition for partition, _ in places], pa.int32()),
        "_offset": pa.array([offset for _, offset in places], pa.int64()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
    return written_file(table.spec, path)


def found(table: Table, files: Sequence[DataFile], places: Sequence[Place]) -> list[Place]:
    wanted = np.sort(packed_places(np.array([p for p, _ in places]), np.array([o for _, o in places])))
    rows = rows_at(wanted, table, files, ["_partition", "_offset"])
    return sorted(zip(rows["_partition"].to_pylist(), rows["_offset"].to_pylist(), strict=True))


def test_rows_of_several_partitions_and_files_are_found(table: Table) -> None:
    first = written(table, "a", [(0, 1), (0, 2), (1, 1), (1, 2)], 2)
    second = written(table, "b", [(0, 3), (1, 3)], 2)
    places = [(0, 2), (0, 3), (1, 1), (1, 9), (2, 1)]
    assert found(table, [first, second], places) == [(0, 2), (0, 3), (1, 1)]


def test_rows_of_a_group_of_very_many_partitions_are_found(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "MOST_PARTITIONS", 2)
    file = written(table, "a", [(0, 10), (1, 500), (2, 90)], 4)
    assert found(table, [file], [(1, 500), (2, 91)]) == [(1, 500)]


def test_group_of_two_partitions_is_not_read_for_offsets_between_theirs(table: Table, read: list[int]) -> None:
    """The offsets of two partitions drift apart as a topic grows: bounds over both would have nearly every place."""
    file = written(table, "a", [(0, 10), (0, 11), (0, 12), (1, 900_000), (1, 900_001), (1, 900_002)], 4)
    assert found(table, [file], [(0, 500_000), (1, 500_000)]) == []
    assert read == []
    assert found(table, [file], [(1, 900_001)]) == [(1, 900_001)]
    assert read == [1]
    assert found(table, [file], [(1, 900_000), (0, 12)]) == [(0, 12), (1, 900_000)]
    assert read == [1, 0]
