"""Compaction of larger files copies their row groups; damaged files are never compacted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compactable_release import EARLY, assert_same_rows, head_rows, reading
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_release import SmallRelease

from spark_jobs.backends.backend import FilesDamaged
from spark_jobs.backends.local import backend
from spark_jobs.backends.local.backend import copy_row_groups, have_same_columns
from spark_jobs.backends.local.duckdb_session import duckdb_session, write_partitioned
from spark_jobs.stream import compaction
from spark_jobs.stream.compaction import CompactedTable, compact_tables, compactable_tables
from spark_jobs.tables.data_files import DataFile, ParquetWriting, are_of_one_day, write_parquet


@pytest.mark.parametrize("layer", ["bronze", "silver"])
def test_row_groups_of_larger_files_are_copied(
    patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    release = patcher.production
    group = copied_group(release, monkeypatch, layer)
    before = head_rows(release)
    compaction.compact_group(*group)
    (file,) = [file for file in group[0].table.files() if "compacted" in file.path]
    groups = [group_of_rows(group[0], path.path) for path in group[1]]
    assert group_of_rows(group[0], file.path) == [rows for each in groups for rows in each]
    assert file.low == {name: min(each.low[name] for each in group[1]) for name in group[1][0].low}  # type: ignore[type-var]
    assert file.high == {name: max(each.high[name] for each in group[1]) for name in group[1][0].high}  # type: ignore[type-var]
    assert file.nulls == {name: sum(each.nulls[name] for each in group[1]) for name in group[1][0].nulls}
    assert_same_rows(head_rows(release), before)
    release.restart()
    release.take([reading(40, 5), reading(41, "five")])


def copied_group(
    release: SmallRelease, monkeypatch: pytest.MonkeyPatch, layer: str
) -> tuple[CompactedTable, list[DataFile]]:
    """Return a table of the layer and a group of its files, which are of one day and count as large."""
    monkeypatch.setattr(backend, "LEAST_COPIED", 0)
    for batch in range(5, 8):
        release.take([reading(40, batch), reading(41, batch + 1)] if batch == 5 else [reading(42 + batch % 2, batch)])
    (found,) = tables_named(release, f"{layer}.meter")
    files = sorted(found.table.files(), key=lambda file: file.first_batch)[-4:-1]
    return found, [file for file in files if file.last_batch >= 5]


def group_of_rows(compacted: CompactedTable, path: str) -> list[int]:
    """Return the rows of each row group of a file."""
    footer = pq.read_metadata(compacted.table.spec.path / path)
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


@pytest.mark.parametrize("layer", ["bronze", "silver"])
@pytest.mark.parametrize("least", [0, 1 << 20], ids=["copied", "written again"])
def test_damage_is_not_compacted(
    patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch, layer: str, least: int
) -> None:
    compacted, group = copied_group(patcher.production, monkeypatch, layer)
    monkeypatch.setattr(backend, "LEAST_COPIED", least)
    path = compacted.table.spec.path / group[0].path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(FilesDamaged, match=path.name):
        compaction.write_group(compacted, group)
    assert not list(compacted.table.spec.path.glob("compacted-*"))


def test_request_leaves_a_damaged_group_and_compacts_the_others(patcher: SlicePatcher) -> None:
    release = patcher.production
    before, (bronze,) = release.release.writer.silver.file_count, tables_named(release, "bronze.meter")
    path = bronze.table.spec.path / bronze.groups(EARLY)[0][0].path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = compact_tables(release.settings, [release.release], 600, EARLY)
    assert [facts["left"] for table, facts in done.items() if table.endswith("/bronze")] == [1]
    assert release.release.writer.silver.file_count < before
    assert path in [bronze.table.spec.path / file.path for file in bronze.table.files()]


def tables_named(release: SmallRelease, name: str) -> list[CompactedTable]:
    return [each for each in compactable_tables([release.release]) if each.table.spec.name == name]


def test_files_with_other_columns_are_not_copied_into_one(tmp_path: Path) -> None:
    for name, kind in (("a", pa.int64()), ("b", pa.int64()), ("c", pa.int32())):
        pq.write_table(pa.table({"n": pa.array([1], kind)}), tmp_path / name)
    assert have_same_columns([tmp_path / "a", tmp_path / "b"])
    assert not have_same_columns([tmp_path / "a", tmp_path / "b", tmp_path / "c"])


@pytest.mark.parametrize("reason", ["small", "out of order", "of several days"])
def test_row_groups_are_not_copied(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    compacted, group = copied_group(patcher.production, monkeypatch, "silver")
    assert backend._can_be_copied(compacted.table, group, compacted.day)
    if reason == "small":
        monkeypatch.setattr(backend, "LEAST_COPIED", 1 << 20)
    if reason == "out of order":
        group.reverse()
    if reason == "of several days":
        group = sorted(compacted.table.files(), key=lambda file: file.first_batch)[:2]
        assert not are_of_one_day(group, compacted.day)
    assert not backend._can_be_copied(compacted.table, group, compacted.day)


def test_small_file_among_large_ones_is_copied(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    compacted, group = copied_group(patcher.production, monkeypatch, "silver")
    sized = [replace(file, size=size) for file, size in zip(group, [900, 300], strict=True)]
    monkeypatch.setattr(backend, "LEAST_COPIED", 600)
    assert backend._can_be_copied(compacted.table, sized, compacted.day)
    monkeypatch.setattr(backend, "LEAST_COPIED", 601)
    assert not backend._can_be_copied(compacted.table, sized, compacted.day)


def test_rejected_of_both_writers_is_one_table(patcher: SlicePatcher) -> None:
    """DuckDB writes patches and compacted files, Arrow the rows of a run."""
    writer = patcher.production.release.writer
    reasons = [{"rule": "type", "column": None, "detail": "x"}, {"rule": "range", "column": "a", "detail": None}]
    months = [("2024-01", 1, reasons), ("2024-02", 2, reasons[:1]), ("2024-02", 3, [])]
    rows = pa.Table.from_pylist([rejected_row(*month) for month in months])
    arrow = write_partitioned(writer.rejected, rows.to_batches(), "arrow")
    with duckdb_session() as duck:
        duck.view_arrow("rows", rows)
        duckdb = duck.write("select * from rows", writer.rejected, "duckdb")
        duck.view_table("of_both", writer.rejected, [*arrow, *duckdb])
        found = duck.arrow("select _offset, reasons from of_both order by 1").to_pylist()
    wanted = [{"_offset": offset, "reasons": expected} for _, offset, expected in months for _ in range(2)]
    assert found == wanted
    paths = [str(writer.rejected.spec.path / file.path) for file in (*arrow, *duckdb)]
    of_spark = writer.spark.read.parquet(*paths).select("_offset", "reasons").orderBy("_offset").collect()
    assert [row.asDict(recursive=True) for row in of_spark] == wanted
    bounds = [sorted((f.partition, f.rows, f.low, f.high) for f in files) for files in (arrow, duckdb)]
    assert bounds[0] == bounds[1]
    assert [bound[:2] for bound in bounds[0]] == [("2024-01", 1), ("2024-02", 2)]


def rejected_row(month: str, offset: int, reasons: list[dict[str, str | None]]) -> dict[str, object]:
    at = datetime(2024, int(month[-2:]), 3, tzinfo=UTC)
    place = {"_topic": "meter", "_partition": 0, "_offset": offset, "_batch_id": 0}
    facts = {"disposition": "invalid", "reasons": reasons, "contract_version": "1.0.0"}
    return {**place, **facts, "first_seen": at, "_month": month}


def test_files_of_both_writers_of_silver_are_copied_into_one(spark: SparkSession, tmp_path: Path) -> None:
    """Arrow annotates no integer, DuckDB each; decimals must be stored alike."""
    rows = pa.table(
        {
            "name": ["a", None],
            "count": pa.array([1, 2], pa.int32()),
            "offset": pa.array([3, 4], pa.int64()),
            "price": pa.array([Decimal("1.25"), None], pa.decimal128(12, 2)),
            "at": pa.array([datetime(2026, 3, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
        }
    )
    arrow, duckdb, both = (tmp_path / f"{name}.parquet" for name in ("arrow", "duckdb", "both"))
    write_parquet(rows.to_batches(), rows.schema, arrow, ParquetWriting(compression="zstd"))
    with duckdb_session() as duck:
        duck.view_arrow("rows", rows)
        duck.save_file("select * from rows", duckdb)
    assert have_same_columns([arrow, duckdb])
    copy_row_groups(spark, [arrow, duckdb], both)
    assert pq.read_table(both).cast(rows.schema).equals(pa.concat_tables([rows, rows]))
    assert [tuple(row) for row in spark.read.parquet(str(both)).select("count", "price").collect()] == [
        (1, Decimal("1.25")),
        (2, None),
    ] * 2


def test_files_whose_columns_mean_something_else_are_not_copied_into_one(tmp_path: Path) -> None:
    kinds = {"int32": pa.int32(), "int64": pa.int64(), "uint32": pa.uint32(), "date": pa.date32(), "text": pa.string()}
    for name, kind in kinds.items():
        pq.write_table(pa.table({"x": pa.array([None], kind)}), tmp_path / f"{name}.parquet")
    pq.write_table(pa.table({"y": pa.array([None], pa.int32())}), tmp_path / "other.parquet")
    first = tmp_path / "int32.parquet"
    assert [path.stem for path in sorted(tmp_path.iterdir()) if have_same_columns([first, path])] == ["int32"]
