"""Models of MLlib over the rows of an analysis: clusters of rows, and the best items of each user."""

from __future__ import annotations

from pathlib import Path

from pyspark.ml.clustering import KMeans
from pyspark.ml.evaluation import ClusteringEvaluator, RegressionEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.recommendation import ALS
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from include.catalog import analyses

HELD_OUT = 5
"""One in so many ratings is left out of the training, to measure the error on it."""
Figures = dict[str, float]


def clustered(declared: analyses.KMeans, rows: DataFrame) -> tuple[DataFrame, Figures]:
    """Return key, features and cluster of each row without nulls, and the silhouette of the clusters (-1 to 1).

    Clusters are numbered by their size, the largest is 0.
    """
    known = rows.select(declared.key, *(F.col(name).cast("double") for name in declared.features)).dropna()
    known = known.orderBy(declared.key).coalesce(1)
    assembled = VectorAssembler(inputCols=declared.features, outputCol="_raw").transform(known)
    scaled = StandardScaler(inputCol="_raw", outputCol="features", withMean=True).fit(assembled).transform(assembled)
    model = KMeans(k=declared.clusters, seed=declared.seed, maxIter=declared.iterations, predictionCol="_cluster")
    found = model.fit(scaled).transform(scaled).cache()
    sizes = found.groupBy("_cluster").agg(F.count("*").alias("_rows"), F.min(declared.key).alias("_first"))
    order = Window.orderBy(F.desc("_rows"), "_first")
    numbered = sizes.withColumn("cluster", F.row_number().over(order) - 1).select("_cluster", "cluster")
    silhouette = ClusteringEvaluator(predictionCol="_cluster").evaluate(found) if sizes.count() > 1 else 0.0
    result = found.join(numbered, "_cluster").select(declared.key, *declared.features, "cluster")
    return result.orderBy("cluster", declared.key), {"silhouette": float(silhouette)}


def recommended(declared: analyses.Recommendations, rows: DataFrame, checkpoints: Path) -> tuple[DataFrame, Figures]:
    """Return the best items of each user with rank and score, and the root mean square error on held-out ratings.

    The figures also have the error of answering the mean rating. `checkpoints` is a folder for every second iteration:
    the plan of many would overflow the stack of a task.
    """
    rows.sparkSession.sparkContext.setCheckpointDir(str(checkpoints))
    users, items = _numbered(rows, "user"), _numbered(rows, "item")
    ratings = rows.join(users, "user").join(items, "item")
    ratings = ratings.select("_user", "_item", F.col("rating").cast("float").alias("rating")).orderBy("_user", "_item")
    held_out = F.pmod(F.xxhash64("_user", "_item"), F.lit(HELD_OUT)) == 0
    model = ALS(rank=declared.rank, maxIter=declared.iterations, seed=declared.seed, coldStartStrategy="drop")
    model = model.setUserCol("_user").setItemCol("_item").setRatingCol("rating").setCheckpointInterval(2)
    fitted = model.fit(ratings.where(~held_out).coalesce(1))
    evaluator = RegressionEvaluator(labelCol="rating", predictionCol="prediction", metricName="rmse")
    scored = fitted.transform(ratings.where(held_out))
    mean = ratings.where(~held_out).agg(F.avg("rating")).first()
    guessed = scored.withColumn("prediction", F.lit(float(mean[0] if mean else 0.0)))
    figures = {"rmse": evaluator.evaluate(scored), "rmse of the mean": evaluator.evaluate(guessed)}
    best = fitted.recommendForAllUsers(declared.top).select("_user", F.posexplode("recommendations"))
    ranked = best.select("_user", (F.col("pos") + 1).alias("rank"), F.col("col._item").alias("_item"), "col.rating")
    named = ranked.join(users, "_user").join(items, "_item")
    result = named.select("user", "rank", "item", F.col("rating").cast("double").alias("score"))
    return result.orderBy("user", "rank"), figures


def _numbered(rows: DataFrame, column: str) -> DataFrame:
    """Return the distinct values of a column with a number each, in their order."""
    return rows.select(column).distinct().withColumn(f"_{column}", F.row_number().over(Window.orderBy(column)) - 1)
