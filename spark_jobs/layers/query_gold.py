"""Query gold: affected grains recomputed from silver by the dataset's own SQL, and replaced.

The query sees its rows as `silver`: all rows of the affected grains, with the window's column added. The view lives
in a Spark session of its own, so that two tables never see each other's rows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.declare.gold import Gold
from spark_jobs.layers.gold_windows import windowed
from spark_jobs.layers.row_provenance import first_provenance, rows_in_grains, with_grains_replaced


def query_rows(gold: Gold, rows: DataFrame, batch: int) -> DataFrame:
    """Return the query's rows over all of `rows`, which are silver's with their windows."""
    rows.createOrReplaceTempView("silver")
    return rows.sparkSession.sql(gold.query).select("*", *first_provenance(batch, gold.grain_columns[0]))


def merged_query(gold: Gold, old: DataFrame, silver: DataFrame, grains: DataFrame, batch: int) -> DataFrame:
    """Return `old` with the rows of `grains` replaced by the query's over `silver`, which has all rows of them."""
    grain = list(gold.grain_columns)
    rows_in_grains(windowed(gold.window, silver), F.broadcast(grains), grain).createOrReplaceTempView("silver")
    fresh = silver.sparkSession.sql(gold.query)
    return with_grains_replaced(grain, old, fresh, grains, batch)
