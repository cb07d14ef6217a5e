"""The sources of a derived dataset: published tables of other datasets at pinned versions, and what changed in them.

Reads: Delta logs and data files. Writes: nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.ground.delta_log import commit_content
from include.ground.errors import Transient
from include.ground.file_changes import FileChanges, file_changes
from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.ground.table_files import add_actions
from include.read.publication import PublishedTable, SourceVersion
from include.read.published_tables import open_table
from spark_jobs.layers.row_provenance import PROVENANCE
from spark_jobs.tables.delta_table import read_files

if TYPE_CHECKING:
    from include.declare.touched_ranges import Shift

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
        """Return all rows."""
        return self.rows(spark, [file["path"] for file in self.files])

    @property
    def is_whole(self) -> bool:
        """Whether all of its files are still there."""
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
    """Return sources at these versions, which are by full name, by the name in queries: `names`.

    Raises PublishedVersionGone.
    """
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
    from include.declare.touched_ranges import shift_of

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
