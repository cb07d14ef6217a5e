"""Files that executors write: rows that this host does not find are never committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.tables import data_files
from spark_jobs.tables.data_files import WrittenRowsMissing, finished_files, write_files


@pytest.mark.parametrize("partition", [None, "part"])
def test_rows_that_are_found_are_accepted(spark: SparkSession, tmp_path: Path, partition: str | None) -> None:
    rows = spark.range(10).selectExpr("id", "id % 3 as part").repartition(2)
    for mode, expected in (("overwrite", 10), ("append", 20), ("append", 30), ("overwrite", 10)):
        write_files(rows, tmp_path / "rows", mode, partition)
        assert spark.read.parquet(str(tmp_path / "rows")).count() == expected


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_rows_in_a_folder_of_another_host_are_missed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    write = data_files._write

    def lost(rows: DataFrame, folder: Path, *options: Any) -> None:
        write(rows, folder, *options)
        finished_files(folder)[0].unlink()

    monkeypatch.setattr(data_files, "_write", lost)
    with pytest.raises(WrittenRowsMissing, match="nothing was committed") as missed:
        write_files(spark.range(10).repartition(2), tmp_path / "rows", mode)
    assert missed.value.written == 10 > missed.value.found


def test_files_of_tasks_that_did_not_complete_are_no_result(spark: SparkSession, tmp_path: Path) -> None:
    # The state folder itself may be below a folder of that name.
    folder = tmp_path / "_temporary" / "rows"
    write_files(spark.range(10), folder, "overwrite")
    found = finished_files(folder)
    assert found
    left = folder / "_temporary" / "0" / "attempt" / "_month=2013-01" / "part.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(found[0].read_bytes())
    assert finished_files(folder) == found
