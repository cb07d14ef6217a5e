"""The tables of one release of a dataset, opened or created, and the release's own code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.declare.dataset import Dataset, released_dataset
from include.declare.reference_tables import create_reference_tables
from include.declare.yaml_declarations import Problem
from include.ground.app_ids import release_app_id
from include.ground.delta_log import LOG
from include.ground.paths import gold_path, rejected_path, silver_path
from include.ground.settings import Settings
from spark_jobs.layers.bronze_layer import bronze_spec
from spark_jobs.layers.embedded_plan import embedded_plan
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_inputs import GoldInputs
from spark_jobs.layers.gold_layer import gold_spec
from spark_jobs.layers.gold_rows import gold_rows
from spark_jobs.layers.reference_versions import ReferenceVersions
from spark_jobs.layers.silver_code import code_refused, load_transformation, validate_code
from spark_jobs.layers.silver_tables import Inheritance, SilverTables, open_silver_tables, silver_of_nothing
from spark_jobs.tables.delta_table import Table, no_rows
from spark_jobs.tables.prepared_query import ScratchFolder


@dataclass(frozen=True)
class Release:
    """An open release: its silver writer and its gold tables."""

    writer: SilverTables
    gold: tuple[GoldTable, ...]

    @property
    def dataset(self) -> Dataset:
        """The dataset as this release declares it."""
        return self.writer.dataset


def tables_of(releases: Sequence[Release]) -> Iterator[Table]:
    """Yield each table of the releases once."""
    for release in releases:
        yield release.writer.rejected
        for target in release.gold:
            yield target.table
        yield release.writer.silver
    yield releases[0].writer.bronze


def release_paths(settings: Settings, dataset: Dataset) -> list[Path]:
    """Return the paths of a release's tables, silver first."""
    name, release = dataset.name, dataset.release
    own = [silver_path(settings, name, release), rejected_path(settings, name, release)]
    return own + [gold_path(settings, name, release, table.name) for table in dataset.pipeline.gold]


def open_release(spark: SparkSession, settings: Settings, dataset: Dataset, bronze: Table | None = None) -> Release:
    """Open and return the tables of a release, creating those that are missing; nothing else is written."""
    bronze = bronze or Table(bronze_spec(settings, dataset.name))
    release = _opened(spark, settings, dataset, bronze, {})
    inheritance = _inheritance(spark, settings, release)
    return release if inheritance is None else replace(release, writer=replace(release.writer, inheritance=inheritance))


def _inheritance(spark: SparkSession, settings: Settings, release: Release) -> Inheritance | None:
    """Return the rows that the release has yet to inherit; DeclarationRefused when a column has another type now."""
    beginning, writer = release.dataset.release_start, release.writer
    if beginning is None or writer.rejected.committed(release.writer.app_id("rejected")) >= beginning.batch - 1:
        return None
    base = released_dataset(settings, release.dataset.name, beginning.base)
    versions = {f"silver.{base.name}": beginning.silver, f"rejected.{base.name}": beginning.rejected}
    reference = ReferenceVersions(spark, settings, base)
    transform = load_transformation(base)
    nothing = silver_of_nothing(spark, base, transform, reference)
    before = open_silver_tables(spark, settings, base, writer.bronze, transform, reference, versions, nothing)
    old, new = before.silver.spec.schema, writer.silver.spec.schema
    for name in [name for name in old.fieldNames() if name in new.fieldNames()]:
        if old[name].dataType != new[name].dataType:
            why = f"was {old[name].dataType.simpleString()} in release {base.release}, whose rows are inherited"
            declared = release.dataset
            raise code_refused(settings, declared, [Problem(declared.folder / "silver.py", 1, name, why)])
    return Inheritance(before.silver, before.rejected, beginning.batch)


def pinned_release(
    spark: SparkSession,
    settings: Settings,
    dataset: Dataset,
    versions: Mapping[str, int],
    reference: Mapping[str, int] | None = None,
) -> Release:
    """Open and return the tables of a release, only to read, at these versions by full name (`silver.flights`).

    With `reference`, all batches are joined with these versions of the reference tables instead of their own.
    """
    bronze = Table(bronze_spec(settings, dataset.name), versions[f"bronze.{dataset.name}"])
    return _opened(spark, settings, dataset, bronze, versions, reference)


def _opened(
    spark: SparkSession,
    settings: Settings,
    dataset: Dataset,
    bronze: Table,
    versions: Mapping[str, int],
    reference: Mapping[str, int] | None = None,
) -> Release:
    transform = load_transformation(dataset)
    create_reference_tables(settings, dataset)
    book = ReferenceVersions(spark, settings, dataset, reference)
    nothing = silver_of_nothing(spark, dataset, transform, book)
    # A release whose tables exist was accepted, perhaps by fewer rules.
    is_new = not (silver_path(settings, dataset.name, dataset.release) / LOG).is_dir()
    columns = validate_code(settings, dataset, nothing) if is_new else {}
    writer = open_silver_tables(spark, settings, dataset, bronze, transform, book, versions, nothing)
    inputs = GoldInputs(tuple(writer.silver.spec.data_schema.fieldNames()))
    gold = tuple(_gold_tables(settings, writer, columns, versions, inputs))
    return Release(replace(writer, inputs=inputs), gold)


def _gold_tables(
    settings: Settings,
    writer: SilverTables,
    columns: Mapping[str, StructType],
    versions: Mapping[str, int],
    inputs: GoldInputs,
) -> list[GoldTable]:
    """Open or create the gold tables; their `columns` are found again unless they are known."""
    tables, dataset, silver, scratch = [], writer.dataset, writer.silver, ScratchFolder(writer.queries_folder)
    for gold in dataset.pipeline.gold:
        own = writer.spark.newSession()
        found = columns.get(gold.name) or gold_rows(gold, no_rows(own, silver.spec.data_schema), 0).schema
        spec = gold_spec(settings, dataset, gold, found)
        plan = embedded_plan(own, gold, spec, silver.spec, inputs, scratch)
        app_id = release_app_id(dataset.name, dataset.release, f"gold/{gold.name}")
        table = Table(spec, versions.get(spec.name))
        tables.append(GoldTable(gold, table, own, app_id, embedded=plan))
    return tables
