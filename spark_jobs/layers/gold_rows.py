"""The rows of a gold table as Spark computes them from silver and merges them with the rows that are there.

There is one class for each kind of table:

- *additive*: partial results of new rows, merged with the old ones. Every measure stores the state that it needs to
  merge (`gold_measures.py`). Sums of integers are long, of decimals decimal; sums and averages of nothing are null, as
  in SQL. Every value is independent of the batches and their order.
- *latest*: the newest row per key. It has the greatest `order_by`, then the greatest (partition, offset); these values
  are stored in columns `_by_…` for the comparison with later batches.
- *last*: the newest rows per key, found as the one of *latest* is, and then measures over the rows of each key.
- *query*: affected grains recomputed from silver by the dataset's own SQL, and replaced. The query sees its rows as
  `silver`: all rows of the affected grains, with the window's column added. The view lives in a Spark session of its
  own, so that two tables never see each other's rows.
- *changes*, *fold*: like *query*, by SQL that the declaration makes; a Python function of *fold* continues it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import Window as RowWindow
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from include.declare.changes import ChangesGold
from include.declare.children import BAD_CHILDREN, INDEX, Elements
from include.declare.gold import AdditiveGold, ChildGold, Gold, LatestGold, QueryGold
from include.declare.state_by_key import PLACE, FoldGold, LastGold
from spark_jobs.layers.gold_measures import gold_measures
from spark_jobs.layers.gold_windows import NUMBER, numbered_sessions, windowed
from spark_jobs.layers.row_provenance import (
    PROVENANCE,
    first_provenance,
    joined_by,
    merged_provenance,
    rows_in_grains,
    with_grains_replaced,
)

ELEMENT, OF_ELEMENT = "_element", "_reasons_of_element"


def source_rows(over: Elements | None, silver: DataFrame) -> DataFrame:
    """Return the rows from which a table is computed: those of silver, or a row for each of its elements."""
    if over is None:
        return silver
    parent, bad = over.parent_columns(silver.columns), [F.col(BAD_CHILDREN)] if over.rejects else []
    rows = silver.select(*map(_named, parent), *bad, F.posexplode(_named(over.column)).alias(INDEX, ELEMENT))
    if over.rejects:
        index = F.col(INDEX).cast("string")
        of_element = F.filter(BAD_CHILDREN, lambda reason: F.regexp_extract(reason["column"], over.path, 1) == index)
        rows = rows.withColumn(OF_ELEMENT, of_element)
        rows = rows.where((F.coalesce(F.size(OF_ELEMENT), F.lit(0)) > 0) == F.lit(over.are_rejected))
    values = [F.col(ELEMENT)[name].alias(name) for name in over.fields]
    reasons = [F.col(OF_ELEMENT).alias("reasons")] if over.are_rejected else []
    return rows.select(*map(_named, parent), F.col(INDEX).cast("long").alias(INDEX), *values, *reasons)


def _named(name: str) -> Column:
    return F.col(f"`{name}`")


Within = Callable[[DataFrame], DataFrame]
"""Which rows with their windows count."""
Source = tuple[DataFrame, Within]
"""Rows of silver that a commit brings, and which of them count."""
Sources = Sequence[Source]


def all_windows(windowed: DataFrame) -> DataFrame:
    """Return all rows."""
    return windowed


class GoldRows(ABC):
    """The rows of one gold table, by its declaration."""

    def __init__(self, gold: Gold) -> None:
        self.gold = gold
        self.grain = list(gold.grain_columns)

    def computed(self, silver: DataFrame, batch: int, within: Within = all_windows) -> DataFrame:
        """Return the table's rows over these silver rows alone, as `batch` computes them."""
        return self._rows(within(self._windowed(silver)), batch)

    def touched(self, silver: DataFrame, within: Within = all_windows) -> DataFrame:
        """Return the grains that these silver rows touch, once each."""
        return self._touched(within(windowed(self.gold.window, source_rows(self.gold.over, silver))))

    def of_sources(self, sources: Sources, batch: int) -> DataFrame:
        """Return the table's rows over what a commit brings, for each part alone."""
        return _union([self.computed(rows, batch, within) for rows, within in sources])

    def touched_by(self, sources: Sources, batch: int, old: DataFrame) -> DataFrame:
        """Return the grains that the rows of a commit touch; `old` has at least the table's rows of these grains."""
        return _union([self.touched(rows, within) for rows, within in sources])

    def complete(self, silver: DataFrame, batch: int) -> DataFrame:
        """Return all rows of the table, without history; `silver` is all of silver."""
        return self.computed(silver, batch).drop(*PROVENANCE)

    def of_grains(self, silver: DataFrame, grains: DataFrame, batch: int) -> DataFrame:
        """Return the table's rows of these grains, without history; `silver` has all rows of them."""
        return self._rows(self._chosen(silver, grains), batch).drop(*PROVENANCE)

    def first_batches(self, silver: DataFrame, grains: DataFrame) -> DataFrame:
        """Return the first batch (`_first_batch`) of the silver rows of each of these grains."""
        return self._chosen(silver, grains).groupBy(*self.grain).agg(F.min("_batch_id").alias("_first_batch"))

    @abstractmethod
    def merged(self, old: DataFrame, sources: Sources, whole: Callable[[], DataFrame], batch: int) -> DataFrame:
        """Return `old` rows merged with what a commit brings; `whole`: all rows of silver of the grains."""

    @abstractmethod
    def _rows(self, rows: DataFrame, batch: int) -> DataFrame:
        """Return the table's rows over rows of silver that count, with their windows."""

    def _counted(self, silver: DataFrame) -> DataFrame:
        rows = source_rows(self.gold.over, silver)
        return rows if self.gold.counted == "true" else rows.where(self.gold.counted)

    def _windowed(self, silver: DataFrame) -> DataFrame:
        return windowed(self.gold.window, self._counted(silver))

    def _touched(self, rows: DataFrame) -> DataFrame:
        return rows.where(self.gold.row_condition).select(*self.grain).distinct()

    def _chosen(self, silver: DataFrame, grains: DataFrame) -> DataFrame:
        return rows_in_grains(self._windowed(silver), grains, self.grain)


class AdditiveGoldRows(GoldRows):
    """One row per grain or session, each measure from its state."""

    def __init__(self, gold: Gold) -> None:
        super().__init__(gold)
        self.measures = gold_measures(gold.measures)

    def merged(self, old: DataFrame, sources: Sources, whole: Callable[[], DataFrame], batch: int) -> DataFrame:
        return self.added(old, self.of_sources(sources, batch))

    def touched_by(self, sources: Sources, batch: int, old: DataFrame) -> DataFrame:
        """Return the grains of the partial results; Spark computes these once for both uses."""
        return self.of_sources(sources, batch).select(*self.grain)

    def added(self, old: DataFrame, new: DataFrame) -> DataFrame:
        """Return `old` and `new` rows of the same columns as one row per grain or session."""
        session = self.gold.session
        parts = [part for measure in self.measures for part in measure.merged()]
        start, end = (session.start, session.end) if session else ("", "")
        merged = self._aggregated(old.unionByName(new), start, end, [*parts, *merged_provenance()])
        # Summing decimals widens their type; the table's must stay, and a sum that outgrows it is an error (ANSI).
        typed = [F.col(name).cast(old.schema[name].dataType).alias(name) for name in merged.columns]
        return self._final(merged.select(*typed))

    def _rows(self, rows: DataFrame, batch: int) -> DataFrame:
        parts = [part for measure in self.measures for part in measure.state()]
        column = self.gold.session.column if self.gold.session else ""
        grouped = self._aggregated(rows, column, column, parts)
        return self._final(grouped.select("*", *first_provenance(batch, self.grain[0])))

    def _aggregated(self, rows: DataFrame, start: str, end: str, parts: list[Column]) -> DataFrame:
        """Return the aggregates `parts` per grain, or per session of the intervals from column `start` to `end`."""
        session, keys = self.gold.session, self.gold.keys
        if session is None:
            return rows.groupBy(*self.grain).agg(*parts)
        bounds = [F.min(start).alias(session.start), F.max(end).alias(session.end)]
        numbered = numbered_sessions(session, keys, rows, start, end)
        return numbered.groupBy(*keys, NUMBER).agg(*bounds, *parts).drop(NUMBER)

    def _final(self, rows: DataFrame) -> DataFrame:
        measures, named = self.measures, self.gold.row_columns
        kept = [name for measure in measures for name in measure.kept]
        ratios = {measure.name: measure.value() for measure in measures if measure.of_values}
        values = [measure.value().alias(measure.name) for measure in measures if not measure.of_values]
        valued = rows.select(*named, *values, *PROVENANCE, *kept).withColumns(ratios)
        names = [measure.name for measure in measures]
        return valued.select(*named, *names, *PROVENANCE, *kept) if ratios else valued


class LatestGoldRows(GoldRows):
    """The newest row per key."""

    def merged(self, old: DataFrame, sources: Sources, whole: Callable[[], DataFrame], batch: int) -> DataFrame:
        candidates = self._candidates(_union([self._counted(rows) for rows, _ in sources]), batch)
        return self._newest(old.select(*candidates.columns).unionByName(candidates))

    def _rows(self, rows: DataFrame, batch: int) -> DataFrame:
        return self._newest(self._candidates(rows, batch))

    def _candidates(self, silver: DataFrame, batch: int) -> DataFrame:
        """Every silver row as a gold row of revision 0: a key's revision grows by one a batch, not by one a row."""
        columns = [F.expr(expression).alias(name) for name, expression in self.gold.columns]
        first, last, _ = first_provenance(batch, "_partition")
        deciding = [F.col(name).alias(kept) for name, kept in self.gold.deciding_columns]
        return silver.select(
            *self.gold.keys, *columns, first, last, F.lit(0).cast("long").alias("_revision"), *deciding
        )

    def _newest(self, rows: DataFrame) -> DataFrame:
        return self._placed(rows).where("_place = 1").select(*rows.columns)

    def _placed(self, rows: DataFrame) -> DataFrame:
        """Return the rows with their places among those of their key.

        One sort for both: by a hash of the keys, which is compared faster than the keys, then by what decides.
        """
        marked = rows.withColumn("_mark", F.xxhash64(*self.gold.keys))
        key = RowWindow.partitionBy("_mark", *self.gold.keys)
        order = key.orderBy(*[F.col(name).desc_nulls_last() for _, name in self.gold.deciding_columns])
        whole = key.rowsBetween(RowWindow.unboundedPreceding, RowWindow.unboundedFollowing)
        return marked.select(
            *[name for name in rows.columns if name not in PROVENANCE],
            F.min("_first_batch").over(whole).alias("_first_batch"),
            F.max("_last_batch").over(whole).alias("_last_batch"),
            (F.max("_revision").over(whole) + F.max(F.expr("int(_revision = 0)")).over(whole)).alias("_revision"),
            F.row_number().over(order).alias("_place"),
        )


class LastGoldRows(LatestGoldRows):
    """The newest rows per key, with measures over them."""

    def _newest(self, rows: DataFrame) -> DataFrame:
        gold, measures = self.gold, gold_measures(self.gold.measures)
        newest = self._placed(rows).where(F.col("_place") <= F.lit(gold.rows)).withColumnRenamed("_place", PLACE)
        states = [name for each in measures for name in each.kept]
        if measures:
            of_keys = newest.groupBy(*gold.keys).agg(*(part for each in measures for part in each.state()))
            values = [each.value().alias(each.name) for each in measures]
            newest = joined_by(newest, of_keys.select(*gold.keys, *values, *states), gold.keys)
        deciding = [kept for _, kept in gold.deciding_columns]
        return newest.select(*gold.declared_columns, *PROVENANCE, *deciding, *states)


class QueryGoldRows(GoldRows):
    """The result of the dataset's SQL over whole grains."""

    def merged(self, old: DataFrame, sources: Sources, whole: Callable[[], DataFrame], batch: int) -> DataFrame:
        grains, silver = self.touched_by(sources, batch, old), whole()
        self._chosen(silver, F.broadcast(grains)).createOrReplaceTempView("silver")
        return with_grains_replaced(self.grain, old, self._evaluated(silver.sparkSession), grains, batch)

    def complete(self, silver: DataFrame, batch: int) -> DataFrame:
        return self.of_grains(silver, self.touched(silver), batch)

    def of_grains(self, silver: DataFrame, grains: DataFrame, batch: int) -> DataFrame:
        """Return the rows of these grains; a query may give rows of a grain that no row touches any more."""
        chosen = self._chosen(silver, grains)
        return rows_in_grains(self._rows(chosen, batch).drop(*PROVENANCE), self._touched(chosen), self.grain)

    def _rows(self, rows: DataFrame, batch: int) -> DataFrame:
        rows.createOrReplaceTempView("silver")
        return self._evaluated(rows.sparkSession).select("*", *first_provenance(batch, self.grain[0]))

    def _evaluated(self, spark: SparkSession) -> DataFrame:
        return spark.sql(self.gold.query)


class ChildGoldRows(GoldRows):
    """One row per child. A run's records are new, so it only adds."""

    def merged(self, old: DataFrame, sources: Sources, whole: Callable[[], DataFrame], batch: int) -> DataFrame:
        new = self.of_sources(sources, batch)
        return old.select(*new.columns).unionByName(new)

    def _rows(self, rows: DataFrame, batch: int) -> DataFrame:
        values = [F.col(name) for name, _ in self.gold.columns]
        return rows.select(*self.gold.row_columns, *values, *first_provenance(batch, self.grain[0]))


class ChangesGoldRows(QueryGoldRows):
    """The rows that changes of keys give; some changes are of every key."""

    def touched_by(self, sources: Sources, batch: int, old: DataFrame) -> DataFrame:
        """Return the keys of the changes; all keys of the table after a change of every key."""
        found = super().touched_by(sources, batch, old)
        if not self.gold.everywhere:
            return found
        general = _union([rows.where(self.gold.everywhere).select(F.lit(1)).limit(1) for rows, _ in sources])
        return found.unionByName(old.select(*self.grain).join(general, how="left_semi")).distinct()

    def _chosen(self, silver: DataFrame, grains: DataFrame) -> DataFrame:
        own = super()._chosen(silver, grains)
        return own.unionByName(silver.where(self.gold.everywhere)) if self.gold.everywhere else own


class FoldGoldRows(QueryGoldRows):
    """What a function makes of each key's rows in their order."""

    def _evaluated(self, spark: SparkSession) -> DataFrame:
        ordered, function, keys = super()._evaluated(spark), self.gold.by_python, self.grain
        if function is None:
            return ordered
        types = StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, kind in self.gold.returns))
        assert isinstance(types, StructType)
        schema = StructType([*(ordered.schema[key] for key in keys), *types.fields])
        made = to_arrow_schema(schema, timezone="UTC")
        return ordered.groupBy(*keys).applyInArrow(lambda rows: function.of_keys(rows, keys, made), schema)


KINDS: dict[type[Gold], type[GoldRows]] = {
    AdditiveGold: AdditiveGoldRows,
    LatestGold: LatestGoldRows,
    LastGold: LastGoldRows,
    FoldGold: FoldGoldRows,
    QueryGold: QueryGoldRows,
    ChildGold: ChildGoldRows,
    ChangesGold: ChangesGoldRows,
}


def gold_rows(gold: Gold) -> GoldRows:
    """Return how Spark computes and merges the rows of a table."""
    return KINDS[type(gold)](gold)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)
