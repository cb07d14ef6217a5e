"""Projections of few rows without a Spark job: the same rows as Spark's, and none of another kind of query."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from rows_of_types import EVERY_TYPE, NUMBERS, rows_of

from spark_jobs.backends.local import prepared_query
from spark_jobs.backends.local.prepared_query import RowProjection, row_projection

OTHER_QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "filter": lambda rows: rows.where("n > 0"),
    "groups": lambda rows: rows.groupBy("text").agg(F.max("n").alias("n")),
    "join": lambda rows: rows.join(F.broadcast(rows.sparkSession.range(3).toDF("n")), "n", "left"),
    "Python function": lambda rows: rows.withColumn("text", F.udf(str.upper, "string")("text")),
    "random numbers": lambda rows: rows.withColumn("share", F.rand()),
    "subquery": lambda rows: rows.withColumn("most", F.expr("(select max(id) from range(3))")),
    "more rows": lambda rows: rows.withColumn("text", F.explode(F.split("text", " "))),
}


def projection_of(spark: SparkSession, query: Callable[[DataFrame], DataFrame]) -> RowProjection:
    found = row_projection(spark, NUMBERS, query)
    assert found is not None
    return found


def doubled(rows: DataFrame) -> DataFrame:
    """Return a query whose second projection needs the first one's result several times."""
    twice = rows.withColumn("twice", F.col("n") * 2)
    words = twice.withColumn("words", F.transform(F.split("text", " "), lambda word: F.concat(word, F.lit("!"))))
    return words.select(F.when(F.col("twice") > 4, F.col("words")).alias("words"), "twice", "n")


@pytest.mark.parametrize("batch_rows", [1, 2, 1024])
def test_rows_are_those_that_spark_computes(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(prepared_query, "BATCH_ROWS", batch_rows)
    projection = projection_of(spark, doubled)
    for rows in (rows_of(1, 2, 3, 4, 5), rows_of(), rows_of(7)):
        frame = spark.createDataFrame(rows.to_pylist(), NUMBERS)
        assert projection.of(rows).to_pylist() == doubled(frame).toArrow().to_pylist()


def test_every_type_and_its_null_pass_unchanged(spark: SparkSession) -> None:
    schema = StructType.fromDDL(", ".join(f"c{number} {kind}" for number, kind in enumerate(EVERY_TYPE)))
    values = {f"c{number}": value for number, value in enumerate(EVERY_TYPE.values())}
    rows = pa.Table.from_pylist([values, dict.fromkeys(values)], to_arrow_schema(schema, timezone="UTC"))
    projection = row_projection(spark, schema, lambda frame: frame.select("*", F.lit(1).alias("one")))
    assert projection is not None
    assert projection.of(rows).drop(["one"]).to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("kind", OTHER_QUERIES)
def test_a_query_of_another_kind_is_no_projection(spark: SparkSession, kind: str) -> None:
    assert row_projection(spark, NUMBERS, OTHER_QUERIES[kind]) is None


def test_no_job_is_started(spark: SparkSession) -> None:
    projection, tracker = projection_of(spark, doubled), spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("projections", "")
    try:
        projection.of(rows_of(1, 2))
        assert not tracker.getJobIdsForGroup("projections")
        spark.range(1).toArrow()
        assert tracker.getJobIdsForGroup("projections")
    finally:
        spark.sparkContext._jsc.clearJobGroup()


def test_projection_serves_again_after_a_row_that_failed(spark: SparkSession) -> None:
    projection = projection_of(spark, lambda rows: rows.select((F.lit(12) / F.col("n")).alias("share")))
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        projection.of(rows_of(1, 0))
    assert projection.of(rows_of(3, 4))["share"].to_pylist() == [4.0, 3.0]
