"""Silver and rejected of one release, what fills them, and the run that does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, DataType, IntegerType, LongType, StringType, StructType, TimestampType

from include.declare.dataset import Dataset
from include.declare.envelopes import TOMBSTONE
from include.ground.app_ids import expiry_app_id, release_app_id
from include.ground.paths import rejected_path, silver_path
from include.ground.record_coordinates import FIRST_DATE, LAST_DATE, POSITION
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier
from spark_jobs.contract.record_reader import REASONS
from spark_jobs.contract.validator import Validator, validated_schema
from spark_jobs.contract.warning_counts import WarningCounter
from spark_jobs.layers.bronze import ReleasedBronze
from spark_jobs.layers.run_inputs import PayloadSchemas, RecordDecisions, ReferenceVersions
from spark_jobs.layers.silver_code import Transformation, stored_columns
from spark_jobs.tables.data_files import ROWS_PER_GROUP, DataFile, ParquetWriting, TableSpec, bounds_of
from spark_jobs.tables.delta_table import Table, partitioned_schema

QUERIES = "_queries"
MONTH = "_month"
FIRST_MONTH, LAST_MONTH = (day.isoformat()[:7] for day in (FIRST_DATE, LAST_DATE))
REJECTED = (
    StructType()
    .add("_topic", StringType())
    .add("_partition", IntegerType())
    .add("_offset", LongType())
    .add("_batch_id", LongType())
    .add("disposition", StringType())
    .add("reasons", REASONS)
    .add("contract_version", StringType())
    .add("first_seen", TimestampType())
    .add(MONTH, StringType())
)
REFUSED_AS = f"case when {{first}}.rule = '{TOMBSTONE}' then '{TOMBSTONE}' else 'invalid' end"
"""SQL for the disposition of a record with this first reason."""
POSITIONS = StructType([REJECTED[name] for name in POSITION])


@dataclass(frozen=True)
class Month:
    """The partition of rows: the month of their event, or of an arrival, which is bounded (adr-0019)."""

    time: str
    is_arrival: bool = False

    @property
    def column(self) -> Column:
        month = F.date_format(self.time, "yyyy-MM")
        if self.is_arrival:
            month = F.greatest(F.least(month, F.lit(LAST_MONTH)), F.lit(FIRST_MONTH))
        return month.alias(MONTH)

    @property
    def in_duckdb(self) -> str:
        month = f"strftime({sql_identifier(self.time)}, '%Y-%m')"
        return f"greatest(least({month}, '{LAST_MONTH}'), '{FIRST_MONTH}')" if self.is_arrival else month


@dataclass(frozen=True)
class Inheritance:
    """Silver and rejected rows of another release that are copied for batches before `until`, not validated."""

    silver: Table
    rejected: Table
    until: int


@dataclass(frozen=True)
class SilverTables:
    """Silver and rejected of one release, and what fills them; `staging` is the folder for unfinished work."""

    spark: SparkSession
    dataset: Dataset
    validator: Validator
    transform: Transformation
    reference: ReferenceVersions
    bronze: Table
    silver: Table
    rejected: Table
    staging: Path
    decisions: RecordDecisions
    payloads: PayloadSchemas
    counting: WarningCounter
    is_owned: bool = True
    """Whether this process may commit to the tables; one that is pinned to versions only reads them."""
    inheritance: Inheritance | None = None

    @cached_property
    def validated_schema(self) -> StructType:
        return validated_schema(self.dataset.contract)

    @cached_property
    def records(self) -> ReleasedBronze:
        return ReleasedBronze(self.bronze, frozenset(each.partition for each in self.dataset.file_sets))

    @property
    def queries_folder(self) -> Path:
        """Folder for what prepared queries read and write, below it one for each process."""
        return self.staging.with_name(QUERIES)

    @cached_property
    def app_ids(self) -> Mapping[str, str]:
        """The app ids of the release's commits to `silver` and `rejected`."""
        name, release = self.dataset.name, self.dataset.release
        return {table: release_app_id(name, release, table) for table in ("silver", "rejected")}


OpenTable = Callable[[TableSpec, int | None], Table]
"""Opens or creates a table; with a version, only to read it as it was."""


def record_tables(
    settings: Settings, dataset: Dataset, nothing: DataFrame, versions: Mapping[str, int], open_table: OpenTable = Table
) -> tuple[Table, Table]:
    """Open or create silver and rejected of a release, at their `versions` if given; see `silver_of_nothing`."""
    silver, rejected = silver_spec(settings, dataset, dated(nothing, dataset)), rejected_spec(settings, dataset)
    return open_table(silver, versions.get(silver.name)), open_table(rejected, versions.get(rejected.name))


def silver_of_nothing(
    spark: SparkSession, dataset: Dataset, transform: Transformation, reference: ReferenceVersions
) -> DataFrame:
    """Return silver.py's result for no records: an empty frame with silver's columns."""
    return transform(validated_nothing(spark, dataset).drop("_reasons"), **reference.frames({}))


def validated_nothing(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """Return no records, validated: an empty frame with the columns of `Validator.validated`.

    Made of a range: `reads_its_records` recognises it, and a query that silver.py executes over it is a job.
    """
    fields = validated_schema(dataset.contract).fields
    return spark.range(0).select(*[_null(field.dataType).alias(field.name) for field in fields])


def _null(kind: DataType) -> Column:
    """Return null of a type. From its name where it has one: a type as such crosses to the JVM in ten calls."""
    if isinstance(kind, AtomicType):
        return F.expr(f"cast(null as {kind.simpleString()})")
    return F.lit(None).cast(kind)


def silver_spec(settings: Settings, dataset: Dataset, rows: DataFrame) -> TableSpec:
    """Return what `silver.<dataset>` is: the columns that the transformation makes, coordinates, month."""
    pipeline = dataset.pipeline
    bounded = [pipeline.event_time, *pipeline.identity]
    for gold in pipeline.gold:
        bounded += gold.bounded_columns
    columns = tuple(dict.fromkeys([*bounded, "_partition", "_offset", "_batch_id"]))
    path = silver_path(settings, dataset.name, dataset.release)
    schema = partitioned_schema(rows.schema, MONTH)
    distinct = (*pipeline.identity, pipeline.event_time, "_offset", "_timestamp")
    writing = ParquetWriting(distinct=distinct, compression="zstd", rows_per_group=ROWS_PER_GROUP)
    return TableSpec(f"silver.{dataset.name}", path, schema, MONTH, columns, settings.is_power_safe, writing)


def rejected_spec(settings: Settings, dataset: Dataset) -> TableSpec:
    """Return what `rejected.<dataset>` is."""
    path = rejected_path(settings, dataset.name, dataset.release)
    bounded = ("_partition", "_offset", "_batch_id")
    distinct = ("_offset", "first_seen")
    writing = ParquetWriting(distinct=distinct, compression="zstd", rows_per_group=ROWS_PER_GROUP)
    return TableSpec(f"rejected.{dataset.name}", path, REJECTED, MONTH, bounded, settings.is_power_safe, writing)


def dated(rows: DataFrame, dataset: Dataset) -> DataFrame:
    """Return rows of silver with the columns in their order and the month at the end."""
    return rows.select(*stored_columns(rows), Month(dataset.pipeline.event_time).column)


@dataclass(frozen=True)
class RefineRun:
    """One pass over bronze batches [first, last], by the owner with this `epoch`."""

    first: int
    last: int
    epoch: int

    @property
    def batches(self) -> tuple[int, int]:
        return self.first, self.last

    @property
    def folder(self) -> str:
        """Name of the folder for the run's files in each table."""
        return f"b{self.last:08d}-{self.epoch}"

    def facts(self, dataset: Dataset) -> dict[str, Any]:
        """Return the metadata that each commit of the run carries."""
        return {**facts_of(dataset, self.epoch), "batches": [self.first, self.last]}


def facts_of(dataset: Dataset, epoch: int) -> dict[str, Any]:
    """Return the metadata that each commit of the owner with this epoch carries."""
    return {"dataset": dataset.name, "release": dataset.release, "code": dataset.release, "epoch": epoch}


def expiry_ids(writer: SilverTables) -> dict[str, str]:
    """Return the app id of expiry commits for bronze, silver and rejected."""
    name, release = writer.dataset.name, writer.dataset.release
    owners = {"bronze": "bronze", "silver": release, "rejected": release}
    return {layer: expiry_app_id(name, owner, layer) for layer, owner in owners.items()}


def first_unexpired_batch(writer: SilverTables, layer: str) -> int:
    """Return the first batch that has not expired from bronze, silver or rejected; 0: none has."""
    table = {"bronze": writer.bronze, "silver": writer.silver, "rejected": writer.rejected}[layer]
    return max(0, table.committed(expiry_ids(writer)[layer]))


def first_complete_batch(writer: SilverTables) -> int:
    """Return the first batch of which bronze, silver and rejected have all rows."""
    return max(first_unexpired_batch(writer, layer) for layer in expiry_ids(writer))


def files_at(table: Table, rows: Sequence[Path]) -> list[DataFile]:
    """Return the table's files that may hold a record of the rows in these files."""
    columns = (*POSITION, "_batch_id")
    spans = [bounds for path in rows for bounds in bounds_of(path, columns)]
    return [
        file
        for file in table.files()
        if any(all(file.overlaps(c, low[c], high[c]) for c in columns if c in low) for low, high in spans)
    ]
