"""MLlib's models over rows whose structure is known: clusters and tastes are found again, twice alike."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession

from include.catalog.analyses import KMeans, Recommendations
from spark_jobs.engine.learned_models import clustered, recommended


def test_clusters_that_lie_apart_are_found_again(spark: SparkSession) -> None:
    numbers = random.Random(1)
    centres = {"a": (0.0, 0.0, 6), "b": (50.0, 5000.0, 4), "c": (-50.0, 5000.0, 2)}
    rows = [
        (f"{name}{n}", x + numbers.random(), y + 100 * numbers.random())
        for name, (x, y, count) in centres.items()
        for n in range(count)
    ]
    frame = spark.createDataFrame([*rows, ("nothing", None, 1.0)], "id string, x double, y double")
    declared = KMeans(algorithm="kmeans", query="select 1", key="id", features=["x", "y"], clusters=3)
    found, figures = clustered(declared, frame)
    again, _ = clustered(declared, frame)
    assert {row.id: row.cluster for row in found.collect()} == {row[0]: "abc".index(row[0][0]) for row in rows}
    assert found.collect() == again.collect()
    assert figures["silhouette"] > 0.9


def test_recommended_items_are_those_of_the_user_s_taste(spark: SparkSession, tmp_path: Path) -> None:
    numbers = random.Random(2)
    ratings = [
        (f"user-{user}", f"item-{item}", 5.0 if user % 2 == item % 2 else 1.0)
        for user in range(20)
        for item in range(20)
        if numbers.random() < 0.6
    ]
    frame = spark.createDataFrame(ratings, "user string, item string, rating double")
    declared = Recommendations(algorithm="als", query="select 1", top=3, rank=2)
    found, figures = recommended(declared, frame, tmp_path)
    rows = found.collect()
    assert len(rows) == 60
    alike = sum(int(row.user[5:]) % 2 == int(row.item[5:]) % 2 for row in rows)
    assert alike >= 57
    assert figures["rmse"] < 0.5 * figures["rmse of the mean"]
