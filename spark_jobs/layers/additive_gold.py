"""Additive gold: partial results of new silver rows, merged with the rows that are there.

Every measure keeps what it needs to merge: an average its sum and count, a distinct count its sketch, in columns
that begin with `_`. Sums of integers are long, of decimals decimal; sums and averages of nothing are null, as in SQL.
Every value is the same whatever the batches were and in whatever order they came: sums of doubles are refused
(`silver_code.py`), and a distinct count is estimated from a union of sketches.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.catalog.pipeline import AdditiveGold, Measure, grain_columns
from spark_jobs.layers.row_provenance import PROVENANCE, first_provenance, merged_provenance


def additive_rows(gold: AdditiveGold, rows: DataFrame, batch: int) -> DataFrame:
    """Return one row per grain of `rows`, which are silver's with their windows, in final form."""
    parts = [part for measure in gold.measures for part in _parts(measure)]
    grouped = rows.groupBy(*grain_columns(gold)).agg(*parts)
    return _final(gold, grouped.select("*", *first_provenance(batch, grain_columns(gold)[0])))


def merged_additive(gold: AdditiveGold, old: DataFrame, new: DataFrame) -> DataFrame:
    """Return `old` and `new` rows of the same columns as one row per grain."""
    parts = [part for measure in gold.measures for part in _merged(measure)]
    merged = old.unionByName(new).groupBy(*grain_columns(gold)).agg(*parts, *merged_provenance())
    # Summing decimals widens their type; the table's must stay, and a sum that outgrows it is an error (ANSI).
    typed = [F.col(name).cast(old.schema[name].dataType).alias(name) for name in merged.columns]
    return _final(gold, merged.select(*typed))


def _final(gold: AdditiveGold, rows: DataFrame) -> DataFrame:
    measures = [_value(measure).alias(measure.name) for measure in gold.measures]
    kept = [name for measure in gold.measures for name in _kept(measure)]
    return rows.select(*grain_columns(gold), *measures, *PROVENANCE, *kept)


def _parts(measure: Measure) -> list[Column]:
    expression = F.expr(measure.expression) if measure.expression != "*" else F.lit(1)
    name = measure.name
    if measure.function == "avg":
        return [F.sum(expression).alias(f"_{name}_sum"), F.count(expression).alias(f"_{name}_count")]
    if measure.function == "approx_distinct":
        return [F.hll_sketch_agg(expression).alias(f"_{name}_sketch")]
    if measure.function == "count":
        return [F.count(expression).alias(name)]
    plain = {"count_if": F.count_if, "sum": F.sum, "min": F.min, "max": F.max}
    return [plain[measure.function](expression).alias(name)]


def _merged(measure: Measure) -> list[Column]:
    name = measure.name
    if measure.function == "avg":
        return [F.sum(f"_{name}_{part}").alias(f"_{name}_{part}") for part in ("sum", "count")]
    if measure.function == "approx_distinct":
        return [F.hll_union_agg(f"_{name}_sketch").alias(f"_{name}_sketch")]
    merge = {"min": F.min, "max": F.max}.get(measure.function, F.sum)
    return [merge(name).alias(name)]


def _value(measure: Measure) -> Column:
    if measure.function == "avg":
        return F.try_divide(F.col(f"_{measure.name}_sum"), F.col(f"_{measure.name}_count"))
    if measure.function == "approx_distinct":
        # A sketch that was never merged is estimated in another way; a union with itself makes both alike.
        return F.hll_sketch_estimate(F.hll_union(f"_{measure.name}_sketch", f"_{measure.name}_sketch"))
    return F.col(measure.name)


def _kept(measure: Measure) -> list[str]:
    if measure.function == "avg":
        return [f"_{measure.name}_sum", f"_{measure.name}_count"]
    return [f"_{measure.name}_sketch"] if measure.function == "approx_distinct" else []
