"""`_first_batch, _last_batch, _revision`: which batches wrote a gold row, and its number of revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.tables.data_files import DataFile

PROVENANCE = ("_first_batch", "_last_batch", "_revision")


@dataclass(frozen=True)
class ReplacedGrains:
    """The rows that replace a gold table's `stale` ones at a batch, or run; `files` may have these and `others`."""

    fresh: DataFrame
    stale: DataFrame
    others: DataFrame
    files: Sequence[DataFile]
    batch: int


def batch_number(batch: int, anchor: str) -> Column:
    """Return `batch` (long) for every row; `anchor` is any column of the rows."""
    return unfolded(F.lit(batch).cast("long"), anchor)


def unfolded(value: Column, anchor: str) -> Column:
    """Return a constant for every row; `anchor` is any column of the rows.

    A literal would be part of the code that Spark generates: each batch would compile its classes again (170 of them,
    two thirds of a new driver's work). An array is passed as an object, and an index that depends on a column keeps the
    optimizer from folding it into a literal.
    """
    return F.get(F.array(value), F.hash(anchor).bitwiseAND(F.lit(0)))


def first_provenance(batch: int, anchor: str) -> list[Column]:
    """Return the provenance of a row that `batch` made; `anchor` is any column of the rows."""
    number = batch_number(batch, anchor)
    return [number.alias("_first_batch"), number.alias("_last_batch"), F.lit(1).cast("long").alias("_revision")]


def merged_provenance() -> list[Column]:
    """Return the aggregates that make one history of several."""
    return [
        F.min("_first_batch").alias("_first_batch"),
        F.max("_last_batch").alias("_last_batch"),
        F.sum("_revision").alias("_revision"),
    ]


def rows_in_grains(rows: DataFrame, grains: DataFrame, grain: Sequence[str]) -> DataFrame:
    """Return the rows whose `grain` columns are in `grains`; a key that is null is a key like any other."""
    return rows.alias("_rows").join(grains.alias("_grains"), _same(grain, "_rows", "_grains"), "left_semi")


def rows_of_other_grains(rows: DataFrame, grains: DataFrame, grain: Sequence[str]) -> DataFrame:
    """Return the rows whose `grain` columns are not in `grains`."""
    return rows.alias("_rows").join(grains.alias("_grains"), _same(grain, "_rows", "_grains"), "left_anti")


def joined_by(rows: DataFrame, values: DataFrame, grain: Sequence[str]) -> DataFrame:
    """Return the rows with the other columns of `values`, which has one row for each of their grains."""
    both = rows.alias("_rows").join(values.alias("_values"), _same(grain, "_rows", "_values"))
    return both.select("_rows.*", *(f"_values.`{name}`" for name in values.columns if name not in grain))


def _same(grain: Sequence[str], left: str, right: str) -> Column:
    return reduce(and_, (F.col(f"{left}.`{name}`").eqNullSafe(F.col(f"{right}.`{name}`")) for name in grain))


def with_grains_replaced(
    grain: Sequence[str], old: DataFrame, fresh: DataFrame, grains: DataFrame, batch: int
) -> DataFrame:
    """Return `old` with the rows of `grains` replaced by `fresh`, which has no history yet and gets theirs."""
    replaced = with_history(grain, old, fresh, batch)
    return rows_of_other_grains(old, F.broadcast(grains), grain).select(*replaced.columns).unionByName(replaced)


def with_history(
    grain: Sequence[str], old: DataFrame, fresh: DataFrame, batch: int, begun: DataFrame | None = None
) -> DataFrame:
    """Return `fresh`, which has no history yet, with the one of the `old` rows of its grains.

    The revision of a grain whose rows are replaced together is the greatest of its rows', and one more. `begun` has the
    grains' first batches (`_first_batch`) of silver, when others than `batch` may have made a row that is new.
    """
    columns = list(grain)
    history = old.select(*columns, "_first_batch", "_revision")
    if begun is not None:
        history = history.unionByName(begun, allowMissingColumns=True)
    before = history.groupBy(*columns).agg(
        F.min("_first_batch").alias("_first"), F.max("_revision").alias("_revisions")
    )
    number = batch_number(batch, f"_rows.{columns[0]}")
    fresh_rows = fresh.alias("_rows").join(before.alias("_old"), _same(columns, "_rows", "_old"), "left")
    return fresh_rows.select(
        *(F.col(f"_rows.`{name}`") for name in fresh.columns),
        F.coalesce("_first", number).alias("_first_batch"),
        number.alias("_last_batch"),
        (F.coalesce("_revisions", F.lit(0).cast("long")) + 1).alias("_revision"),
    )
