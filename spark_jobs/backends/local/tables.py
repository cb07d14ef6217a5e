"""What this process knows of a release besides its tables: the index of identities, prepared queries, gold's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.declare.children import Elements
from include.declare.dataset import Dataset
from include.ground.paths import identities_path
from include.ground.sql_quoting import sql_literal, sql_names
from spark_jobs.backends.local.duckdb_session import DuckSession
from spark_jobs.backends.local.gold import EmbeddedMerge, embedded_merge
from spark_jobs.backends.local.identities import IdentityLookup
from spark_jobs.backends.local.prepared_query import PreparedQuery, PreparedSilver, ScratchFolder, Slot
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_inputs import GoldInputs
from spark_jobs.layers.gold_rows import source_rows
from spark_jobs.layers.silver_tables import REFUSED_AS, Month, SilverTables
from spark_jobs.tables.data_files import no_rows


def rejected_rows_sql(dataset: Dataset) -> str:
    """Return SQL for the records that break the contract, and those whose identity an earlier record has."""
    identity, version = sql_literal(", ".join(dataset.pipeline.identity)), sql_literal(dataset.contract.version)
    duplicate = f"[{{'rule': 'duplicate', 'column': {identity}, 'detail': _winner}}]"
    month = Month("_timestamp", is_arrival=True).in_duckdb
    rows = (("invalid", REFUSED_AS.format(first="_reasons[1]"), "_reasons"), ("duplicates", "'duplicate'", duplicate))
    return " union all ".join(REJECTED_ROWS.format(*each, version, month) for each in rows)


REJECTED_ROWS = """
select
    _topic, _partition, _offset, _batch_id,
    {1} as disposition,
    {2} as reasons,
    {3} as contract_version,
    _timestamp as first_seen,
    {4} as _month
from {0}
"""


@dataclass(frozen=True)
class ChildInputs:
    """The inputs of merges over children: DuckDB makes rows of a run's elements, Spark evaluates expressions over them.

    `source`: the columns of these rows. `scratch` is for those of a run.
    """

    spark: SparkSession
    over: Elements
    source: StructType
    inputs: GoldInputs
    scratch: ScratchFolder

    def of_run(self, duck: DuckSession, silver: str, columns: Sequence[str]) -> pa.Table:
        """Return the inputs of the elements in a view of silver. Raises SlotFull, and what an expression raises."""
        rows = self.over.sql(silver, columns)
        if not self.inputs.inputs:
            return duck.arrow(f"select {sql_names(self.inputs.names)} from {rows}")
        read = sorted(self._query.scanned_columns or self._slot.names)
        self._slot.fill(duck.arrow(f"select {sql_names(read)} from {rows}"))
        return self._query.result()

    @cached_property
    def _slot(self) -> Slot:
        return Slot(self.spark, self.scratch.path / "children" / self.over.name, self.source, tasks=1)

    @cached_property
    def _query(self) -> PreparedQuery:
        return PreparedQuery(self.inputs.merge_rows(self._slot.rows))


@dataclass(frozen=True, kw_only=True)
class LocalTables(SilverTables):
    """The tables of a release, with what finds and fills their rows in this process.

    `inputs`: of gold's merges; `child_inputs`: of merges over children. `merges`: by name of a gold table, how DuckDB
    merges it; it has none that Spark merges.
    """

    identities: IdentityLookup
    inputs: GoldInputs
    child_inputs: Mapping[Elements, ChildInputs]
    merges: Mapping[str, EmbeddedMerge]

    @cached_property
    def input_names(self) -> Sequence[str]:
        return self.inputs.names

    @cached_property
    def rejected_rows(self) -> str:
        """SQL for the rows of rejected of the views `invalid` and `duplicates`."""
        return rejected_rows_sql(self.dataset)

    @cached_property
    def prepared(self) -> PreparedSilver:
        """The queries of this process, built when they are first executed."""
        return PreparedSilver(self.spark, self.queries_folder)


def local_tables(writer: SilverTables, gold: Sequence[GoldTable]) -> LocalTables:
    """Return the tables of a release for this process; the merges of its gold tables are planned."""
    dataset, silver, scratch = writer.dataset, writer.silver, ScratchFolder(writer.queries_folder)
    folder = identities_path(writer.decisions.settings, dataset.name, dataset.release)
    nothing = no_rows(writer.spark, silver.spec.data_schema)
    sources = {over: source_rows(over, nothing).schema for over in {target.gold.over for target in gold} | {None}}
    inputs = {over: GoldInputs(tuple(source.fieldNames())) for over, source in sources.items()}
    merges = {
        target.gold.name: merge
        for target in gold
        if (merge := embedded_merge(target, sources[over := target.gold.over], inputs[over], scratch)) is not None
    }
    return LocalTables(
        **{each.name: getattr(writer, each.name) for each in fields(writer)},
        identities=IdentityLookup(dataset, silver, folder, owns=writer.is_owned),
        inputs=inputs[None],
        child_inputs={
            over: ChildInputs(writer.spark, over, sources[over], found, scratch)
            for over, found in inputs.items()
            if over is not None
        },
        merges=merges,
    )
