"""Prepared queries: planned once, executed over whatever rows their slot has (layers/adr-0013)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from rows_of_types import EVERY_TYPE, NUMBERS, rows_of

from spark_jobs.backends.local import prepared_query
from spark_jobs.backends.local.arrow_files import read_arrow, rows_in_files, stage_files
from spark_jobs.backends.local.prepared_query import (
    PreparedQueries,
    PreparedQuery,
    ScratchFolder,
    Slot,
    SlotFull,
    is_repeatable,
)
from spark_jobs.tables.data_files import parquet_files

REPEATABLE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "projection": lambda rows: rows.select("n", F.upper("text").alias("text")).where("n >= 0"),
    "joined with a small table": lambda rows: rows.join(F.broadcast(names_of(rows.sparkSession)), "n", "left"),
    "Python function": lambda rows: rows.withColumn("text", F.udf(str.upper, "string")("text")),
    "exploded": lambda rows: rows.withColumn("text", F.explode(F.split("text", " "))),
}
PLANNED_AGAIN: dict[str, Callable[[DataFrame], DataFrame]] = {
    "grouped": lambda rows: rows.groupBy("text").agg(F.max("n").alias("n")),
    "ranked": lambda rows: rows.selectExpr("n", "text", "row_number() over (order by n) as place"),
    "sorted": lambda rows: rows.orderBy("n"),
    "first rows": lambda rows: rows.orderBy("n").limit(3),
    "distinct": lambda rows: rows.distinct(),
    "joined with itself": lambda rows: rows.join(F.broadcast(rows.selectExpr("n", "text as same")), "n"),
    "subquery": lambda rows: rows.where(F.col("n") == rows.agg(F.max("n")).scalar()),
    "counted": lambda rows: rows.groupBy().count(),
    "joined with a large table": lambda rows: rows.join(names_of(rows.sparkSession).hint("merge"), "n"),
}
QUERIES = {**REPEATABLE, **PLANNED_AGAIN}


def names_of(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(n, f"name {n}") for n in range(10)], "n long, name string")


@pytest.mark.parametrize("name", QUERIES)
def test_query_gives_the_rows_that_its_slot_has_now(spark: SparkSession, tmp_path: Path, name: str) -> None:
    slots = [Slot(spark, tmp_path / f"slot of {tasks}", NUMBERS, tasks) for tasks in (1, 2)]
    queries = [PreparedQuery(QUERIES[name](slot.rows)) for slot in slots]
    for numbers in ([1, 2, 3], [], [7, 7], list(range(1_000)), [4, 5]):
        given = spark.createDataFrame(rows_of(*numbers).to_pandas(), NUMBERS)
        expected = sorted(map(str, QUERIES[name](given).toArrow().to_pylist()))
        for slot, query in zip(slots, queries, strict=True):
            slot.fill(rows_of(*numbers))
            assert sorted(map(str, query.result().to_pylist())) == expected, (numbers, slot)


@pytest.mark.parametrize("name", QUERIES)
def test_query_gives_the_same_rows_from_a_slot_with_the_columns_that_it_scans(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=1)
    query = PreparedQuery(QUERIES[name](slot.rows))
    whole = rows_of(*range(100))
    slot.fill(whole)
    expected = query.result()
    slot.fill(whole.select(sorted(query.scanned_columns or []) or ["n"]))
    assert sorted(map(str, query.result().to_pylist())) == sorted(map(str, expected.to_pylist()))


@pytest.mark.parametrize(
    ("select", "names"),
    [
        ("count(*)", set()),
        ("n", {"n"}),
        ("upper(text)", {"text"}),
        ("struct(*)", {"n", "text"}),
        ("n + (select max(length(text)) from {numbers})", {"n", "text"}),
    ],
)
def test_scanned_columns_are_those_that_a_query_and_its_subqueries_read(
    spark: SparkSession, tmp_path: Path, select: str, names: set[str]
) -> None:
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=1)
    query = spark.sql(f"select {select} from {{numbers}}", numbers=slot.rows)
    assert PreparedQuery(query).scanned_columns == names


def test_scanned_columns_of_a_plan_that_may_still_change_are_unknown(spark: SparkSession, tmp_path: Path) -> None:
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=1)
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        query = PreparedQuery(slot.rows.groupBy("text").agg(F.max("n")).join(F.broadcast(names_of(spark)), F.lit(True)))
        assert query.scanned_columns is None
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")


@pytest.mark.parametrize("name", QUERIES)
def test_plan_is_repeatable_if_no_operator_keeps_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=2)
    assert is_repeatable(QUERIES[name](slot.rows)) == (name in REPEATABLE)


def test_second_execution_plans_nothing_and_loads_no_joined_table_again(spark: SparkSession, tmp_path: Path) -> None:
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=2)
    frame = slot.rows.join(F.broadcast(names_of(spark)), "n", "left")
    query = PreparedQuery(frame)
    slot.fill(rows_of(1, 2))
    query.result()
    plan, jobs = frame._jdf.queryExecution().executedPlan().hashCode(), newest_job(spark)
    slot.fill(rows_of(3))
    assert query.result().to_pylist() == [{"n": 3, "text": "text 3", "name": "name 3"}]
    assert newest_job(spark) - jobs == 2, "the query's one job, and that of newest_job"
    assert frame._jdf.queryExecution().executedPlan().hashCode() == plan


def newest_job(spark: SparkSession) -> int:
    """Start a job; return its number."""
    group = "a test's jobs"
    spark.sparkContext.setJobGroup(group, group)
    spark.range(1).count()
    return max(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_every_type_is_the_same_through_slot_and_result_as_through_spark_s_own_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = StructType.fromDDL(", ".join(f"c{number} {kind}" for number, kind in enumerate(EVERY_TYPE)))
    given = spark.createDataFrame([tuple(EVERY_TYPE.values()), (None,) * len(EVERY_TYPE)], schema)
    given.coalesce(1).write.parquet(str(tmp_path / "given"))
    slot = Slot(spark, tmp_path / "slot", schema, tasks=2)
    slot.fill_from(parquet_files(tmp_path / "given"))
    PreparedQuery(slot.rows).save(tmp_path / "result")
    result = read_arrow(stage_files(tmp_path / "result"))
    assert result.schema == given.toArrow().schema
    assert sorted(map(str, result.to_pylist())) == sorted(map(str, given.toArrow().to_pylist()))


def test_result_is_added_to_a_folder_by_partition(spark: SparkSession, tmp_path: Path) -> None:
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=2)
    query = slot.rows.withColumn("parity", F.when(F.col("n") % 2 == 0, "even").otherwise("odd"))
    for numbers in ([1, 2, 3], [5]):
        slot.fill(rows_of(*numbers))
        PreparedQuery(query).save_by("parity", tmp_path / "result")
    found = {
        name: [n for file in parquet_files(tmp_path / "result" / f"parity={name}") for n in read_numbers(file)]
        for name in ("even", "odd")
    }
    assert {name: sorted(numbers) for name, numbers in found.items()} == {"even": [2], "odd": [1, 3, 5]}


def read_numbers(file: Path) -> list[int]:
    table = pq.read_table(file, partitioning=None)
    assert table.column_names == ["n", "text"]
    numbers: list[int] = table["n"].to_pylist()
    return numbers


def test_query_that_fails_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=2)
    query = slot.rows.select(F.expr("10 div (n - 5)").alias("n"))
    slot.fill(rows_of(*range(10)))
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        PreparedQuery(query).save(tmp_path / "result")
    assert list((tmp_path / "result").rglob("*.arrow")) == []
    slot.fill(rows_of(6))
    PreparedQuery(query).save(tmp_path / "result")
    assert rows_in_files(stage_files(tmp_path / "result")) == 1


def test_files_are_copied_into_a_slot_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.parquet" for number in range(3)]
    for number, file in enumerate(files):
        pq.write_table(rows_of(*range(100 * number, 100 * number + 50)), file, row_group_size=20)
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=3)
    query = PreparedQuery(slot.rows.select("n"))
    for chosen in (files, [files[2], files[1], files[0]]):
        slot.fill_from(chosen, copied=True)
        expected = [n for file in files for n in pq.read_table(file)["n"].to_pylist()]
        assert sorted(query.result()["n"].to_pylist()) == expected


def test_copied_files_may_have_more_rows_than_a_slot_is_given_otherwise(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_query, "SLOT_BYTES", 100)
    pq.write_table(rows_of(*range(50)), tmp_path / "rows.parquet")
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=1)
    with pytest.raises(SlotFull):
        slot.fill_from([tmp_path / "rows.parquet"])
    slot.fill_from([tmp_path / "rows.parquet"], copied=True)
    assert PreparedQuery(slot.rows).result().num_rows == 50


def test_file_larger_than_a_slot_s_is_not_copied(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=1)
    pq.write_table(rows_of(*range(5_000)), tmp_path / "rows.parquet")
    monkeypatch.setattr(prepared_query, "FILE_BYTES", 1_000)
    with pytest.raises(SlotFull):
        slot.fill_from([tmp_path / "rows.parquet"], copied=True)


def test_full_disk_is_named_when_files_are_copied(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(rows_of(1), tmp_path / "rows.parquet")
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=1)
    monkeypatch.setattr(prepared_query.os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left on device"):
        slot.fill_from([tmp_path / "rows.parquet"], copied=True)
    assert list((tmp_path / "slot").glob("*.new")) == []


def test_slot_takes_the_folder_of_an_attempt_that_failed(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "slot").mkdir()
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=1)
    slot.fill(rows_of(1))
    assert PreparedQuery(slot.rows).result().num_rows == 1


def test_each_of_many_files_has_a_task_and_few_slots_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    queries: PreparedQueries[PreparedQuery] = PreparedQueries(spark, ScratchFolder(tmp_path / "queries"), copying=True)
    for count, rows, tasks in (
        (2, 600, 2),
        (3, 600, 3),
        (5, 600, 5),
        (5, 10, 1),
        (6, 400, 2),
        (17, 600, 2),
        (7, 600, 7),
        (3, 600, 3),
    ):
        files = [tmp_path / f"{count}-{rows}-{number}.parquet" for number in range(count)]
        for number, file in enumerate(files):
            pq.write_table(rows_of(*range(rows * number, rows * (number + 1))), file)
        query = queries.over(files, "rows", NUMBERS, (), lambda rows: PreparedQuery(rows.select("n")))
        assert query is not None
        assert sorted(query.result()["n"].to_pylist()) == list(range(count * rows))
        assert list(queries._slots)[-1] == ("rows", tasks)
    assert [tasks for _, tasks in queries._slots] == [1, 2, 7, 3]
    assert {key[:2] for key in queries._queries} == set(queries._slots)


def test_slot_refuses_more_rows_than_it_may_hold(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = Slot(spark, tmp_path / "slot", NUMBERS, tasks=2)
    monkeypatch.setattr(prepared_query, "SLOT_BYTES", 1_000)
    slot.fill(rows_of(1, 2, 3))
    with pytest.raises(SlotFull):
        slot.fill(rows_of(*range(1_000)))
    # One value, so that the file is small and only its rows are large.
    pq.write_table(rows_of(*[7] * 1_000), tmp_path / "many.parquet")
    monkeypatch.setattr(prepared_query, "SLOT_BYTES", 10_000)
    assert (tmp_path / "many.parquet").stat().st_size < 10_000
    with pytest.raises(SlotFull):
        slot.fill_from([tmp_path / "many.parquet"])
