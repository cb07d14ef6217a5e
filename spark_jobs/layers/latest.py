"""Latest gold: the newest row per key.

The newest is the one with the greatest `order_by`, then the greatest (partition, offset); what decided is kept in
columns `_by_…`, so that a later batch can be compared with it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from include.catalog.pipeline import LatestGold
from spark_jobs.layers.history import HISTORY, first_history, merged_history


def latest_rows(gold: LatestGold, silver: DataFrame, batch: int) -> DataFrame:
    """Return the newest row per key of `silver`, as if there were no others."""
    columns = [F.expr(expression).alias(name) for name, expression in gold.columns]
    deciding = [F.col(name).alias(kept) for name, kept in zip(_order(gold), _kept(gold), strict=True)]
    return _newest(gold, silver.select(*gold.keys, *columns, *first_history(batch), *deciding))


def merged_latest(gold: LatestGold, old: DataFrame, new: DataFrame) -> DataFrame:
    """Return the newest row per key of both, with the history of both."""
    both = old.unionByName(new)
    history = both.groupBy(*gold.keys).agg(*merged_history())
    return _newest(gold, both).drop(*HISTORY).join(history, list(gold.keys)).select(*both.columns)


def _newest(gold: LatestGold, rows: DataFrame) -> DataFrame:
    order = Window.partitionBy(*gold.keys).orderBy(*[F.col(name).desc_nulls_last() for name in _kept(gold)])
    return rows.withColumn("_place", F.row_number().over(order)).where("_place = 1").drop("_place")


def _order(gold: LatestGold) -> list[str]:
    return [*gold.order_by, "_partition", "_offset"]


def _kept(gold: LatestGold) -> list[str]:
    return [f"_by_{name.removeprefix('_')}" for name in _order(gold)]
