"""Each data file carries its checksum in its name: through commits, compaction, checkpoints and a trimmed log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from include.audit.files import FileCheck, file_check
from include.ground.delta_log import log_versions
from include.ground.durable_files import file_checksum, name_by_checksum, named_checksum
from include.read.publication import PublishedTable
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table

COMMITS = 52  # A checkpoint is written at version 49.


@pytest.fixture
def table(tmp_path: Path) -> Table:
    schema = StructType().add("n", "long").add("_month", "string")
    return Table(TableSpec("silver.sales", tmp_path / "silver sales", schema, "_month", ("n",)))


def write(table: Table, folder: str, *numbers: int) -> list[DataFile]:
    attempt = table.attempt_folder(folder)
    path = attempt / "_month=2026-03"
    path.mkdir(parents=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path / "part-0.parquet")
    return table.written_files(attempt)


def published(table: Table) -> PublishedTable:
    return PublishedTable("silver.sales", table.spec.path, table.version, "sales", "r", 0)


def test_checksums_survive_checkpoints_and_removed_commits(table: Table) -> None:
    for number in range(COMMITS):
        table.commit("app", number, {}, write(table, f"b{number}", number))
    table.compact(write(table, "compacted", 0, 1), table.files()[:2])
    for version in log_versions(table.spec.path)[:49]:
        (table.spec.path / "_delta_log" / f"{version:020d}.json").unlink()
    assert file_check(published(table)) == (FileCheck("silver.sales", COMMITS - 1, 0), [])
    assert {file.path for file in Table(table.spec, table.version).files()} == {file.path for file in table.files()}


def test_one_flipped_byte_in_a_committed_file_is_found(table: Table) -> None:
    table.commit("app", 0, {}, write(table, "b0", 1, 2, 3))
    path = table.spec.path / table.files()[0].path
    data = path.read_bytes()
    for place in (4, len(data) // 2, len(data) - 5):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        (finding,) = file_check(published(table))[1]
        assert (finding.kind.value, finding.rows, str(path) in finding.detail) == ("damaged", 3, True)


def test_file_without_a_checksum_is_not_verifiable(table: Table) -> None:
    path = table.spec.path / "_month=2026-03" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"number": [7]}), path)
    table.commit("app", 0, {}, [DataFile("_month=2026-03/part-0.parquet", "2026-03", 1, path.stat().st_size)])
    assert file_check(published(table)) == (FileCheck("silver.sales", 0, 1), [])


def test_checksum_that_spark_keeps_of_a_file_moves_with_it(tmp_path: Path) -> None:
    path = tmp_path / "part-0.snappy.parquet"
    path.write_bytes(b"rows")
    (tmp_path / ".part-0.snappy.parquet.crc").write_bytes(b"crc")
    named = name_by_checksum(path)
    assert named_checksum(named.name) == file_checksum(named)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([f".{named.name}.crc", named.name])
    assert name_by_checksum(named) == named
