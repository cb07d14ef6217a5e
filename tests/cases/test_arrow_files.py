"""Arrow files that Spark's tasks write and this process reads in place (layers/adr-0016)."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.ground.settings import Settings
from spark_jobs.backends.local import bronze as bronze_files
from spark_jobs.backends.local.arrow_files import arrow_bounds, read_arrow, rows_in_files, write_arrow
from spark_jobs.backends.local.bronze import rows_by_date
from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.layers import bronze
from spark_jobs.layers.bronze import bronze_date
from spark_jobs.tables.data_files import bounds_of
from spark_jobs.tables.delta_table import Table


def test_each_task_with_rows_writes_a_file(spark: SparkSession, tmp_path: Path) -> None:
    files = write_arrow(spark.range(0, 100, 1, 4).where("id < 50"), tmp_path)
    assert sorted(rows_in_files([file]) for file in files) == [25, 25]
    assert sorted(read_arrow(files)["id"].to_pylist()) == list(range(50))
    assert sorted(tmp_path.glob("*.arrow")) == sorted(files)


def test_query_without_rows_writes_no_file(spark: SparkSession, tmp_path: Path) -> None:
    assert write_arrow(spark.range(10).where("id < 0"), tmp_path) == []
    assert list(tmp_path.rglob("*.arrow")) == []


def test_failed_query_leaves_no_file_of_its_complete_tasks(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        write_arrow(spark.range(0, 100, 1, 4).select(F.expr("10 div (id - 99)").alias("n")), tmp_path)
    assert list(tmp_path.rglob("*.arrow")) == []


def test_files_of_queries_that_differ_in_what_is_never_null_are_read_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    pair = "named_struct('text', {}) as pair"
    for text in ("'never null'", "nullif(cast(id as string), '1')"):
        write_arrow(spark.range(0, 3, 1, 1).selectExpr(f"{text} as text", pair.format(text)), tmp_path)
    assert read_arrow(sorted(tmp_path.glob("*.arrow"))).num_rows == 6


def test_arrow_files_are_removed_when_bronze_s_cannot_be_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(bronze.bronze_spec(Settings(state=tmp_path), "flights"))
    records = spark.range(0, 10, 1, 2).select(
        *[
            F.lit(None).cast(field.dataType).alias(field.name)
            for field in bronze.SCHEMA
            if field.name not in ("timestamp", "timestamp_type", "_batch_id")
        ],
        F.lit(0).alias("timestampType"),
        F.timestamp_micros("id").alias("timestamp"),
    )
    monkeypatch.setattr(bronze_files, "write_parquet", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        bronze_files.write_bronze(table, partial(write_arrow, records), 0, "b0", tmp_path / "scratch")
    assert list((tmp_path / "scratch").rglob("*.arrow")) == []


def test_batch_ends_by_the_bytes_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    payload = F.repeat(F.lit("x"), 1 << 20).alias("payload")
    (file,) = write_arrow(spark.range(0, 20, 1, 1).select("id", payload), tmp_path)
    batches = read_arrow([file]).to_batches()
    assert [batch.num_rows for batch in batches] == [8, 8, 4]


def test_batch_ends_by_the_number_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    (file,) = write_arrow(spark.range(0, 40_000, 1, 1), tmp_path)
    assert [batch.num_rows for batch in read_arrow([file]).to_batches()] == [16_384, 16_384, 7_232]


def test_bounds_are_those_of_parquet_files_with_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(
        "select id, concat('t', id) as text, timestamp_micros(id * 1000001) as at, cast(id as decimal(9,2)) as amount,"
        " cast(null as string) as nothing from range(3, 9, 1, 1)"
    )
    columns = ("id", "text", "at", "amount", "nothing")
    (file,) = write_arrow(rows, tmp_path)
    pq.write_table(read_arrow([file]), tmp_path / "same.parquet")
    assert list(arrow_bounds(file, columns)) == bounds_of(tmp_path / "same.parquet", columns)


def test_view_joins_arrow_and_parquet_files(spark: SparkSession, tmp_path: Path) -> None:
    (file,) = write_arrow(spark.range(0, 3, 1, 1).select(F.lit("unused").alias("other"), "id"), tmp_path)
    pq.write_table(pa.table({"id": pa.array([7], pa.int64())}), tmp_path / "more.parquet")
    with duckdb_session() as duck:
        duck.view_files("rows", [file, tmp_path / "more.parquet"], spark.range(0).schema)
        assert sorted(duck.rows("select * from rows")) == [(0,), (1,), (2,), (7,)]


@pytest.mark.parametrize(
    ("times", "dates"),
    [
        (["2013-01-31T23:59:59.999", "2013-02-01T00:00:00"], ["2013-01-31", "2013-02-01"]),
        (["2013-02-01T12:00:00"], ["2013-02-01"]),
        (["1999-12-31T23:59:59.999", "2000-01-01T00:00:00"], ["1999-12-31", "2000-01-01"]),
        (["1582-10-04T00:00:00", "1970-01-01T00:00:00"], ["1999-12-31", "1999-12-31"]),
        (
            ["2099-12-31T00:00:00", "2100-01-01T00:00:00", "9999-12-30T00:00:00.000001"],
            ["2099-12-31"] + 2 * ["2100-01-01"],
        ),
    ],
)
def test_rows_are_divided_by_the_dates_that_spark_gives_them(
    spark: SparkSession, times: list[str], dates: list[str]
) -> None:
    parsed = [datetime.fromisoformat(time).replace(tzinfo=UTC) for time in times]
    rows = pa.table({"timestamp": pa.array(parsed, pa.timestamp("us", "UTC")), "offset": range(len(times))})
    found = {date: part["offset"].to_pylist() for date, part in rows_by_date(rows)}
    expected: dict[str, list[int]] = {}
    for offset, date in enumerate(dates):
        expected.setdefault(date, []).append(offset)
    assert found == expected
    assert [row[0] for row in spark.createDataFrame(rows).select(bronze_date()).collect()] == dates
