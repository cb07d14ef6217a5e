"""Latest gold: the newest row per key.

The newest row has the greatest `order_by`, then the greatest (partition, offset). These values are stored in columns
`_by_…` for the comparison with later batches.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from include.declare.gold import Gold
from spark_jobs.layers.row_provenance import PROVENANCE, first_provenance


def latest_rows(gold: Gold, silver: DataFrame, batch: int) -> DataFrame:
    """Return the newest row per key of `silver`, as if there were no others."""
    return _newest(gold, _candidates(gold, silver, batch))


def merged_latest(gold: Gold, old: DataFrame, silver: DataFrame, batch: int) -> DataFrame:
    """Return the newest row per key of the `old` rows and of `silver`'s, with the history of both."""
    candidates = _candidates(gold, silver, batch)
    return _newest(gold, old.select(*candidates.columns).unionByName(candidates))


def _candidates(gold: Gold, silver: DataFrame, batch: int) -> DataFrame:
    """Every silver row as a gold row of revision 0: a key's revision grows by one a batch, not by one a row."""
    columns = [F.expr(expression).alias(name) for name, expression in gold.columns]
    first, last, _ = first_provenance(batch, "_partition")
    deciding = [F.col(name).alias(kept) for name, kept in gold.deciding_columns]
    return silver.select(*gold.keys, *columns, first, last, F.lit(0).cast("long").alias("_revision"), *deciding)


def _newest(gold: Gold, rows: DataFrame) -> DataFrame:
    """One sort for both: by a hash of the keys, which is compared faster than the keys, then by what decides."""
    marked = rows.withColumn("_mark", F.xxhash64(*gold.keys))
    key = Window.partitionBy("_mark", *gold.keys)
    order = key.orderBy(*[F.col(name).desc_nulls_last() for _, name in gold.deciding_columns])
    whole = key.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    ranked = marked.select(
        *[name for name in rows.columns if name not in PROVENANCE],
        F.min("_first_batch").over(whole).alias("_first_batch"),
        F.max("_last_batch").over(whole).alias("_last_batch"),
        (F.max("_revision").over(whole) + F.max(F.expr("int(_revision = 0)")).over(whole)).alias("_revision"),
        F.row_number().over(order).alias("_place"),
    )
    return ranked.where("_place = 1").select(*rows.columns)
