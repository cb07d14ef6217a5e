"""The gold of a derived dataset: the grains that changed sources touch, recomputed.

The sources are published tables of other datasets at pinned versions, and what changed in them. After a run a table is
what its query gives over the sources of that run. After a crash the same run computes the same rows from the same
versions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.dataset import DERIVED
from include.declare.derived_dataset import DerivedDataset, DerivedGold, as_query
from include.declare.yaml_declarations import DeclarationRefused, Document, Problem
from include.ground.app_ids import release_app_id
from include.ground.delta_log import FileChanges, add_actions, commit_content, file_changes
from include.ground.errors import Transient
from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.read.publication import PublishedTable, SourceVersion
from include.read.published_tables import open_table
from spark_jobs.layers.gold_files import GoldTable, column_spans
from spark_jobs.layers.gold_layer import gold_spec
from spark_jobs.layers.row_provenance import (
    PROVENANCE,
    ReplacedGrains,
    first_provenance,
    rows_in_grains,
    rows_of_other_grains,
    with_history,
)
from spark_jobs.layers.silver_tables import OpenTable
from spark_jobs.tables.data_files import no_rows, parquet_files, parquet_rows, read_files, read_folder, write_folder

if TYPE_CHECKING:
    from include.declare.grain_range import Shift

Shifts = Mapping[str, "Shift"]
"""By column of the grain, how its expression of `touched_by` shifts a column of the source; those that are known."""
Spans = Mapping[str, tuple[Any, Any]]
"""The least and the greatest value of grain columns."""


class SourcesGone(Transient):
    """Files of the source versions that the publication names were deleted."""

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"{dataset}: a source's version that the publication names was deleted; nothing was built",
            f"headrace up {dataset}   (publishes over the sources' current versions), then the same command again",
        )
        self.dataset = dataset


@dataclass(frozen=True)
class SourceTable:
    """A source at its pinned version: its columns without those that partition it, and its files with bounds."""

    table: PublishedTable
    schema: StructType
    files: Sequence[Mapping[str, Any]]

    def rows(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """Return the rows of some of its files, by path in the table."""
        return read_files(spark, self.schema, [self.table.path / path for path in paths])

    def all_rows(self, spark: SparkSession) -> DataFrame:
        return self.rows(spark, [file["path"] for file in self.files])

    @property
    def is_whole(self) -> bool:
        return all((self.table.path / file["path"]).exists() for file in self.files)

    def rows_near(self, spark: SparkSession, shifts: Shifts, grains: Spans) -> DataFrame:
        """Return at least all rows that touch grains within these spans, without files whose bounds exclude them."""
        bounds = list(_source_bounds(shifts, grains))
        return self.rows(spark, [file["path"] for file in self.files if _overlaps(file, bounds)])


def open_source(table: PublishedTable) -> SourceTable:
    """Open a published table at its version; raises PublishedVersionGone."""
    delta = open_table(table)
    partitions = delta.metadata().partition_columns
    declared = StructType.fromJson(json.loads(delta.schema().to_json()))
    schema = StructType([field for field in declared.fields if field.name not in partitions])
    files = add_actions(delta).to_pylist()
    return SourceTable(table, schema, [{**file, "path": unquote(file["path"])} for file in files])


def open_sources(
    settings: Settings, names: Mapping[str, str], versions: Mapping[str, SourceVersion]
) -> dict[str, SourceTable]:
    """Return sources by their name in queries, at versions by full name. Raises PublishedVersionGone."""
    root, used = warehouse(settings), {name: (table, versions[table]) for name, table in names.items()}
    return {
        name: open_source(PublishedTable(table, root / each.path, each.version, "", each.release, each.batch))
        for name, (table, each) in used.items()
    }


def source_version(table: PublishedTable, root: Path) -> SourceVersion:
    """Return the version of a source as a publication names it; raises FileNotFoundError without its commit."""
    digest = hashlib.sha256(commit_content(table.path, table.version)).hexdigest()
    return SourceVersion(str(table.path.relative_to(root)), table.version, table.release, table.batch, digest)


def changes_since(root: Path, before: SourceVersion | None, now: SourceVersion) -> FileChanges | None:
    """Return the files with the rows by which two versions differ; None when that is not known.

    It is not known when a source has another release, was rolled back, or lost commits or files meanwhile.
    """
    table = root / now.path
    if before is None or before.path != now.path or before.version > now.version:
        return None
    try:
        if hashlib.sha256(commit_content(table, before.version)).hexdigest() != before.commit:
            return None
        files = file_changes(table, before.version, now.version, rows_only=True)
    except FileNotFoundError:
        return None
    return files if all((table / path).exists() for path in (*files.added, *files.removed)) else None


def changed_rows(spark: SparkSession, source: SourceTable, files: FileChanges) -> DataFrame:
    """Return the rows that only one of both versions has; what the platform notes about a gold row does not count."""
    added = source.rows(spark, files.added).drop(*PROVENANCE)
    if not files.removed:
        return added
    removed = source.rows(spark, files.removed).drop(*PROVENANCE)
    return added.exceptAll(removed).unionByName(removed.exceptAll(added))


def touched_by_rows(rows: DataFrame, touched_by: Mapping[str, str]) -> DataFrame:
    """Return the grains that rows of a source touch; an array touches each of its elements."""
    found = rows.select(*[F.expr(expression).alias(column) for column, expression in touched_by.items()])
    for column in [field.name for field in found.schema.fields if field.dataType.typeName() == "array"]:
        found = found.withColumn(column, F.explode(column))
    return found.distinct()


def known_shifts(touched_by: Mapping[str, str]) -> Shifts:
    """Return the shifts of the expressions that have one."""
    # sqlglot takes half a second to import: only drivers of derived datasets need it.
    from include.declare.grain_range import shift_of

    found = {column: shift_of(expression) for column, expression in touched_by.items()}
    return {column: shift for column, shift in found.items() if shift is not None}


def _source_bounds(shifts: Shifts, grains: Spans) -> Iterator[tuple[str, Any, Any]]:
    """Yield columns of the source with a range outside of which no row touches the grains."""
    for column, shift in shifts.items():
        found = shift.source_range(*grains[column]) if column in grains else None
        if found is not None:
            yield shift.column, *found


def _overlaps(file: Mapping[str, Any], bounds: Sequence[tuple[str, Any, Any]]) -> bool:
    return all(_may_have(file.get(f"min.{column}"), file.get(f"max.{column}"), *span) for column, *span in bounds)


def _may_have(low: Any, high: Any, least: Any, greatest: Any) -> bool:
    if low is None or high is None:
        return True
    if isinstance(least, datetime) and isinstance(low, date) and not isinstance(low, datetime):
        least, greatest = least.date(), greatest.date()
    if type(low) is not type(least):
        return True
    return bool(low <= greatest and high >= least)


class QueryUnfit(DeclarationRefused):
    """A query of a release does not fit the columns that its sources have now; `problem` names the release's file."""

    def __init__(self, settings: Settings, derived: DerivedDataset, problem: Problem) -> None:
        sources = ", ".join(derived.pipeline.sources.values())
        super().__init__(
            [problem],
            f"release {derived.release} of {derived.name} does not fit the columns that {sources} have now; nothing"
            " was published, readers keep the last publication",
            f"headrace plan rollback PLAN   (of the source's release), or correct {settings.datasets / derived.name},"
            f" then: headrace release run --dataset {derived.name}",
        )


Sources = Mapping[str, SourceTable]
"""By the name that queries read them under."""
Changes = Mapping[str, FileChanges]


@dataclass(frozen=True)
class DerivedTable:
    """A gold table of a derived dataset, open; `shifts`: by source, how it excludes files."""

    declared: DerivedGold
    target: GoldTable
    shifts: Mapping[str, Shifts]

    @property
    def grain(self) -> tuple[str, ...]:
        return self.declared.grain

    @property
    def grains_schema(self) -> StructType:
        return StructType([self.target.table.spec.schema[name] for name in self.grain])

    def replaced(self, folder: Path, fresh: DataFrame, number: int) -> ReplacedGrains:
        """Return the rows of the grains in a folder's files, as run `number` replaces them by `fresh` ones."""
        spark, table = self.target.spark, self.target.table
        grains = read_folder(spark, folder, self.grains_schema)
        files = self.target.files_with(parquet_files(folder))
        old = table.read(spark, files)
        stale, others = rows_in_grains(old, grains, self.grain), rows_of_other_grains(old, grains, self.grain)
        return ReplacedGrains(with_history(self.grain, stale, fresh, number), stale, others, files, number)


@dataclass(frozen=True)
class DerivedInput:
    """What a run computes: its number, sources, and what changed in each since the run before.

    Without known changes (None) it computes everything; with none, only grains that are named otherwise.
    """

    number: int
    sources: Sources
    changes: Changes | None


def open_derived_table(
    spark: SparkSession,
    settings: Settings,
    derived: DerivedDataset,
    sources: Sources,
    open_table: OpenTable,
    gold: DerivedGold,
) -> DerivedTable:
    """Open or create a gold table; raises QueryUnfit when its query does not fit the sources' columns."""
    own = spark.newSession()
    rows = checked_rows(own, settings, derived, gold, sources)
    with_provenance = rows.select("*", *first_provenance(0, gold.grain[0]))
    spec = gold_spec(settings, derived, as_query(gold), with_provenance.schema)
    app_id = release_app_id(derived.name, derived.release, f"gold/{gold.name}")
    shifts = {name: known_shifts(touched_by) for name, touched_by in gold.touched_by.items()}
    return DerivedTable(gold, GoldTable(as_query(gold), open_table(spec, None), own, app_id), shifts)


def grains_replaced_by(table: DerivedTable, run: DerivedInput, staging: Path) -> ReplacedGrains | None:
    """Return the rows of the grains that a run touches, None when it touches none; `staging` gets the grains."""
    write_folder(_touched(table, run), staging)
    if not parquet_rows(parquet_files(staging)):
        return None
    return table.replaced(staging, rows_of_grains(table, run, staging), run.number)


def query_over(spark: SparkSession, query: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return a query's rows over frames by name, in a session with views of its own."""
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    return spark.sql(query)


def _touched(table: DerivedTable, run: DerivedInput) -> DataFrame:
    """Return the grains of all rows that changed; of all rows, and all that the table has, without known changes."""
    spark, touched_by, schema = table.target.spark, table.declared.touched_by, table.grains_schema
    found = [no_rows(spark, schema)]
    for name, source in run.sources.items():
        if run.changes is None:
            found.append(touched_by_rows(source.all_rows(spark), touched_by[name]))
        elif (files := run.changes[name]).added or files.removed:
            found.append(touched_by_rows(changed_rows(spark, source, files), touched_by[name]))
    if run.changes is None:
        found.append(table.target.table.read(spark, table.target.table.files()))
    columns = [F.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields]
    return reduce(DataFrame.unionByName, (each.select(*columns) for each in found)).distinct()


def rows_of_grains(table: DerivedTable, run: DerivedInput, folder: Path) -> DataFrame:
    """Return the rows of the grains in a folder's files, as the run's sources give them."""
    spark, grain = table.target.spark, table.grain
    grains = read_folder(spark, folder, table.grains_schema)
    spans = {} if run.changes is None else _spans(parquet_files(folder), grain)
    frames = {
        name: source.all_rows(spark)
        if run.changes is None
        else _near_grains(table, name, source.rows_near(spark, table.shifts[name], spans), grains)
        for name, source in run.sources.items()
    }
    return rows_in_grains(query_over(spark, table.declared.query, frames), grains, grain)


def _near_grains(table: DerivedTable, source: str, rows: DataFrame, grains: DataFrame) -> DataFrame:
    """Return at least those rows of a source that touch the grains; the grains of others are dropped afterwards."""
    touched_by = table.declared.touched_by[source]
    named = {f"_touched_{n}": column for n, column in enumerate(touched_by)}
    marked = rows.select("*", *[F.expr(touched_by[column]).alias(name) for name, column in named.items()])
    single = [name for name in named if marked.schema[name].dataType.typeName() != "array"]
    if not single:
        return rows
    wanted = grains.select(*[F.col(named[name]).alias(name) for name in single]).distinct()
    return rows_in_grains(marked, wanted, single).drop(*named)


def _spans(written: Sequence[Path], columns: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Return the least and the greatest value of the columns that have an order and no null, from the footers."""
    known = {name: column_spans(written, name) for name in columns}
    ordered = {name: spans for name, spans in known.items() if spans and isinstance(spans[0][0], int | str | date)}
    return {name: (min(low for low, _ in each), max(high for _, high in each)) for name, each in ordered.items()}


def checked_rows(
    spark: SparkSession, settings: Settings, derived: DerivedDataset, gold: DerivedGold, sources: Sources
) -> DataFrame:
    """Return the query's rows over no rows; raises QueryUnfit with what does not fit."""
    document = Document(derived.folder / DERIVED, strict=False)

    def refused(why: str) -> QueryUnfit:
        return QueryUnfit(settings, derived, document.problem(key, why))

    key: tuple[str, ...] = ("gold", gold.name, "query")
    try:
        rows = query_over(spark, gold.query, {name: no_rows(spark, each.schema) for name, each in sources.items()})
        if missing := [name for name in gold.grain if name not in rows.columns]:
            raise refused(f"has no column {', '.join(missing)}; it has {', '.join(rows.columns)}")
        if taken := [name for name in rows.columns if name.startswith("_")]:
            raise refused(f"column {', '.join(taken)}: names that begin with _ are the platform's")
        for name, promised in gold.columns.items():
            key = ("gold", gold.name, "columns", name)
            kind = rows.schema[name].dataType.simpleString() if name in rows.columns else "missing"
            if kind != promised.type.strip().lower():
                raise refused(f"the query's column is {kind}, not {promised.type}")
        for name, source in sources.items():
            for column, expression in gold.touched_by[name].items():
                key = ("gold", gold.name, "touched_by", name, column)
                found = no_rows(spark, source.schema).select(F.expr(expression).alias(column)).schema[column].dataType
                touched = found.elementType if found.typeName() == "array" else found  # type: ignore[attr-defined]
                expected = rows.schema[column].dataType
                if touched != expected:
                    why = f"is {touched.simpleString()}, the query's column {column} is {expected.simpleString()}"
                    raise refused(why)
    except AnalysisException as error:
        raise refused(str(error).splitlines()[0]) from error
    return rows.drop(*PROVENANCE)
