"""Rebuild of a range of a derived gold table from its sources, for a backfill.

Reads: the published rows, and the sources at the versions that the publication names.
Writes: rows before and after, and the grains to correct, into the plan's folder (`PlanFolder`).
Guarantee: after is what the table's query gives; rows that differ in the last digits of a double stay as they are.
After a crash: repeated from the start; production was not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.catalog.comparable_doubles import rounded_sql
from include.catalog.derived_dataset import DerivedGold
from include.catalog.grain_range import GrainRange
from include.catalog.touched_ranges import Shift
from include.sql_quoting import sql_identifier
from spark_jobs.engine.rebuild_gold import DIFFERING, same_grain, visible
from spark_jobs.engine.rebuild_slice import PlanFolder
from spark_jobs.layers.derived_gold import Sources, query_over
from spark_jobs.layers.derived_sources import SourceTable, known_shifts
from spark_jobs.storage.duckdb_session import DuckSession, duckdb_session, rows_in_folder, write_folder


@dataclass(frozen=True)
class DerivedSlice:
    """A derived gold table as published, and which of its grains are computed again; all without a range."""

    gold: DerivedGold
    published: SourceTable
    inside: GrainRange | None
    folder: PlanFolder

    @property
    def schema(self) -> StructType:
        """The columns for readers."""
        return visible(self.published.schema)

    def rows(self, state: str) -> Path:
        """Return the folder of the rows before or after, or of the grains to correct."""
        return self.folder.rows(state, f"gold.{self.gold.name}")

    @property
    def spans(self) -> Mapping[str, tuple[Any, Any]]:
        """The range as bounds of the grain's column."""
        return {self.inside.column: (self.inside.low, self.inside.high)} if self.inside else {}

    def chosen(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the grains in the range, with the columns for readers."""
        if self.inside is not None:
            column = F.col(self.inside.column)
            rows = rows.where((column >= F.lit(self.inside.low)) & (column < F.lit(self.inside.high)))
        return rows.select(*self.schema.fieldNames())


def rebuild_derived(spark: SparkSession, slice_: DerivedSlice, sources: Sources) -> int:
    """Write the range's rows as published and as its query gives them; return how many grains differ."""
    own, gold, fresh = spark.newSession(), slice_.gold, slice_.folder.staging(f"gold.{slice_.gold.name}")
    identity = {name: Shift(name) for name in slice_.spans}
    write_folder(slice_.chosen(slice_.published.rows_near(own, identity, slice_.spans)), slice_.rows("before"))
    shifts = {name: known_shifts(gold.touched_by[name]) for name in sources}
    near = {name: source.rows_near(own, shifts[name], slice_.spans) for name, source in sources.items()}
    write_folder(slice_.chosen(query_over(own, gold.query, near)), fresh)
    with duckdb_session() as duck:
        duck.view_folder("published", slice_.rows("before"), slice_.schema)
        duck.view_folder("fresh", fresh, slice_.schema)
        _save_differences(duck, slice_)
    return rows_in_folder(slice_.rows("grains"))


def _save_differences(duck: DuckSession, slice_: DerivedSlice) -> None:
    """Write the grains whose rows differ, and the rows after: the fresh ones of these grains."""
    grain = slice_.gold.grain
    duck.save(differing_grains(duck, grain, "published", "fresh"), slice_.rows("grains"))
    duck.view_folder("differing", slice_.rows("grains"), StructType([slice_.schema[name] for name in grain]))
    kept = f"select * from published anti join differing on {same_grain(grain, 'published', 'differing')}"
    changed = f"select * from fresh semi join differing on {same_grain(grain, 'fresh', 'differing')}"
    duck.save(f"{kept} union all {changed}", slice_.rows("after"))


def differing_grains(duck: DuckSession, grain: tuple[str, ...], one: str, other: str) -> str:
    """Return the query of the grains whose rows differ between two views, doubles by their first digits."""
    for view, name in ((one, "before"), (other, "after")):
        columns = [
            f"{rounded_sql(column)} as {sql_identifier(column)}"
            if kind in ("DOUBLE", "FLOAT") and column not in grain
            else sql_identifier(column)
            for column, kind in duck.column_types(view)
        ]
        duck.view_query(name, f"select {', '.join(columns)} from {sql_identifier(view)}")
    return DIFFERING.format(columns=", ".join(map(sql_identifier, grain)))
