"""Parquet files that this process writes: what they do without, and how large their row groups are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.tables import data_files
from spark_jobs.tables.data_files import ParquetWriting, write_parquet

ROWS = pa.table({"partition": [1] * 1_000, "value": [f"payload {n}" for n in range(1_000)]})
WRITING = ParquetWriting(distinct=("value",), unbounded=("value",), compression="zstd")


def test_columns_do_without_dictionary_and_bounds_as_declared(tmp_path: Path) -> None:
    write_parquet(ROWS.to_batches(), ROWS.schema, tmp_path / "rows.parquet", WRITING)
    group = pq.read_metadata(tmp_path / "rows.parquet").row_group(0)
    partition, value = group.column(0), group.column(1)
    assert (partition.has_dictionary_page, partition.is_stats_set) == (True, True)
    assert (value.has_dictionary_page, value.is_stats_set) == (False, False)
    assert {partition.compression, value.compression} == {"ZSTD"}
    assert pq.read_table(tmp_path / "rows.parquet").equals(ROWS)


def test_spark_is_given_the_same_options() -> None:
    assert WRITING.spark_options == {
        "compression": "zstd",
        "parquet.enable.dictionary#value": "false",
        "parquet.column.statistics.enabled#value": "false",
        "parquet.size.statistics.enabled": "false",
    }


def test_row_groups_have_bounded_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "GROUP_BYTES", ROWS.nbytes // 5)
    write_parquet(ROWS.to_batches(), ROWS.schema, tmp_path / "rows.parquet", WRITING)
    file = pq.ParquetFile(tmp_path / "rows.parquet")
    assert 5 <= file.num_row_groups <= 10
    assert file.read().equals(ROWS)


def test_row_groups_have_bounded_rows_however_many_a_batch_has(tmp_path: Path) -> None:
    batches = ROWS.to_batches(max_chunksize=170)
    write_parquet(batches, ROWS.schema, tmp_path / "rows.parquet", replace(WRITING, rows_per_group=300))
    file = pq.ParquetFile(tmp_path / "rows.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [300, 300, 300, 100]
    assert file.read().equals(ROWS)
