"""Computes the rows of a gold table of any kind over some silver rows."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.declare.gold import AdditiveGold, Gold, LatestGold
from spark_jobs.layers.additive_gold import additive_rows
from spark_jobs.layers.gold_windows import windowed
from spark_jobs.layers.latest_gold import latest_rows
from spark_jobs.layers.query_gold import query_rows
from spark_jobs.layers.row_provenance import PROVENANCE, rows_in_grains

Within = Callable[[DataFrame], DataFrame]
"""Which rows with their windows count."""


def all_windows(windowed: DataFrame) -> DataFrame:
    """Return all rows."""
    return windowed


def gold_rows(gold: Gold, silver: DataFrame, batch: int, within: Within = all_windows) -> DataFrame:
    """Return the table's rows over these silver rows alone, as `batch` computes them."""
    return _rows(gold, within(windowed(gold.window, _counted(gold, silver))), batch)


def touched_grains(gold: Gold, silver: DataFrame, within: Within = all_windows) -> DataFrame:
    """Return the grains that these silver rows touch, once each."""
    return _touched(gold, within(windowed(gold.window, silver)))


def rows_of_grains(gold: Gold, silver: DataFrame, grains: DataFrame, batch: int) -> DataFrame:
    """Return the table's rows of these grains, without history; `silver` has all rows of them."""
    columns = list(gold.grain_columns)
    chosen = rows_in_grains(windowed(gold.window, _counted(gold, silver)), grains, columns)
    rows = _rows(gold, chosen, batch).drop(*PROVENANCE)
    # A query may give rows of a grain that no row touches any more.
    return rows_in_grains(rows, _touched(gold, chosen), columns) if gold.recomputes else rows


def first_batches(gold: Gold, silver: DataFrame, grains: DataFrame) -> DataFrame:
    """Return the first batch (`_first_batch`) of the silver rows of each of these grains."""
    columns = list(gold.grain_columns)
    chosen = rows_in_grains(windowed(gold.window, _counted(gold, silver)), grains, columns)
    return chosen.groupBy(*columns).agg(F.min("_batch_id").alias("_first_batch"))


def _rows(gold: Gold, rows: DataFrame, batch: int) -> DataFrame:
    if isinstance(gold, AdditiveGold):
        return additive_rows(gold, rows, batch)
    return latest_rows(gold, rows, batch) if isinstance(gold, LatestGold) else query_rows(gold, rows, batch)


def _touched(gold: Gold, rows: DataFrame) -> DataFrame:
    return rows.where(gold.row_condition).select(*gold.grain_columns).distinct()


def _counted(gold: Gold, silver: DataFrame) -> DataFrame:
    """Return the rows that count; a query sees all rows of the grains that its `touched_by` finds."""
    return silver if gold.counted == "true" else silver.where(gold.counted)
