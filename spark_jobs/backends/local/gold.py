"""Gold merged in this process by DuckDB: a run of a few thousand rows needs no Spark job (layers/adr-0012).

Which tables DuckDB merges is planned once, from the types of their columns. Spark has computed a dataset's expressions
for each row (`gold_inputs.py`); DuckDB evaluates none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from include.declare.children import INDEX
from include.declare.gold import EVERY_RUN, AdditiveGold, Gold, LatestGold
from include.declare.state_by_key import PLACE, LastGold
from include.declare.windows import windowed_sql
from include.ground.record_coordinates import POSITION
from include.ground.sql_quoting import same_sql, sql_identifier, sql_literal, sql_names
from spark_jobs.backends.backend import NeedsSpark
from spark_jobs.backends.local.duckdb_session import DuckSession, duckdb_session, session_for
from spark_jobs.backends.local.prepared_query import ScratchFolder, SlotFull
from spark_jobs.backends.local.recomputed_grains import RecomputedGrains
from spark_jobs.layers.distinct_sketches import with_sketches
from spark_jobs.layers.gold_files import MOST_GRAINS, MOST_ROWS, GoldTable, Grain, Grains, rows_of, silver_within
from spark_jobs.layers.gold_inputs import GoldInputs
from spark_jobs.layers.gold_layer import GoldCommit
from spark_jobs.layers.gold_measures import CARRIED, COMPARED, GoldMeasure, gold_measures
from spark_jobs.layers.row_provenance import PROVENANCE
from spark_jobs.layers.silver_tables import Month
from spark_jobs.tables.data_files import HIVE_NULL, DataFile, TableSpec, no_rows
from spark_jobs.tables.delta_table import Table

if TYPE_CHECKING:
    from spark_jobs.backends.local.runs import RunRows
    from spark_jobs.backends.local.tables import LocalTables


@dataclass(frozen=True)
class EmbeddedPlan:
    """The columns of a run's rows with the values of a gold table's expressions; "" for those that need none.

    `where`: whether a row counts. `partition`: the table's partition, which the grain determines; "" for the month of
    the window. `values` and `orders`: by measure, or by column of a latest table, its value and its `by`.
    """

    where: str
    partition: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    orders: Mapping[str, str] = field(default_factory=dict)


def embedded_merge(
    target: GoldTable, source: StructType, inputs: GoldInputs, scratch: ScratchFolder
) -> EmbeddedMerge | None:
    """Return how DuckDB merges runs into a table, and register what it needs in `inputs`; None when Spark must.

    `source`: the columns of the rows from which it is computed. `scratch` is for the input and the result of a query.
    """
    gold, spec, spark = target.gold, target.table.spec, target.spark
    comparable = all(isinstance(spec.schema[name].dataType, COMPARED) for name in gold.grain_columns)
    if gold.refresh != EVERY_RUN or not comparable:
        return None
    if gold.recomputes:
        query = RecomputedGrains(spark, gold, spec, source, scratch)
        return QueryMerge(target, EmbeddedPlan(_counted(gold, inputs)), query)
    if gold.only_adds:
        for name in gold.declared_columns:
            inputs.column(name)
        return ChildMerge(target, EmbeddedPlan(""))
    if gold.session is not None or not _is_embedded(spark, gold, spec, source):
        return None
    return MERGES[type(gold)](target, _registered(gold, inputs))


def _is_embedded(spark: SparkSession, gold: Gold, spec: TableSpec, source: StructType) -> bool:
    grain = StructType([spec.schema[name] for name in gold.grain_columns])
    if not _gives_partition(spark, grain, gold):
        return False
    trial = GoldInputs(tuple(source.fieldNames()))
    plan, types = _registered(gold, trial), trial.merge_rows(no_rows(spark, source)).schema
    carried = all(isinstance(types[plan.values[name]].dataType, CARRIED) for name, _ in gold.columns)
    ordered = all(isinstance(types[name].dataType, COMPARED) for name, _ in gold.deciding_columns)
    measures = gold_measures(gold.silver_measures)
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
    for name, _ in gold.deciding_columns:
        inputs.column(name)
    values = {name: inputs.of(sql, where) for name, sql in gold.columns}
    measures = gold_measures(gold.silver_measures)
    values |= {each.name: each.value_input(inputs, where) for each in measures}
    orders = {each.name: each.order_input(inputs, where) for each in measures}
    return EmbeddedPlan(counted, partition, values, orders)


def _counted(gold: Gold, inputs: GoldInputs) -> str:
    """Register the columns that name a row's grain; return the boolean column that selects counted rows."""
    window, condition = gold.window, gold.row_condition
    index = (INDEX,) if gold.over else ()
    for name in (*POSITION, *index, *gold.keys, *(each.column for each in (window, gold.within) if each)):
        inputs.column(name)
    return "" if condition == "true" else inputs.of(condition)


HISTORY = (
    "min(_first_batch) as _first_batch",
    "max(_last_batch) as _last_batch",
    "sum(_revision)::bigint as _revision",
)


BATCH = "$batch$"
"""In the text of a query, the number of the batch that it merges."""


@dataclass(frozen=True)
class EmbeddedMerge(ABC):
    """How DuckDB merges a run into one table: its queries are the same for every run."""

    target: GoldTable
    plan: EmbeddedPlan
    states: ClassVar[Sequence[str]] = ()
    """Further columns of the merged rows, for `_with_states`."""

    @staticmethod
    def session(rows: int) -> AbstractContextManager[DuckSession]:
        return session_for(rows)

    def begin(self, duck: DuckSession, rows: pa.Table) -> Grains:
        """Compute the partial result of a run's rows; return its grains."""
        duck.view_arrow("run_rows", rows)
        duck.create_table("new", self._new_sql)
        count, nulls, low, high = duck.rows(self._grains_sql)[0]
        spans = None if nulls else [(low, high)] if count else []

        def exact() -> set[Grain] | None:
            return None if count > MOST_GRAINS else set(duck.rows(f"select distinct {self.grain} from new"))

        return Grains(self.target.grain_columns[0], spans, exact)

    def sources(self, silver: Table, grains: Grains) -> list[DataFile]:
        """Return silver's files of which the merge reads rows of these grains."""
        return []

    def finish(
        self, duck: DuckSession, old: Sequence[DataFile], silver: Table, sources: Sequence[DataFile], batch: int
    ) -> pa.Table:
        """Return the rows of `old` merged with the run's, partition included, sorted by partition and grain."""
        self._view_old(duck, old)
        return self._with_states(duck.arrow(self._finish_sql.replace(BATCH, str(batch)))).cast(self.schema)

    @property
    def gold(self) -> Gold:
        return self.target.gold

    @cached_property
    def _measures(self) -> list[GoldMeasure]:
        return gold_measures(self.gold.measures)

    @cached_property
    def grain(self) -> str:
        return sql_names(self.target.grain_columns)

    @cached_property
    def schema(self) -> pa.Schema:
        """The table's columns, partition included."""
        return to_arrow_schema(self.target.table.spec.schema, timezone="UTC")

    @cached_property
    def _new_sql(self) -> str:
        where = f" where {sql_identifier(self.plan.where)}" if self.plan.where else ""
        return self._new(windowed_sql(self.gold.window, f"(select * from run_rows{where})"))

    @cached_property
    def _grains_sql(self) -> str:
        column = sql_identifier(self.target.grain_columns[0])
        return f"select count(*), count(*) - count({column}), min({column}), max({column}) from new"

    @cached_property
    def _finish_sql(self) -> str:
        """The merged rows in the table's types, sorted; an error when a value does not fit."""
        with session_for(0) as duck:
            duck.view_arrow("typed", self.schema.empty_table())
            types = dict(duck.column_types("typed"))
        typed = [f"cast({sql_identifier(name)} as {types[name]}) as {sql_identifier(name)}" for name in types]
        order = [self.target.table.spec.partition, *self.target.grain_columns]
        sorted_by = _list(f"{sql_identifier(name)} nulls first" for name in order)
        return f"select {_list([*typed, *self.states])} from ({self._merged()}) order by {sorted_by}"

    def _with_states(self, rows: pa.Table) -> pa.Table:
        """Return merged rows with the states that DuckDB does not compute."""
        return rows

    @abstractmethod
    def _new(self, counted: str) -> str:
        """Return the query of the table `new` over the rows that count."""

    @abstractmethod
    def _merged(self) -> str:
        """Return the query of the rows that replace those of `old`."""

    def _view_old(self, duck: DuckSession, old: Sequence[DataFile]) -> None:
        table = self.target.table
        parts, selected = sorted({file.partition_text for file in old}) or [HIVE_NULL], []
        for number, part in enumerate(parts):
            duck.view_table(f"old_{number}", table, [file for file in old if file.partition_text == part])
            named = "null::varchar" if part == HIVE_NULL else sql_literal(part)
            selected.append(f'select *, {named} as "{table.spec.partition}" from old_{number}')
        duck.view_query("old", " union all ".join(selected))

    def _partition(self, aggregate: str = "{}") -> str:
        """Return SQL for the partition of rows of silver, or of a group of them."""
        name = self.target.table.spec.partition
        if self.plan.partition:
            return f'{aggregate.format(sql_identifier(self.plan.partition))}::varchar as "{name}"'
        assert self.gold.window is not None
        month = f"strftime({sql_identifier(self.gold.window.name)}, '%Y-%m')"
        return f'{aggregate.format(month)} as "{name}"'


NEW = f"*, {BATCH}::bigint as _first_batch, {BATCH}::bigint as _last_batch, {{}}::bigint as _revision"
"""The columns of a new row, of a revision."""


class AdditiveMerge(EmbeddedMerge):
    """States of measures, added up."""

    @cached_property
    def _sketched(self) -> list[GoldMeasure]:
        return [each for each in self._measures if each.new_values]

    @property
    def states(self) -> Sequence[str]:  # type: ignore[override]
        return [each.new_values for each in self._sketched]

    def _with_states(self, rows: pa.Table) -> pa.Table:
        for measure in self._sketched:
            rows = with_sketches(rows, measure.name, measure.kept[0], measure.new_values)
        return rows.select(self.schema.names)

    def _new(self, counted: str) -> str:
        values, orders = self.plan.values, self.plan.orders
        states = [part for each in self._measures for part in each.new_sql(values[each.name], orders[each.name])]
        selected = _list([self.grain, *states, self._partition("any_value({})")])
        return f"select {selected} from ({counted}) group by {self.grain}"

    def _merged(self) -> str:
        grain, month = self.grain, sql_identifier(self.target.table.spec.partition)
        old = _list([grain, *(name for each in self._measures for name in each.state_columns), *PROVENANCE, month])
        same, new = same_sql(self.target.grain_columns, "old", "new"), NEW.format(1)
        both = f"select {old} from old semi join new on {same} union all by name select {new} from new"
        states = [part for each in self._measures for part in each.merged_sql()]
        merged = _list([grain, *states, *HISTORY, f"any_value({month}) as {month}"])
        grouped = f"select {merged} from ({both}) group by {grain}"
        valued = [each for each in self._measures if not each.is_state and not each.of_values]
        # A ratio is of the values of other measures.
        ratios = [each for each in self._measures if each.of_values]
        merged = f"select *{_values(ratios)} from (select *{_values(valued)} from ({grouped}))"
        return f"{merged} union all by name select * from old anti join new on {same}"


class LatestMerge(EmbeddedMerge):
    """The newest row per key."""

    def _new(self, counted: str) -> str:
        gold = self.gold
        values = [f"{sql_identifier(self.plan.values[name])} as {sql_identifier(name)}" for name, _ in gold.columns]
        kept = [f"{sql_identifier(name)} as {sql_identifier(by)}" for name, by in gold.deciding_columns]
        keys = [sql_identifier(key) for key in gold.keys]
        return f"select {_list([*keys, *values, *kept, self._partition()])} from ({counted})"

    def _merged(self) -> str:
        """Return the query of the newest row per key; each row of silver is of revision 0, as Spark has it."""
        of_key = same_sql(self.target.grain_columns, "old", "new")
        return f"select * from ({self._newest(of_key)}) union all by name select * from old anti join new on {of_key}"

    def _newest(self, of_key: str) -> str:
        return self._placed(of_key, "* exclude (_first_batch, _last_batch, _revision)", "= 1")

    def _placed(self, of_key: str, columns: str, places: str) -> str:
        """Return the query of the rows at some places of their key, with its history."""
        gold = self.gold
        both = f"select * from old semi join new on {of_key} union all by name select {NEW.format(0)} from new"
        chosen = (
            columns,
            "min(_first_batch) over same as _first_batch",
            "max(_last_batch) over same as _last_batch",
            "max(_revision) over same + max(if(_revision = 0, 1, 0)) over same as _revision",
        )
        same = f"partition by {sql_names(gold.keys)}"
        by = _list(f"{sql_identifier(name)} desc nulls last" for _, name in gold.deciding_columns)
        place = f"row_number() over ({same} order by {by})"
        return f"select {_list(chosen)}, {place} as _at from ({both}) window same as ({same}) qualify _at {places}"


class LastMerge(LatestMerge):
    """The newest rows per key, and measures over them."""

    def _newest(self, of_key: str) -> str:
        gold = self.gold
        own = [*gold.keys, *(name for name, _ in gold.columns), *(kept for _, kept in gold.deciding_columns)]
        kept = sql_names([*own, self.target.table.spec.partition])
        newest = f"select *, _at as {PLACE} from ({self._placed(of_key, kept, f'<= {gold.rows}')})"
        if not self._measures:
            return newest
        values = {each.name: each.measure.expression.replace("*", "") for each in self._measures}
        states = [part for each in self._measures for part in each.new_sql(values[each.name], "")]
        of_keys = f"select {self.grain}, {_list(states)} from newest group by {self.grain}"
        computed = _values(each for each in self._measures if not each.is_state)
        return (
            f"with newest as materialized ({newest}), of_keys as ({of_keys}) "
            f"select newest.*, of_keys.* exclude ({self.grain}){computed} "
            f"from newest join of_keys on {same_sql(self.gold.keys, 'newest', 'of_keys')}"
        )


class ChildMerge(EmbeddedMerge):
    """The children of the run's records, each a new row."""

    def _new(self, counted: str) -> str:
        month = f'{Month(self.gold.dated_by).in_duckdb} as "{self.target.table.spec.partition}"'
        return f"select {sql_names(self.gold.declared_columns)}, {month} from ({counted})"

    def _merged(self) -> str:
        return f"select {NEW.format(1)} from new"


@dataclass(frozen=True)
class QueryMerge(EmbeddedMerge):
    """Grains recomputed by Spark from silver's rows, however few are new."""

    query: RecomputedGrains

    @staticmethod
    def session(rows: int) -> AbstractContextManager[DuckSession]:
        """Open a session for all rows of the grains."""
        return duckdb_session()

    def begin(self, duck: DuckSession, rows: pa.Table) -> Grains:
        """Compute the grains of a run's rows. Raises NeedsSpark when one of them belongs to every grain."""
        grains = super().begin(duck, rows)
        if self.gold.everywhere:
            own = sql_identifier(self.plan.where)
            if duck.rows(f"select count(*) from run_rows where not {own}")[0][0]:
                raise NeedsSpark("a row touches every grain")
        return replace(grains, since=self.query.since(duck))

    def sources(self, silver: Table, grains: Grains) -> list[DataFile]:
        return silver_within(self.gold, silver, grains.spans, grains.since)

    def finish(
        self, duck: DuckSession, old: Sequence[DataFile], silver: Table, sources: Sequence[DataFile], batch: int
    ) -> pa.Table:
        self.query.view(duck, silver, sources, batch, "fresh")
        return super().finish(duck, old, silver, sources, batch)

    def _new(self, counted: str) -> str:
        return f"select distinct {self.grain} from ({counted})"

    def _merged(self) -> str:
        """Return the query of `old` with the rows of the grains in `new` replaced by those of `fresh`.

        A grain's new rows have the first batch of its old ones, and one revision more than any of them.
        """
        grain, columns = self.grain, self.target.grain_columns
        before = f"select {grain}, min(_first_batch) as _first, max(_revision) as _revisions from old group by {grain}"
        named = _list(f"fresh.{sql_identifier(name)}" for name in self.query.schema.fieldNames())
        history = (
            f"coalesce(_first, {BATCH}) as _first_batch, {BATCH}::bigint as _last_batch,"
            " coalesce(_revisions, 0) + 1 as _revision"
        )
        kept = f"select * from old anti join new on {same_sql(columns, 'old', 'new')}"
        joined = f"fresh left join ({before}) as before on {same_sql(columns, 'fresh', 'before')}"
        return f"{kept} union all by name select {named}, {history} from {joined}"


MERGES: dict[type[Gold], Callable[[GoldTable, EmbeddedPlan], EmbeddedMerge]] = {
    AdditiveGold: AdditiveMerge,
    LatestGold: LatestMerge,
    LastGold: LastMerge,
}


def _values(measures: Iterable[GoldMeasure]) -> str:
    return "".join(f", {each.value_sql()} as {each.quoted}" for each in measures)


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def merge(tables: LocalTables, commit: GoldCommit, rows: RunRows) -> None:
    """Merge a run's rows into one table and commit it.

    Raises NeedsSpark when its old rows are too many or too large, or a value does not fit its
    type: Spark fails on it as well, and names the cause.
    """
    gold = commit.target.gold
    try:
        old, added, changed = _merged(tables.merges[gold.name], commit, rows.get(gold.over))
    except (SlotFull, duckdb.OutOfMemoryException) as error:
        raise NeedsSpark("its rows are too many for memory") from error
    except (duckdb.DataError, pa.ArrowInvalid) as error:
        raise NeedsSpark("a value does not fit its type") from error
    commit.of_files(added, old, changed)


def _merged(planned: EmbeddedMerge, commit: GoldCommit, fresh: pa.Table) -> tuple[list[DataFile], list[DataFile], int]:
    """Return the files replaced, those in their place, and how many rows changed."""
    target, silver, batch = commit.target, commit.writer.silver, commit.batch
    with planned.session(len(fresh)) as duck:
        grains = planned.begin(duck, fresh)
        if not grains.spans and grains.spans is not None:
            return [], [], 0
        sources = planned.sources(silver, grains)
        old = [] if target.gold.only_adds else target.touched_files(grains)
        if rows_of(old) + len(fresh) > MOST_ROWS or rows_of(sources) > MOST_SOURCE_ROWS:
            raise NeedsSpark("it has too many rows to merge at once")
        merged = planned.finish(duck, old, silver, sources, batch)
    changed = int(pc.sum(pc.equal(merged["_last_batch"], batch)).as_py() or 0)
    return old, target.write_rows(merged, target.table.attempt_folder(commit.folder), old, changed, batch), changed


MOST_SOURCE_ROWS = 4 * MOST_ROWS
"""Rows of silver that DuckDB reads for a query; it keeps the columns that the query reads, of the affected grains."""
