"""Additive gold: partial results of new silver rows, merged with the rows that are there.

Every measure stores the state that it needs to merge (`gold_measures.py`). Sums of integers are long, of decimals
decimal; sums and averages of nothing are null, as in SQL. Every value is independent of the batches and their order:
sums of doubles are refused (`silver_code.py`), and a distinct count is estimated from a union of sketches.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.declare.gold import Gold
from spark_jobs.layers.gold_measures import kept_columns, merged_state, state_of_rows, value_of_state
from spark_jobs.layers.row_provenance import PROVENANCE, first_provenance, merged_provenance
from spark_jobs.layers.session_gold import NUMBER, numbered_sessions


def additive_rows(gold: Gold, rows: DataFrame, batch: int) -> DataFrame:
    """Return one row per grain or session of `rows`, which are silver's with their windows, in final form."""
    parts = [part for measure in gold.measures for part in state_of_rows(measure)]
    column = gold.session.column if gold.session else ""
    grouped = _aggregated(gold, rows, column, column, parts)
    return _final(gold, grouped.select("*", *first_provenance(batch, gold.grain_columns[0])))


def merged_additive(gold: Gold, old: DataFrame, new: DataFrame) -> DataFrame:
    """Return `old` and `new` rows of the same columns as one row per grain or session."""
    parts = [part for measure in gold.measures for part in merged_state(measure)]
    start, end = (gold.session.start, gold.session.end) if gold.session else ("", "")
    merged = _aggregated(gold, old.unionByName(new), start, end, [*parts, *merged_provenance()])
    # Summing decimals widens their type; the table's must stay, and a sum that outgrows it is an error (ANSI).
    typed = [F.col(name).cast(old.schema[name].dataType).alias(name) for name in merged.columns]
    return _final(gold, merged.select(*typed))


def _aggregated(gold: Gold, rows: DataFrame, start: str, end: str, parts: list[Column]) -> DataFrame:
    """Return the aggregates `parts` per grain, or per session of the intervals from column `start` to `end`."""
    if gold.session is None:
        return rows.groupBy(*gold.grain_columns).agg(*parts)
    bounds = [F.min(start).alias(gold.session.start), F.max(end).alias(gold.session.end)]
    numbered = numbered_sessions(gold.session, gold.keys, rows, start, end)
    return numbered.groupBy(*gold.keys, NUMBER).agg(*bounds, *parts).drop(NUMBER)


def _final(gold: Gold, rows: DataFrame) -> DataFrame:
    kept = [name for measure in gold.measures for name in kept_columns(measure)]
    ratios = {measure.name: value_of_state(measure) for measure in gold.measures if measure.function == "ratio"}
    values = [value_of_state(each).alias(each.name) for each in gold.measures if each.name not in ratios]
    valued = rows.select(*gold.row_columns, *values, *PROVENANCE, *kept).withColumns(ratios)
    names = [measure.name for measure in gold.measures]
    return valued.select(*gold.row_columns, *names, *PROVENANCE, *kept) if ratios else valued
