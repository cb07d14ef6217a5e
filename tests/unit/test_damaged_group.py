"""A damaged file stays out of automatic compaction, the healthy files of its group do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from include.ground.durable_files import name_by_checksum
from spark_jobs.backends.local.backend import LocalBackend
from spark_jobs.stream import upkeep
from spark_jobs.stream.compaction import AUTOMATIC, MEGABYTE, CompactedTable
from spark_jobs.stream.upkeep import AutomaticCompaction
from spark_jobs.tables.data_files import DataFile, TableSpec, written_file
from spark_jobs.tables.delta_table import Table

COLUMNS = StructType().add("n", LongType()).add("_month", StringType())
POLICY = replace(AUTOMATIC, min_files=3)


def filled(folder: Path, files: int, *, named: bool = True) -> Table:
    """Return a table of files with one row each, the number of the file; `named` by their checksums."""
    table = Table(TableSpec(f"silver.{folder.name}", folder, COLUMNS, "_month", ("n",)))
    for n in range(files):
        add_file(table, n, named)
    return table


def add_file(table: Table, n: int, named: bool) -> None:
    path = table.spec.path / f"b{n}" / "_month=2024-01" / "part.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"n": [n]}), path)
    table.commit("app", n, {}, [written_file(table.spec, name_by_checksum(path) if named else path)])


def compact_all(compaction: AutomaticCompaction, *tables: Table) -> None:
    """Do what a driver does between runs, until nothing is left to do now."""
    for _ in range(50):
        more = compaction.step([CompactedTable(table, LocalBackend()) for table in tables])
        if compaction._in_progress is not None:
            compaction._in_progress.written.exception(60)
        elif not more:
            return
    raise AssertionError("compaction does not end")


def numbers(table: Table, files: list[DataFile]) -> list[int]:
    return sorted(n for file in files for n in pq.read_table(table.spec.path / file.path)["n"].to_pylist())


@pytest.mark.parametrize("large", [MEGABYTE, 1], ids=["between runs", "by the thread"])
@pytest.mark.parametrize("named", [True, False], ids=["named by checksum", "of an earlier version"])
def test_healthy_files_of_a_group_with_a_damaged_one_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, named: bool
) -> None:
    monkeypatch.setattr(upkeep, "LARGE_GROUP", large)
    now, table = [0.0], filled(tmp_path / "small", 6, named=named)
    broken = table.files()[2]
    path = table.spec.path / broken.path
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    compaction = AutomaticCompaction(POLICY, clock=lambda: now[0])
    compact_all(compaction, table)
    assert broken in table.files()
    assert numbers(table, [file for file in table.files() if file != broken]) == [0, 1, 3, 4, 5]
    assert table.file_count == 2
    path.write_bytes(content)
    for n in (6, 7, 8):
        add_file(table, n, named)
    now[0] += 61
    compact_all(compaction, table)
    assert numbers(table, table.files()) == list(range(9))
    assert table.file_count == 1, "a later look takes the file in again"


def test_damaged_files_that_leave_too_few_are_left_alone(tmp_path: Path) -> None:
    table = filled(tmp_path / "small", 3)
    before = table.files()
    (table.spec.path / before[0].path).write_bytes(b"damaged")
    compact_all(AutomaticCompaction(POLICY), table)
    assert table.files() == before


@pytest.mark.parametrize(
    "error",
    [duckdb.IOException("Could not write file: No space left on device"), duckdb.OutOfMemoryException("out of memory")],
    ids=["full disk", "no memory"],
)
def test_full_disk_or_missing_memory_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: duckdb.Error, capsys: pytest.CaptureFixture[str]
) -> None:
    now, tried = [0.0], list[str]()
    tables = [filled(tmp_path / name, 4) for name in ("one", "two")]
    compaction = AutomaticCompaction(POLICY, clock=lambda: now[0])

    def fail(compacted: CompactedTable, _: object) -> None:
        tried.append(compacted.table.spec.name)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "compact_group", fail)
        compact_all(compaction, *tables)
    assert tried == ["silver.one", "silver.two"], "each table is tried once"
    assert not compaction._unreadable
    assert "compaction failed" in capsys.readouterr().err
    now[0] += 61
    compact_all(compaction, *tables)
    assert [table.file_count for table in tables] == [1, 1]
