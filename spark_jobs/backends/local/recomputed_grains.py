"""The grains of a query, recomputed from silver: Spark executes the dataset's own SQL and nothing else.

Its input and its result lie in a folder of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from include.declare.fold_function import FunctionFailed
from include.declare.gold import Gold
from include.declare.windows import windowed_sql
from include.ground.sql_quoting import duckdb_expression, same_sql, sql_identifier, sql_names
from spark_jobs.backends.backend import NeedsSpark
from spark_jobs.backends.local.duckdb_session import DuckSession
from spark_jobs.backends.local.prepared_query import PreparedQuery, ScratchFolder, Slot
from spark_jobs.layers.gold_files import history_since
from spark_jobs.layers.row_provenance import PROVENANCE
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table


@dataclass(frozen=True)
class RecomputedGrains:
    """The query of a gold table, prepared over silver's rows of any grains; input and result lie in `scratch`."""

    spark: SparkSession
    gold: Gold
    spec: TableSpec
    source: StructType
    scratch: ScratchFolder

    @property
    def schema(self) -> StructType:
        """The columns of the query, then the partition."""
        return StructType([each for each in self.spec.schema.fields if each.name not in PROVENANCE])

    @cached_property
    def _slot(self) -> Slot:
        fields = list(self.source.fields)
        if self.gold.window is not None:
            name = self.gold.window.name
            fields.append(StructField(name, self.spec.schema[name].dataType))
        return Slot(self.spark, self.scratch.path / "gold" / self.gold.name, StructType(fields), tasks=1)

    @cached_property
    def _query(self) -> PreparedQuery:
        self._slot.rows.createOrReplaceTempView("silver")
        parted = F.expr(self.gold.partition_expression).alias(self.spec.partition)
        rows = self.spark.sql(self.gold.query).select("*", parted)
        return PreparedQuery(rows if self.gold.by_python else rows.select(*self.schema.fieldNames()))

    @cached_property
    def _filled_columns(self) -> Sequence[str]:
        """The columns of the slot that the query reads; at least one, so that a query that only counts finds rows."""
        scanned = self._query.scanned_columns
        return self._slot.names if scanned is None else sorted(scanned) or self.gold.grain_columns[:1]

    def view(self, duck: DuckSession, silver: Table, sources: Sequence[DataFile], batch: int, name: str) -> None:
        """Create a view of the query's rows over the grains of table `new`, up to a batch. Raises SlotFull."""
        duck.view_table("sources", silver, sources)
        known = f"(select * from sources where _batch_id <= {batch} and {self._condition(duck)})"
        if self.gold.over is not None:
            known = self.gold.over.sql(known, silver.spec.data_schema.fieldNames())
        rows = windowed_sql(self.gold.window, known)
        of_grains = f"({rows}) as whole semi join new on {same_sql(self.gold.grain_columns, 'whole', 'new')}"
        chosen = f"select {sql_names(self._filled_columns)} from {of_grains}"
        if general := self.gold.everywhere:
            condition = duckdb_expression(general, self.source.fieldNames())
            chosen += f" union all select {sql_names(self._filled_columns)} from ({rows}) where {condition}"
        self._slot.fill(duck.arrow(chosen))
        duck.view_arrow(name, self._result())

    def _result(self) -> pa.Table:
        """Return the rows of the query, or what a function makes of them. Raises NeedsSpark if it fails."""
        found, function = self._query.result(), self.gold.by_python
        if function is None:
            return found
        try:
            # A key has one partition.
            keys = (*self.gold.keys, self.spec.partition)
            return function.of_keys(found, keys, to_arrow_schema(self.schema, timezone="UTC"))
        except FunctionFailed as error:
            raise NeedsSpark("its function fails") from error

    def since(self, duck: DuckSession) -> datetime | None:
        """Return the event time since which rows count for the grains of the view `run_rows`; None for all rows."""
        if self.gold.within is None:
            return None
        oldest = duck.rows(f"select min({sql_identifier(self.gold.within.column)}) from run_rows")[0][0]
        return history_since(self.gold, oldest)

    def _condition(self, duck: DuckSession) -> str:
        """Return a condition that the rows of the grains meet, so that not all rows of `sources` are read."""
        window, within, since = self.gold.window, self.gold.within, self.since(duck)
        if within is not None and since is not None:
            return f"{sql_identifier(within.column)} >= timestamptz '{since.isoformat()}'"
        if window is None:
            return "true"
        name = sql_identifier(window.name)
        # A row without a time lies in the window null.
        first, last, nulls = duck.rows(f"select min({name}), max({name}), count(*) - count({name}) from new")[0]
        return "true" if nulls else window.between_sql(first, last)
