"""A derived gold table, or a range of it, rebuilt from its sources for a backfill and the audit; runs and patches.

A rebuild writes rows before and after, and the grains to correct, into the plan's folder (`PlanFolder`). Rows after are
what the table's query gives over the published versions of the sources; rows that differ in the last digits of a double
stay as they are (`row_differences.py`). The tables' owner commits runs and patches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.derived_dataset import DerivedDataset, DerivedGold
from include.declare.grain_range import GrainRange, Shift
from include.ground.app_ids import plan_app_id
from include.ground.settings import Settings
from include.ground.sql_quoting import same_sql, sql_names
from include.read.publication import Publication
from include.state.release_files import PatchDirection, PatchInProgress
from spark_jobs.backends.backend import Backend, Metadata, Transaction
from spark_jobs.backends.local.arrow_files import rows_in_folder
from spark_jobs.backends.local.duckdb_session import DuckSession, duckdb_session
from spark_jobs.contract.literals import literal
from spark_jobs.history.apply_patch import PatchOutdated
from spark_jobs.history.rebuild_gold import visible
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.history.row_differences import find_differing_rows
from spark_jobs.layers.derived import (
    DerivedInput,
    DerivedTable,
    Sources,
    SourcesGone,
    SourceTable,
    grains_replaced_by,
    known_shifts,
    open_sources,
    query_over,
    rows_of_grains,
)
from spark_jobs.layers.gold_layer import failure_named
from spark_jobs.layers.row_provenance import ReplacedGrains, rows_in_grains
from spark_jobs.tables.data_files import parquet_files, read_folder, write_folder
from spark_jobs.tables.failpoints import Step, pass_step


@dataclass(frozen=True)
class DerivedSlice:
    """A derived gold table as published, and which of its grains are recomputed; all without a range."""

    gold: DerivedGold
    published: SourceTable
    inside: GrainRange | None
    folder: PlanFolder

    @property
    def schema(self) -> StructType:
        return visible(self.published.schema)

    def rows(self, state: str) -> Path:
        """Return the folder of the rows before or after, or of the grains to correct."""
        return self.folder.rows(state, f"gold.{self.gold.name}")

    @property
    def spans(self) -> Mapping[str, tuple[Any, Any]]:
        return {self.inside.column: (self.inside.low, self.inside.high)} if self.inside else {}

    def chosen(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the grains in the range, with the columns for readers."""
        if self.inside is not None:
            column = F.col(self.inside.column)
            rows = rows.where((column >= literal(self.inside.low)) & (column < literal(self.inside.high)))
        return rows.select(*self.schema.fieldNames())


def published_sources(settings: Settings, derived: DerivedDataset, published: Publication) -> Sources:
    """Open the sources at the versions that the publication names. Raises SourcesGone, PublishedVersionGone."""
    sources = open_sources(settings, derived.pipeline.sources, published.sources)
    if not all(source.is_whole for source in sources.values()):
        raise SourcesGone(derived.name)
    return sources


@contextmanager
def computed_again(spark: SparkSession, slice_: DerivedSlice, sources: Sources) -> Iterator[DuckSession]:
    """Yield a session with the rows as `published` and as the query gives them, `fresh`, and the table `differing`."""
    own, gold, fresh = spark.newSession(), slice_.gold, slice_.folder.staging(f"gold.{slice_.gold.name}")
    identity = {name: Shift(name) for name in slice_.spans}
    write_folder(slice_.chosen(slice_.published.rows_near(own, identity, slice_.spans)), slice_.rows("before"))
    shifts = {name: known_shifts(gold.touched_by[name]) for name in sources}
    near = {name: source.rows_near(own, shifts[name], slice_.spans) for name, source in sources.items()}
    write_folder(slice_.chosen(query_over(own, gold.query, near)), fresh)
    with duckdb_session() as duck:
        duck.view_folder("published", slice_.rows("before"), slice_.schema)
        duck.view_folder("fresh", fresh, slice_.schema)
        find_differing_rows(duck, "published", "fresh", gold.grain)
        yield duck


def rebuild_derived(spark: SparkSession, slice_: DerivedSlice, sources: Sources) -> int:
    """Write the range's rows before and after, and the grains to correct; return how many grains differ."""
    grain = slice_.gold.grain
    with computed_again(spark, slice_, sources) as duck:
        duck.save(f"select distinct {sql_names(grain)} from differing", slice_.rows("grains"))
        kept = f"select * from published anti join differing on {same_sql(grain, 'published', 'differing')}"
        changed = f"select * from fresh semi join differing on {same_sql(grain, 'fresh', 'differing')}"
        duck.save(f"{kept} union all {changed}", slice_.rows("after"))
    return rows_in_folder(slice_.rows("grains"))


def examine_derived(spark: SparkSession, slice_: DerivedSlice, sources: Sources) -> dict[str, Any]:
    """Return `rows` published, `grains`, rows `missing` and `surplus`, and the grain of one of these as `sample`."""
    grain = slice_.gold.grain
    with computed_again(spark, slice_, sources) as duck:
        sample = duck.rows(f"select {sql_names(grain)} from differing order by all limit 1")
        return {
            "rows": duck.count("select 1 from published"),
            "grains": duck.count(f"select distinct {sql_names(grain)} from published"),
            "missing": duck.count("select 1 from differing where _in_other"),
            "surplus": duck.count("select 1 from differing where _in_one"),
            "sample": ", ".join(f"{name}={value}" for name, value in zip(grain, *sample, strict=True))
            if sample
            else "",
        }


def commit_run(table: DerivedTable, run: DerivedInput, backend: Backend, facts: Metadata, staging: Path) -> None:
    """Commit a run to a table, once; `facts` go into the commit. Raises OwnershipLost, GoldFailed."""
    target, transaction = table.target, Transaction(table.target.app_id, run.number)
    if target.table.committed(target.app_id) >= run.number:
        return
    with failure_named(facts["dataset"], target.table):
        replaced = grains_replaced_by(table, run, staging)
        commit_grains(backend, table, replaced, staging, transaction, facts)
    pass_step(Step.GOLD_COMMITTED, run.number)


def commit_grains(
    backend: Backend,
    table: DerivedTable,
    replaced: ReplacedGrains | None,
    place: Path,
    transaction: Transaction,
    facts: Metadata,
) -> None:
    """Commit the grains in the folder `place` as replaced; with None only the transaction. Raises OwnershipLost."""
    target, name = table.target, table.target.table.spec.name
    stated = {**facts, "table": name, "app_id": transaction.app_id, "grains": rows_in_folder(place)}
    if replaced is not None:
        backend.replace_grains(target, replaced, transaction, stated)
    else:
        stated |= {"rows": 0, "total": target.table.rows}
        target.table.commit(*transaction, stated, [])


@dataclass(frozen=True)
class DerivedPatch:
    """A plan's patch of a derived release at its run `number`, applied or reverted.

    `facts` go into each commit, which is idempotent by the plan's app id.
    """

    backend: Backend
    recorded: PatchInProgress
    folder: PlanFolder
    tables: Sequence[DerivedTable]
    number: int
    facts: Mapping[str, Any]

    @property
    def app_id(self) -> str:
        return plan_app_id(self.facts["dataset"], self.facts["release"], self.recorded.plan)

    @property
    def states(self) -> tuple[str, str]:
        """The state that it takes away, and the one that it puts in place."""
        is_applied = self.recorded.direction is PatchDirection.APPLY
        return ("before", "after") if is_applied else ("after", "before")

    def refuse_outdated(self, published: Callable[[], DerivedInput]) -> None:
        """Raise PatchOutdated unless the tables have the rows to take away, and a run would compute the others."""
        for table in self.tables:
            self._refuse_outdated(table, published)

    def commit(self) -> None:
        for table in self.tables:
            self._commit(table)
            pass_step(Step.PATCH_GOLD_COMMITTED, self.number)

    def _rows(self, table: DerivedTable, state: str) -> Path:
        """Return the folder of a table's rows in a state, or of its grains to correct."""
        return self.folder.rows(state, table.target.table.spec.name)

    def _refuse_outdated(self, table: DerivedTable, published: Callable[[], DerivedInput]) -> None:
        place, name = self._rows(table, "grains"), table.target.table.spec.name
        if not rows_in_folder(place):
            return
        old = table.target.files_with(parquet_files(place))
        taken, put = self.states
        if self._differ(table, taken, lambda duck: duck.view_table("found", table.target.table, old)):
            raise PatchOutdated(name, self.recorded.plan, "rows have changed")
        if self.recorded.direction is PatchDirection.REVERT:
            return
        schema, again = visible(table.target.table.spec.data_schema), self.folder.staging(name)
        with failure_named(self.facts["dataset"], table.target.table):
            rows = rows_of_grains(table, published(), place)
            write_folder(rows.select(*schema.fieldNames()), again)
        if self._differ(table, put, lambda duck: duck.view_folder("found", again, schema)):
            raise PatchOutdated(name, self.recorded.plan, "rows of its sources have changed")

    def _differ(self, table: DerivedTable, state: str, view: Callable[[DuckSession], None]) -> bool:
        """Return whether the patch's grains have other rows in a state than in the view `found`; `view` creates it."""
        schema, grain = visible(table.target.table.spec.data_schema), table.grain
        with duckdb_session() as duck:
            duck.view_folder("patched", self._rows(table, "grains"), table.grains_schema)
            duck.view_folder("stored", self._rows(table, state), schema)
            view(duck)
            for one in ("found", "stored"):
                rows = f"{one} semi join patched on {same_sql(grain, one, 'patched')}"
                duck.view_query(f"{one}_rows", f"select {sql_names(schema.fieldNames())} from {rows}")
            find_differing_rows(duck, "found_rows", "stored_rows", grain)
            return bool(duck.count("select 1 from differing"))

    def _commit(self, table: DerivedTable) -> None:
        """Commit to one table; one without any of the rows gets a commit too, so that all tables confirm it."""
        recorded, place = self.recorded, self._rows(table, "grains")
        if table.target.table.committed(self.app_id) >= recorded.direction:
            return
        facts = {**self.facts, "batch": self.number, "plan": recorded.plan, "direction": recorded.direction}
        replaced = table.replaced(place, self._put(table), self.number) if rows_in_folder(place) else None
        commit_grains(self.backend, table, replaced, place, Transaction(self.app_id, recorded.direction), facts)

    def _put(self, table: DerivedTable) -> DataFrame:
        """Return the rows that take the place of those of the patch's grains."""
        spark, schema = table.target.spark, visible(table.target.table.spec.data_schema)
        grains = read_folder(spark, self._rows(table, "grains"), table.grains_schema)
        return rows_in_grains(read_folder(spark, self._rows(table, self.states[1]), schema), grains, table.grain)
