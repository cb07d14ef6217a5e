"""Which gold tables DuckDB merges, from which columns of a run's rows (adr-0012).

A query's grains are recomputed from silver: Spark executes the dataset's own SQL and nothing else. Its input and its
result lie in a folder of this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from include.declare.gold import EVERY_RUN, Gold
from include.declare.windows import windowed_sql
from include.ground.record_coordinates import POSITION
from include.ground.sql_quoting import same_sql, sql_identifier
from spark_jobs.layers.gold_inputs import GoldInputs, names_in_sql
from spark_jobs.layers.gold_measures import CARRIED, COMPARED, gold_measures
from spark_jobs.layers.row_provenance import PROVENANCE
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table, no_rows
from spark_jobs.tables.duckdb_session import DuckSession
from spark_jobs.tables.prepared_query import PreparedQuery, ScratchFolder, Slot
from spark_jobs.tables.spark_files import computes_here


@dataclass(frozen=True)
class RecomputedGrains:
    """The query of a gold table, prepared over silver's rows of any grains; input and result lie in `scratch`."""

    spark: SparkSession
    gold: Gold
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
        parted = F.expr(self.gold.partition_expression).alias(self.spec.partition)
        rows = self.spark.sql(self.gold.query).select("*", parted)
        return PreparedQuery(rows.select(*self.schema.fieldNames()))

    @cached_property
    def _filled_columns(self) -> Sequence[str]:
        """The columns of the slot that the query reads; at least one, so that a query that only counts finds rows."""
        scanned = self._query.scanned_columns
        return self._slot.names if scanned is None else sorted(scanned) or self.gold.grain_columns[:1]

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
        return "true" if nulls else window.between_sql(first, last)


def same_grain(gold: Gold, left: str, right: str) -> str:
    """Return the SQL condition that rows of two relations are of one grain; null is a key like any other."""
    return same_sql(gold.grain_columns, left, right)


def replaced_grains_sql(gold: Gold, columns: Sequence[str], batch: int) -> str:
    """Return the query of `old` with the rows of the grains in `new` replaced by those of `fresh`.

    A grain's new rows have the first batch of its old ones, and one revision more than any of them.
    """
    grain = ", ".join(sql_identifier(name) for name in gold.grain_columns)
    before = f"select {grain}, min(_first_batch) as _first, max(_revision) as _revisions from old group by {grain}"
    named = ", ".join(f"fresh.{sql_identifier(name)}" for name in columns)
    history = (
        f"coalesce(_first, {batch}) as _first_batch, {batch}::bigint as _last_batch,"
        " coalesce(_revisions, 0) + 1 as _revision"
    )
    kept = f"select * from old anti join new on {same_grain(gold, 'old', 'new')}"
    joined = f"fresh left join ({before}) as before on {same_grain(gold, 'fresh', 'before')}"
    return f"{kept} union all by name select {named}, {history} from {joined}"


@dataclass(frozen=True)
class EmbeddedPlan:
    """The columns of a run's rows with the values of a gold table's expressions; "" for those that need none.

    `where`: whether a row counts. `partition`: the table's partition, which the grain determines; "" for the month of
    the window. `values` and `orders`: by measure, or by column of a latest table, its value and its `by`. `query`:
    that of a query table.
    """

    where: str
    partition: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    orders: Mapping[str, str] = field(default_factory=dict)
    query: RecomputedGrains | None = None


def embedded_plan(
    spark: SparkSession, gold: Gold, spec: TableSpec, silver: TableSpec, inputs: GoldInputs, scratch: ScratchFolder
) -> EmbeddedPlan | None:
    """Return how DuckDB merges a table, and register what it needs in `inputs`; None when Spark must merge it.

    `scratch` is for the input and the result of a query.
    """
    comparable = all(isinstance(spec.schema[name].dataType, COMPARED) for name in gold.grain_columns)
    if gold.refresh != EVERY_RUN or not comparable:
        return None
    if gold.recomputes:
        if not computes_here(spark):
            return None
        where = _counted(gold, inputs)
        return EmbeddedPlan(where, query=RecomputedGrains(spark, gold, spec, silver, scratch))
    if gold.session is not None or not _is_embedded(spark, gold, spec, silver):
        return None
    return _registered(gold, inputs)


def _is_embedded(spark: SparkSession, gold: Gold, spec: TableSpec, silver: TableSpec) -> bool:
    grain = StructType([spec.schema[name] for name in gold.grain_columns])
    if not _gives_partition(spark, grain, gold):
        return False
    trial = GoldInputs(tuple(silver.data_schema.fieldNames()))
    plan, types = _registered(gold, trial), trial.merge_rows(no_rows(spark, silver.data_schema)).schema
    carried = all(isinstance(types[plan.values[name]].dataType, CARRIED) for name, _ in gold.columns)
    ordered = all(isinstance(types[name].dataType, COMPARED) for name in gold.order_by)
    measures = gold_measures(gold.measures)
    measured = (each.is_embedded(types, plan.values[each.name], plan.orders[each.name]) for each in measures)
    return carried and ordered and all(measured)


def _gives_partition(spark: SparkSession, grain: StructType, gold: Gold) -> bool:
    """Whether the grain alone determines the partition; of a window that slides it must be the month."""
    window = gold.window
    if window is not None and window.slide is not None and not gold.is_partitioned_by_month:
        return False
    try:
        _ = no_rows(spark, grain).select(F.expr(gold.partition_expression)).schema
    except AnalysisException:
        return False
    return True


def _registered(gold: Gold, inputs: GoldInputs) -> EmbeddedPlan:
    window, where, counted = gold.window, gold.counted, _counted(gold, inputs)
    # DuckDB computes the month of each grain; Spark would for each row.
    by_month = gold.is_partitioned_by_month
    partition = "" if by_month else inputs.of(gold.partition_expression, where, window)
    for name in gold.order_by:
        inputs.column(name)
    values = {name: inputs.of(sql, where) for name, sql in gold.columns}
    measures = gold_measures(gold.measures)
    values |= {each.name: each.value_input(inputs, where) for each in measures}
    orders = {each.name: each.order_input(inputs, where) for each in measures}
    return EmbeddedPlan(counted, partition, values, orders)


def _counted(gold: Gold, inputs: GoldInputs) -> str:
    """Register the columns that name a row's grain; return the boolean column that selects counted rows."""
    window, condition = gold.window, gold.row_condition
    for name in (*POSITION, *gold.keys, *((window.column,) if window else ())):
        inputs.column(name)
    return "" if condition == "true" else inputs.of(condition)
