"""Records that DuckDB writes for Spark come in row groups of bounded bytes, all of them and in order."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.tables import data_files

ROWS = "select range as n, repeat('x', {size}) as payload from range({rows}) order by n"


@pytest.mark.parametrize(("rows", "size", "groups"), [(10_000, 1, 1), (100, 10_000, 10), (3, 1_000_000, 3), (0, 1, 0)])
def test_row_groups_have_bounded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, size: int, groups: int
) -> None:
    monkeypatch.setattr(data_files, "GROUP_BYTES", 100_000 if size > 1 else 10_000_000)
    with duckdb_session() as duck:
        duck.save_records(ROWS.format(size=size, rows=rows), tmp_path / "records")
    file = pq.ParquetFile(tmp_path / "records/part-0.parquet")
    assert abs(file.num_row_groups - groups) <= groups // 5
    assert file.read()["n"].to_pylist() == list(range(rows))
