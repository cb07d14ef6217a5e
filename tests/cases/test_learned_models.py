"""MLlib's models over rows whose structure is known: clusters and tastes are found again, twice alike."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from workloads.ad_events import CAMPAIGNS, TASTES, USERS, ad_frame, ads, ids

from include.declare.analyses import KMeans, Recommendations
from spark_jobs.jobs import learning_job
from spark_jobs.jobs.learning_job import clustered, recommended


@pytest.mark.extended
def test_separated_clusters_are_found(spark: SparkSession, tmp_path: Path) -> None:
    numbers = random.Random(1)
    centres = {"a": (0.0, 0.0, 6), "b": (50.0, 5000.0, 4), "c": (-50.0, 5000.0, 2)}
    rows = [
        (f"{name}{n}", x + numbers.random(), y + 100 * numbers.random())
        for name, (x, y, count) in centres.items()
        for n in range(count)
    ]
    frame = spark.createDataFrame([*rows, ("nothing", None, 1.0)], "id string, x double, y double")
    declared = KMeans(algorithm="kmeans", query="select 1", key="id", features=["x", "y"], clusters=3)
    found, figures = clustered(declared, frame, tmp_path / "centres")
    again, _ = clustered(declared, frame, tmp_path / "others")
    assert {row.id: row.cluster for row in found.collect()} == {row[0]: "abc".index(row[0][0]) for row in rows}
    assert found.collect() == again.collect()
    assert figures["silhouette"] > 0.9


@pytest.mark.extended
def test_killed_clustering_continues_after_its_last_iteration(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = random.Random(4)
    rows = [(n, numbers.random(), numbers.random()) for n in range(300)]
    frame = spark.createDataFrame(rows, "id int, x double, y double")
    declared = KMeans(algorithm="kmeans", query="select 1", key="id", features=["x", "y"], clusters=5, iterations=4)
    whole, figures = clustered(declared, frame, tmp_path / "whole")
    assert figures["iterations"] == 4
    step, steps = learning_job.next_centres, list[int]()

    def dying(points: DataFrame, centres: list[list[float]]) -> list[list[float]]:
        steps.append(len(steps))
        if len(steps) == 3:
            raise KeyboardInterrupt
        return step(points, centres)

    monkeypatch.setattr(learning_job, "next_centres", dying)
    with pytest.raises(KeyboardInterrupt):
        clustered(declared, frame, tmp_path / "killed")
    found, again = clustered(declared, frame, tmp_path / "killed")
    assert len(steps) == 4, "two iterations before, the one that died, one after"
    assert (found.collect(), again) == (whole.collect(), figures)


@pytest.mark.extended
def test_users_of_the_ad_events_get_campaigns_that_they_like(spark: SparkSession, tmp_path: Path) -> None:
    counts, campaign_of = Counter[tuple[str, str, str]](), dict(ads())
    for value in ad_frame()["value"]:
        event = json.loads(value)
        counts[event["user_id"], campaign_of[event["ad_id"]], event["event_type"]] += 1
    pairs = {(user, campaign) for user, campaign, kind in counts if kind != "purchase"}
    ratings = [(u, c, counts[u, c, "click"] / (counts[u, c, "click"] + counts[u, c, "view"])) for u, c in sorted(pairs)]
    frame = spark.createDataFrame(ratings, "user string, item string, rating double")
    found, figures = recommended(Recommendations(algorithm="als", query="select 1", top=3), frame, tmp_path)
    assert figures["rmse"] < 0.7 * figures["rmse of the mean"], figures
    users, campaigns = ids("user", USERS), ids("campaign", CAMPAIGNS)
    liked = [users.index(row.user) % TASTES == campaigns.index(row.item) % TASTES for row in found.collect()]
    assert sum(liked) > 0.95 * len(liked)


@pytest.mark.extended
def test_recommended_items_are_those_of_the_user_s_taste(spark: SparkSession, tmp_path: Path) -> None:
    numbers = random.Random(2)
    ratings = [
        (f"user-{user}", f"item-{item}", 5.0 if user % 2 == item % 2 else 1.0)
        for user in range(20)
        for item in range(20)
        if numbers.random() < 0.6
    ]
    frame = spark.createDataFrame(ratings, "user string, item string, rating double")
    declared = Recommendations(algorithm="als", query="select 1", top=3, rank=2, iterations=4)
    found, figures = recommended(declared, frame, tmp_path)
    rows = found.collect()
    assert len(rows) == 60
    alike = sum(int(row.user[5:]) % 2 == int(row.item[5:]) % 2 for row in rows)
    assert alike >= 57
    assert figures["rmse"] < 0.5 * figures["rmse of the mean"]
