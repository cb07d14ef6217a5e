"""Distinct counts of additive gold do not depend on how the rows were batched, so a rebuild verifies them."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import DataFrame, SparkSession

from include.declare.gold import AdditiveGold
from include.declare.measures import Measure
from include.declare.windows import Window, parsed_size
from spark_jobs.layers.gold_rows import AdditiveGoldRows, gold_rows

# Below, at and above the sizes at which a sketch changes its form.
SIZES = (1, 7, 150, 383, 390, 1_000, 12_000)
BATCHES = 5
USERS = AdditiveGold(
    "users", "", Window("at", parsed_size("1 day"), "day"), ("size",), (Measure("users", "approx_distinct", "user"),)
)


@pytest.mark.extended
def test_distinct_count_does_not_depend_on_the_batches(spark: SparkSession) -> None:
    rng = random.Random(15)
    weights = [rng.random() for _ in range(BATCHES)]
    rows = [(size, user, *rng.choices(range(BATCHES), weights)) for size in SIZES for user in range(size)]
    silver = spark.createDataFrame(rows, "size int, user int, batch int").selectExpr(
        "*", "timestamp '2026-03-01' as at"
    )
    silver.cache()
    batches = [gold_rows(USERS).computed(silver.where(f"batch = {batch}"), batch) for batch in range(BATCHES)]
    merged = batches[0]
    for batch in batches[1:]:
        merged = AdditiveGoldRows(USERS).added(merged, batch)
    backwards = batches[-1]
    for batch in batches[-2::-1]:
        backwards = AdditiveGoldRows(USERS).added(backwards, batch)
    fresh = counts(gold_rows(USERS).computed(silver, 0))
    assert counts(merged) == counts(backwards) == fresh
    assert all(abs(fresh[size] - size) <= 0.05 * size for size in SIZES)


def counts(rows: DataFrame) -> dict[int, int]:
    return {row["size"]: row["users"] for row in rows.select("size", "users").collect()}
