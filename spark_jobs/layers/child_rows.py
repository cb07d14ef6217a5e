"""Rows of children as Spark makes them from rows of silver: what `include/declare/children.py` says in DuckDB's SQL."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.declare.children import BAD_CHILDREN, INDEX, Elements

ELEMENT, OF_ELEMENT = "_element", "_reasons_of_element"


def source_rows(over: Elements | None, silver: DataFrame) -> DataFrame:
    """Return the rows from which a table is computed: those of silver, or a row for each of its elements."""
    if over is None:
        return silver
    parent, bad = over.parent_columns(silver.columns), [F.col(BAD_CHILDREN)] if over.rejects else []
    rows = silver.select(*map(_named, parent), *bad, F.posexplode(_named(over.column)).alias(INDEX, ELEMENT))
    if over.rejects:
        rows = rows.withColumn(OF_ELEMENT, F.filter(BAD_CHILDREN, lambda reason: _is_of(over, reason)))
        rows = rows.where((F.coalesce(F.size(OF_ELEMENT), F.lit(0)) > 0) == F.lit(over.are_rejected))
    values = [F.col(ELEMENT)[name].alias(name) for name in over.fields]
    reasons = [F.col(OF_ELEMENT).alias("reasons")] if over.are_rejected else []
    return rows.select(*map(_named, parent), F.col(INDEX).cast("long").alias(INDEX), *values, *reasons)


def _is_of(over: Elements, reason: Column) -> Column:
    """Whether a reason names the element of a row."""
    return F.regexp_extract(reason["column"], over.path, 1) == F.col(INDEX).cast("string")


def _named(name: str) -> Column:
    return F.col(f"`{name}`")
