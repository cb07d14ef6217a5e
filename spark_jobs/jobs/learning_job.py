"""Learning job: fits a model of MLlib to the rows of an analysis.

It reads `rows.parquet` and `declared.json` of the run's folder, and writes `result/` there. The same rows and seed give
the same result. After a crash k-means continues after its last iteration, ALS from the start, since MLlib cannot start
from factors.

Usage: python -m spark_jobs.jobs.learning_job FOLDER. Prints one JSON object: the model's figures.
"""

from __future__ import annotations

import json
import math
import sys
from functools import reduce
from operator import add
from pathlib import Path

from pydantic import TypeAdapter
from pyspark.ml.clustering import KMeans
from pyspark.ml.evaluation import ClusteringEvaluator, RegressionEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.recommendation import ALS
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from include.declare import analyses
from include.ground.durable_files import write_atomically
from include.ground.settings import Settings
from spark_jobs.backends.spark_session import open_session
from spark_jobs.jobs.bounded_job import report, run_job
from spark_jobs.tables.data_files import write_files

HELD_OUT = 5
"""One in so many ratings is left out of the training, to measure the error on it."""
Figures = dict[str, float]
Centres = list[list[float]]
POINT = "_point"
TOLERANCE = 1e-4
"""Centres that moved less are final; MLlib's default."""


def clustered(declared: analyses.KMeans, rows: DataFrame, centres_file: Path) -> tuple[DataFrame, Figures]:
    """Return key, features and cluster of each row without nulls, and the silhouette of the clusters (-1 to 1).

    Clusters are numbered by their size, the largest is 0. After each iteration the centres are written to a file, and
    read there when the process died meanwhile: MLlib's own loop cannot start from given centres.
    """
    known = rows.select(declared.key, *(F.col(name).cast("double") for name in declared.features)).dropna()
    known = known.orderBy(declared.key).coalesce(1)
    assembled = VectorAssembler(inputCols=declared.features, outputCol="_raw").transform(known)
    scaled = StandardScaler(inputCol="_raw", outputCol="features", withMean=True).fit(assembled).transform(assembled)
    scaled = scaled.withColumn(POINT, vector_to_array(F.col("features"))).cache()
    iteration, centres = _final_centres(declared, scaled, centres_file)
    found = scaled.withColumn("_cluster", _nearest(centres)).cache()
    sizes = found.groupBy("_cluster").agg(F.count("*").alias("_rows"), F.min(declared.key).alias("_first"))
    order = Window.orderBy(F.desc("_rows"), "_first")
    numbered = sizes.withColumn("cluster", F.row_number().over(order) - 1).select("_cluster", "cluster")
    silhouette = ClusteringEvaluator(predictionCol="_cluster").evaluate(found) if sizes.count() > 1 else 0.0
    result = found.join(numbered, "_cluster").select(declared.key, *declared.features, "cluster")
    return result.orderBy("cluster", declared.key), {"silhouette": float(silhouette), "iterations": float(iteration)}


def _final_centres(declared: analyses.KMeans, scaled: DataFrame, file: Path) -> tuple[int, Centres]:
    """Return the number of iterations (Lloyd's) and the centres after them, from the first or the written ones on."""
    if file.exists():
        iteration, centres = json.loads(file.read_text("utf-8")).values()
    else:
        first = KMeans(k=declared.clusters, seed=declared.seed, maxIter=1).fit(scaled).clusterCenters()
        iteration, centres = 1, sorted([float(value) for value in centre] for centre in first)
    _write_centres(file, iteration, centres)
    while iteration < declared.iterations:
        following = next_centres(scaled, centres)
        moved = max(math.dist(old, new) for old, new in zip(centres, following, strict=True))
        iteration, centres = iteration + 1, following
        _write_centres(file, iteration, centres)
        if moved <= TOLERANCE:
            break
    return iteration, centres


def next_centres(points: DataFrame, centres: Centres) -> Centres:
    """Return the mean of the points nearest to each centre; a centre without points stays."""
    means = F.array(*(F.avg(F.col(POINT)[axis]) for axis in range(len(centres[0]))))
    found = points.groupBy(_nearest(centres).alias("_cluster")).agg(means.alias("_mean"))
    pairs = F.map_from_entries(F.collect_list(F.struct("_cluster", "_mean")))
    row = found.agg(pairs.alias("_means")).first()
    moved: dict[int, list[float]] = row["_means"] if row else {}
    return [moved.get(number, centre) for number, centre in enumerate(centres)]


def _nearest(centres: Centres) -> Column:
    """Return the number of the centre that is nearest to a point; of equal ones the first."""
    point = [[(F.col(POINT)[axis] - F.lit(value)) ** 2 for axis, value in enumerate(centre)] for centre in centres]
    distances = F.array(*(reduce(add, squares) for squares in point))
    return (F.array_position(distances, F.array_min(distances)) - 1).cast("int")


def _write_centres(file: Path, iteration: int, centres: Centres) -> None:
    write_atomically(file, json.dumps({"iteration": iteration, "centres": centres}))


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
    return rows.select(column).distinct().withColumn(f"_{column}", F.row_number().over(Window.orderBy(column)) - 1)


def learn(settings: Settings, path: str) -> None:
    """Fit the model that a folder declares and write its result."""
    folder = Path(path)
    model: TypeAdapter[analyses.KMeans | analyses.Recommendations] = TypeAdapter(
        analyses.KMeans | analyses.Recommendations
    )
    declared = model.validate_json((folder / "declared.json").read_bytes())
    rows = open_session(settings, f"headrace analysis {folder.parent.name}").read.parquet(str(folder / "rows.parquet"))
    if isinstance(declared, analyses.KMeans):
        found, figures = clustered(declared, rows, folder / "centres.json")
    else:
        found, figures = recommended(declared, rows, folder / "checkpoints")
    write_files(found.coalesce(1), folder / "result", "overwrite")
    report(figures=figures)


if __name__ == "__main__":
    sys.exit(run_job("learning", learn, *sys.argv[1:]))
