"""Which gold tables DuckDB merges, and from which columns of a run's rows (adr-0012)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.gold_refresh import EVERY_RUN
from include.declare.pipeline import (
    AdditiveGold,
    Gold,
    LatestGold,
    QueryGold,
    gold_session,
    gold_window,
    grain_columns,
    is_partitioned_by_month,
    partition_expression,
    row_condition,
)
from include.ground.record_coordinates import POSITION
from spark_jobs.layers.embedded_measures import CARRIED, COMPARED, is_embedded, order_input, value_input
from spark_jobs.layers.gold_inputs import GoldInputs
from spark_jobs.layers.recomputed_grains import RecomputedGrains
from spark_jobs.tables.data_files import TableSpec
from spark_jobs.tables.delta_table import no_rows
from spark_jobs.tables.prepared_query import ScratchFolder
from spark_jobs.tables.spark_files import computes_here


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
    comparable = all(isinstance(spec.schema[name].dataType, COMPARED) for name in grain_columns(gold))
    if gold.refresh != EVERY_RUN or not comparable:
        return None
    if isinstance(gold, QueryGold):
        if not computes_here(spark):
            return None
        where = _counted(gold, inputs)
        return EmbeddedPlan(where, query=RecomputedGrains(spark, gold, spec, silver, scratch))
    if gold_session(gold) is not None or not _is_embedded(spark, gold, spec, silver):
        return None
    return _registered(gold, inputs)


def _is_embedded(spark: SparkSession, gold: AdditiveGold | LatestGold, spec: TableSpec, silver: TableSpec) -> bool:
    grain = StructType([spec.schema[name] for name in grain_columns(gold)])
    if not _gives_partition(spark, grain, gold):
        return False
    trial = GoldInputs(tuple(silver.data_schema.fieldNames()))
    plan, types = _registered(gold, trial), trial.merge_rows(no_rows(spark, silver.data_schema)).schema
    if isinstance(gold, LatestGold):
        carried = all(isinstance(types[name].dataType, CARRIED) for name in plan.values.values())
        return carried and all(isinstance(types[name].dataType, COMPARED) for name in gold.order_by)
    return all(is_embedded(each, types, plan.values[each.name], plan.orders[each.name]) for each in gold.measures)


def _gives_partition(spark: SparkSession, grain: StructType, gold: Gold) -> bool:
    """Whether the grain alone determines the partition; of a window that slides it must be the month."""
    window = gold_window(gold)
    if window is not None and window.slide is not None and not is_partitioned_by_month(gold):
        return False
    try:
        _ = no_rows(spark, grain).select(F.expr(partition_expression(gold))).schema
    except AnalysisException:
        return False
    return True


def _registered(gold: AdditiveGold | LatestGold, inputs: GoldInputs) -> EmbeddedPlan:
    window, where, counted = gold_window(gold), gold.where, _counted(gold, inputs)
    # DuckDB computes the month of each grain; Spark would for each row.
    by_month = is_partitioned_by_month(gold)
    partition = "" if by_month else inputs.of(partition_expression(gold), where, window)
    if isinstance(gold, LatestGold):
        for name in gold.order_by:
            inputs.column(name)
        return EmbeddedPlan(counted, partition, {name: inputs.of(sql, where) for name, sql in gold.columns})
    values = {each.name: value_input(each, inputs, where) for each in gold.measures}
    orders = {each.name: order_input(each, inputs, where) for each in gold.measures}
    return EmbeddedPlan(counted, partition, values, orders)


def _counted(gold: Gold, inputs: GoldInputs) -> str:
    """Register the columns that name a row's grain; return the boolean column that selects counted rows."""
    window, condition = gold_window(gold), row_condition(gold)
    for name in (*POSITION, *gold.keys, *((window.column,) if window else ())):
        inputs.column(name)
    return "" if condition == "true" else inputs.of(condition)
