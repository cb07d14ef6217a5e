"""Query gold: affected grains computed again from silver by the dataset's own SQL, and replaced.

The query sees its rows as `silver`: all rows of the affected grains, with the window's column added. The view lives
in a Spark session of its own, so that two tables never see each other's rows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.catalog.pipeline import QueryGold, grain_columns
from spark_jobs.layers.history import batch_number, first_history, merged_history
from spark_jobs.layers.windows import window_start


def affected_grains(gold: QueryGold, silver: DataFrame) -> DataFrame:
    """Return the grains that these silver rows touch, once each."""
    rows = silver.where(gold.touched_by).withColumn(gold.window.name, window_start(gold.window))
    return rows.select(*grain_columns(gold)).distinct()


def query_rows(gold: QueryGold, silver: DataFrame, batch: int) -> DataFrame:
    """Return the query's rows over all of `silver`, as if there were no others."""
    silver.withColumn(gold.window.name, window_start(gold.window)).createOrReplaceTempView("silver")
    return silver.sparkSession.sql(gold.query).select("*", *first_history(batch, gold.window.name))


def merged_query(gold: QueryGold, old: DataFrame, silver: DataFrame, grains: DataFrame, batch: int) -> DataFrame:
    """Return `old` with the rows of `grains` replaced by the query's over `silver`, which has all rows of them."""
    grain = list(grain_columns(gold))
    windowed = silver.withColumn(gold.window.name, window_start(gold.window))
    windowed.join(F.broadcast(grains), grain, "left_semi").createOrReplaceTempView("silver")
    fresh = silver.sparkSession.sql(gold.query)
    before = old.groupBy(*grain).agg(*merged_history_of_grain()).withColumnsRenamed(_BEFORE)
    known = fresh.join(F.broadcast(before), grain, "left")
    number = batch_number(batch, gold.window.name)
    replaced = known.select(
        *fresh.columns,
        F.coalesce("_first", number).alias("_first_batch"),
        number.alias("_last_batch"),
        (F.coalesce("_revisions", F.lit(0).cast("long")) + 1).alias("_revision"),
    )
    kept = old.join(F.broadcast(grains), grain, "left_anti").select(*replaced.columns)
    return kept.unionByName(replaced)


_BEFORE = {"_first_batch": "_first", "_last_batch": "_last", "_revision": "_revisions"}


def merged_history_of_grain() -> list[F.Column]:  # type: ignore[name-defined]
    """Return the history of a grain whose rows are replaced together: its revision is the greatest of its rows'."""
    first, last, _ = merged_history()
    return [first, last, F.max("_revision").alias("_revision")]
