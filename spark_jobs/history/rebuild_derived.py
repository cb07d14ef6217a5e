"""Rebuild of a derived gold table, or of a range of it, from its sources, for a backfill and for the audit.

Reads: the published rows, and the sources at the versions that the publication names.
Writes: rows before and after, and the grains to correct, into the plan's folder (`PlanFolder`).
Guarantee: after is what the table's query gives; rows that differ in the last digits of a double stay as they are
(`row_differences.py`).
After a crash: repeated from the start; production was not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.derived_dataset import DerivedDataset, DerivedGold
from include.declare.grain_range import GrainRange, Shift
from include.ground.settings import Settings
from include.ground.sql_quoting import same_sql, sql_identifier
from include.read.publication import Publication
from spark_jobs.backends.local.arrow_files import rows_in_folder
from spark_jobs.backends.local.duckdb_session import DuckSession, duckdb_session
from spark_jobs.contract.literals import literal
from spark_jobs.history.rebuild_gold import visible
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.history.row_differences import find_differing_rows
from spark_jobs.layers.derived import Sources, SourcesGone, SourceTable, known_shifts, open_sources, query_over
from spark_jobs.tables.spark_files import write_folder


@dataclass(frozen=True)
class DerivedSlice:
    """A derived gold table as published, and which of its grains are recomputed; all without a range."""

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
        duck.save(f"select distinct {_names(grain)} from differing", slice_.rows("grains"))
        kept = f"select * from published anti join differing on {same_sql(grain, 'published', 'differing')}"
        changed = f"select * from fresh semi join differing on {same_sql(grain, 'fresh', 'differing')}"
        duck.save(f"{kept} union all {changed}", slice_.rows("after"))
    return rows_in_folder(slice_.rows("grains"))


def examine_derived(spark: SparkSession, slice_: DerivedSlice, sources: Sources) -> dict[str, Any]:
    """Return `rows` published, `grains`, rows `missing` and `surplus`, and the grain of one of these as `sample`."""
    grain = slice_.gold.grain
    with computed_again(spark, slice_, sources) as duck:
        sample = duck.rows(f"select {_names(grain)} from differing order by all limit 1")
        return {
            "rows": duck.count("select 1 from published"),
            "grains": duck.count(f"select distinct {_names(grain)} from published"),
            "missing": duck.count("select 1 from differing where _in_other"),
            "surplus": duck.count("select 1 from differing where _in_one"),
            "sample": ", ".join(f"{name}={value}" for name, value in zip(grain, *sample, strict=True))
            if sample
            else "",
        }


def _names(grain: tuple[str, ...]) -> str:
    return ", ".join(map(sql_identifier, grain))
