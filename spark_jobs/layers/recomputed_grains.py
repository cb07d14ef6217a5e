"""A gold query over the silver rows of some grains: Spark executes the dataset's SQL, and nothing else (adr-0012).

Reads: silver's files that may have rows of the grains. Writes: the query's input and result, in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from include.declare.pipeline import Gold, QueryGold, grain_columns, partition_expression
from include.declare.window_sql import between_windows_sql, windowed_sql
from include.ground.sql_quoting import same_sql, sql_identifier
from spark_jobs.layers.gold_inputs import names_in_sql
from spark_jobs.layers.row_provenance import PROVENANCE
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.duckdb_session import DuckSession
from spark_jobs.tables.prepared_query import PreparedQuery, ScratchFolder, Slot


@dataclass(frozen=True)
class RecomputedGrains:
    """The query of a gold table, prepared over silver's rows of any grains; input and result lie in `scratch`."""

    spark: SparkSession
    gold: QueryGold
    spec: TableSpec
    silver: TableSpec
    scratch: ScratchFolder

    @property
    def schema(self) -> StructType:
        """The columns of the query, then the partition."""
        return StructType([each for each in self.spec.schema.fields if each.name not in PROVENANCE])

    @cached_property
    def _slot(self) -> Slot:
        fields = list(self.silver.data_schema.fields)
        if self.gold.window is not None:
            name = self.gold.window.name
            fields.append(StructField(name, self.spec.schema[name].dataType))
        return Slot(self.spark, self.scratch.path / "gold" / self.gold.name, StructType(fields), tasks=1)

    @cached_property
    def _query(self) -> PreparedQuery:
        self._slot.rows.createOrReplaceTempView("silver")
        parted = F.expr(partition_expression(self.gold)).alias(self.spec.partition)
        rows = self.spark.sql(self.gold.query).select("*", parted)
        return PreparedQuery(rows.select(*self.schema.fieldNames()))

    @cached_property
    def _filled_columns(self) -> Sequence[str]:
        """The columns of the slot that the query reads; at least one, so that a query that only counts finds rows."""
        scanned = self._query.scanned_columns
        return self._slot.names if scanned is None else sorted(scanned) or grain_columns(self.gold)[:1]

    def view(self, duck: DuckSession, silver: Table, sources: Sequence[DataFile], batch: int, name: str) -> None:
        """Create a view of the query's rows over all rows of table `new`'s grains, from `sources` up to a batch.

        Raises SlotFull when these are too many.
        """
        duck.view_table("sources", silver, sources)
        known = f"(select * from sources where _batch_id <= {batch} and {self._condition(duck)})"
        rows = windowed_sql(self.gold.window, known)
        of_grains = f"({rows}) as whole semi join new on {same_grain(self.gold, 'whole', 'new')}"
        chosen = f"select {names_in_sql(self._filled_columns)} from {of_grains}"
        self._slot.fill(duck.arrow(chosen))
        duck.view_arrow(name, self._query.result())

    def _condition(self, duck: DuckSession) -> str:
        """Return a condition that the rows of the grains meet, so that not all rows of `sources` are read."""
        window = self.gold.window
        if window is None:
            return "true"
        name = sql_identifier(window.name)
        # A row without a time lies in the window null.
        first, last, nulls = duck.rows(f"select min({name}), max({name}), count(*) - count({name}) from new")[0]
        return "true" if nulls else between_windows_sql(window, first, last)


def same_grain(gold: Gold, left: str, right: str) -> str:
    """Return the SQL condition that rows of two relations are of one grain; null is a key like any other."""
    return same_sql(grain_columns(gold), left, right)


def replaced_grains_sql(gold: QueryGold, columns: Sequence[str], batch: int) -> str:
    """Return the query of `old` with the rows of the grains in `new` replaced by those of `fresh`.

    A grain's new rows have the first batch of its old ones, and one revision more than any of them.
    """
    grain = ", ".join(sql_identifier(name) for name in grain_columns(gold))
    before = f"select {grain}, min(_first_batch) as _first, max(_revision) as _revisions from old group by {grain}"
    named = ", ".join(f"fresh.{sql_identifier(name)}" for name in columns)
    history = (
        f"coalesce(_first, {batch}) as _first_batch, {batch}::bigint as _last_batch,"
        " coalesce(_revisions, 0) + 1 as _revision"
    )
    kept = f"select * from old anti join new on {same_grain(gold, 'old', 'new')}"
    joined = f"fresh left join ({before}) as before on {same_grain(gold, 'fresh', 'before')}"
    return f"{kept} union all by name select {named}, {history} from {joined}"
