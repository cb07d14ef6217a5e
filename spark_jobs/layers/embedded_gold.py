"""Gold merged in the driver by DuckDB: a run of a few thousand rows needs no Spark job (adr-0012).

Reads: a run's rows in memory (`gold_inputs.py`), the gold files that may hold their grains.
Returns: the rows that replace those of the files, in the order of the grains.
Does not: evaluate an expression of the dataset, or decide which files are replaced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, cached_property

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from include.declare.gold import AdditiveGold, Gold, LatestGold, QueryGold
from include.declare.windows import windowed_sql
from include.ground.sql_quoting import sql_identifier, sql_literal
from spark_jobs.layers.distinct_sketches import extended_sketch
from spark_jobs.layers.embedded_plan import EmbeddedPlan, replaced_grains_sql, same_grain
from spark_jobs.layers.gold_files import MOST_GRAINS, GoldTable, Grain, Grains, silver_within
from spark_jobs.layers.gold_inputs import names_in_sql
from spark_jobs.layers.gold_measures import GoldMeasure, gold_measures
from spark_jobs.layers.row_provenance import PROVENANCE
from spark_jobs.tables.data_files import HIVE_NULL, DataFile
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.duckdb_session import DuckSession, duckdb_session, session_for

HISTORY = (
    "min(_first_batch) as _first_batch",
    "max(_last_batch) as _last_batch",
    "sum(_revision)::bigint as _revision",
)


@dataclass(frozen=True)
class EmbeddedMerge(ABC):
    """The merge of one run into one table, in one DuckDB session."""

    duck: DuckSession
    target: GoldTable
    plan: EmbeddedPlan
    silver: Table
    batch: int

    @staticmethod
    def session(rows: int) -> AbstractContextManager[DuckSession]:
        """Open a session for the merge of so many rows."""
        return session_for(rows)

    def begin(self, rows: pa.Table) -> Grains:
        """Compute the partial result of a run's rows; return its grains."""
        self.duck.view_arrow("run_rows", rows)
        where = f" where {sql_identifier(self.plan.where)}" if self.plan.where else ""
        counted = windowed_sql(self.gold.window, f"(select * from run_rows{where})")
        self.duck.create_table("new", self._new(counted))
        return self._grains()

    def sources(self, grains: Grains) -> list[DataFile]:
        """Return silver's files of which the merge reads rows of these grains."""
        return []

    def finish(self, old: Sequence[DataFile], sources: Sequence[DataFile]) -> pa.Table:
        """Return the rows of `old` merged with the run's, partition included, sorted by partition and grain."""
        self._view_old(old)
        schema = to_arrow_schema(self.target.table.spec.schema, timezone="UTC")
        return self._typed(self._merged(sources), schema, []).cast(schema)

    @property
    def gold(self) -> Gold:
        """The table's declaration."""
        return self.target.gold

    @abstractmethod
    def _new(self, counted: str) -> str:
        """Return the query of the table `new` over the rows that count."""

    @abstractmethod
    def _merged(self, sources: Sequence[DataFile]) -> str:
        """Return the query of the rows that replace those of `old`."""

    def _grains(self) -> Grains:
        column, *_ = names = self.gold.grain_columns
        count, nulls, low, high = self.duck.rows(
            f'select count(*), count(*) - count("{column}"), min("{column}"), max("{column}") from new'
        )[0]
        spans = None if nulls else [(low, high)] if count else []

        def exact() -> set[Grain] | None:
            if count > MOST_GRAINS:
                return None
            return set(self.duck.rows(f"select distinct {names_in_sql(names)} from new"))

        return Grains(column, spans, exact)

    def _typed(self, sql: str, schema: pa.Schema, others: Sequence[str]) -> pa.Table:
        """Return the rows of a query in the table's types, sorted; an error when a value does not fit."""
        types = _sql_types(schema)
        typed = [f"cast({sql_identifier(name)} as {types[name]}) as {sql_identifier(name)}" for name in schema.names]
        order = [self.target.table.spec.partition, *self.gold.grain_columns]
        sorted_by = _list(f"{sql_identifier(name)} nulls first" for name in order)
        return self.duck.arrow(f"select {_list([*typed, *others])} from ({sql}) order by {sorted_by}")

    def _view_old(self, old: Sequence[DataFile]) -> None:
        """Create a view of the old rows with their partition."""
        spec = self.target.table.spec
        parts = {file.partition_text for file in old}
        selected = []
        for number, part in enumerate(sorted(parts)):
            files = [file for file in old if file.partition_text == part]
            self.duck.view_table(f"old_{number}", self.target.table, files)
            named = "null::varchar" if part == HIVE_NULL else sql_literal(part)
            selected.append(f'select *, {named} as "{spec.partition}" from old_{number}')
        if not selected:
            self.duck.view_table("old_0", self.target.table, [])
            selected = [f'select *, null::varchar as "{spec.partition}" from old_0']
        self.duck.view_query("old", " union all ".join(selected))

    def _partition(self, aggregate: str = "{}") -> str:
        """Return SQL for the partition of rows of silver, or of a group of them."""
        name = self.target.table.spec.partition
        if self.plan.partition:
            return f'{aggregate.format(sql_identifier(self.plan.partition))}::varchar as "{name}"'
        assert self.gold.window is not None
        month = f"strftime({sql_identifier(self.gold.window.name)}, '%Y-%m')"
        return f'{aggregate.format(month)} as "{name}"'

    def _provenance(self, revision: int) -> str:
        number = f"{self.batch}::bigint"
        return f"*, {number} as _first_batch, {number} as _last_batch, {revision}::bigint as _revision"


class AdditiveMerge(EmbeddedMerge):
    """States of measures, added up."""

    @cached_property
    def _measures(self) -> list[GoldMeasure]:
        return gold_measures(self.gold.measures)

    def finish(self, old: Sequence[DataFile], sources: Sequence[DataFile]) -> pa.Table:
        """Return the merged rows; distinct counts are merged in this process."""
        sketched = [each for each in self._measures if each.new_values]
        if not sketched:
            return super().finish(old, sources)
        self._view_old(old)
        schema = to_arrow_schema(self.target.table.spec.schema, timezone="UTC")
        merged = self._typed(self._merged(sources), schema, [each.new_values for each in sketched])
        for measure in sketched:
            merged = _with_sketches(merged, measure.name, measure.kept[0], measure.new_values)
        return merged.select(schema.names).cast(schema)

    def _new(self, counted: str) -> str:
        values, orders = self.plan.values, self.plan.orders
        states = [part for each in self._measures for part in each.new_sql(values[each.name], orders[each.name])]
        grain = names_in_sql(self.gold.grain_columns)
        selected = _list([grain, *states, self._partition("any_value({})")])
        return f"select {selected} from ({counted}) group by {grain}"

    def _merged(self, sources: Sequence[DataFile]) -> str:
        gold = self.gold
        grain, month = names_in_sql(gold.grain_columns), sql_identifier(self.target.table.spec.partition)
        old = _list([grain, *(name for each in self._measures for name in each.state_columns), *PROVENANCE, month])
        same, new = same_grain(gold, "old", "new"), self._provenance(1)
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

    def _merged(self, sources: Sequence[DataFile]) -> str:
        """Return the query of the newest row per key; each row of silver is of revision 0, as Spark has it."""
        gold = self.gold
        of_key, new = same_grain(gold, "old", "new"), self._provenance(0)
        both = f"select * from old semi join new on {of_key} union all by name select {new} from new"
        chosen = (
            "* exclude (_first_batch, _last_batch, _revision)",
            "min(_first_batch) over same as _first_batch",
            "max(_last_batch) over same as _last_batch",
            "max(_revision) over same + max(if(_revision = 0, 1, 0)) over same as _revision",
        )
        same = f"partition by {names_in_sql(gold.keys)}"
        by = _list(f"{sql_identifier(name)} desc nulls last" for _, name in gold.deciding_columns)
        place = f"row_number() over ({same} order by {by})"
        newest = f"select {_list(chosen)} from ({both}) window same as ({same}) qualify {place} = 1"
        return f"{newest} union all by name select * from old anti join new on {of_key}"


class QueryMerge(EmbeddedMerge):
    """Grains recomputed by Spark from silver's rows, however few are new."""

    @staticmethod
    def session(rows: int) -> AbstractContextManager[DuckSession]:
        """Open a session for all rows of the grains."""
        return duckdb_session()

    def sources(self, grains: Grains) -> list[DataFile]:
        """Return silver's files that may have rows of the grains."""
        return silver_within(self.gold, self.silver, grains.spans)

    def _new(self, counted: str) -> str:
        return f"select distinct {names_in_sql(self.gold.grain_columns)} from ({counted})"

    def _merged(self, sources: Sequence[DataFile]) -> str:
        query = self.plan.query
        assert query is not None
        query.view(self.duck, self.silver, sources, self.batch, "fresh")
        return replaced_grains_sql(self.gold, query.schema.fieldNames(), self.batch)


MERGES: dict[type[Gold], type[EmbeddedMerge]] = {
    AdditiveGold: AdditiveMerge,
    LatestGold: LatestMerge,
    QueryGold: QueryMerge,
}


@cache
def _sql_types(schema: pa.Schema) -> dict[str, str]:
    """Return the type of each column in DuckDB's SQL."""
    with session_for(0) as duck:
        duck.view_arrow("typed", schema.empty_table())
        return dict(duck.column_types("typed"))


def _values(measures: Iterable[GoldMeasure]) -> str:
    """Return the values of measures as the end of a list of columns."""
    return "".join(f", {each.value_sql()} as {each.quoted}" for each in measures)


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _with_sketches(rows: pa.Table, name: str, kept: str, new: str) -> pa.Table:
    """Return the rows with the new values of a distinct count added to its sketches."""
    columns = [rows[each].to_pylist() for each in (kept, new.strip('"'), name)]
    pairs = [
        (sketch, estimate) if values is None else extended_sketch(sketch, values)
        for sketch, values, estimate in zip(*columns, strict=True)
    ]
    made = {
        kept: pa.array([each for each, _ in pairs], pa.binary()),
        name: pa.array([each for _, each in pairs], pa.int64()),
    }
    for column, values in made.items():
        rows = rows.set_column(rows.schema.get_field_index(column), column, values)
    return rows
