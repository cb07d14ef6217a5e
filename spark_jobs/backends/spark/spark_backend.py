"""The backend of Spark: the verbs of `backend.py` by plain PySpark and delta-spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.dataset import Dataset
from include.declare.file_sets import FileSet
from include.declare.writer_schemas import HEADER_BYTES
from include.ground.record_coordinates import COORDINATES, POSITION, RANK
from include.ground.settings import Settings
from include.read.rejected_records import Position
from spark_jobs.backends.backend import SPLIT_BY_DAY, DecidedRun, Metadata, Transaction, ValidatedFiles
from spark_jobs.backends.local.runs import NextBounds, NextRun, ValidatedRun, Validations
from spark_jobs.backends.spark.decide import copies, decide, duplicate_rows, refused_rows, validate
from spark_jobs.backends.spark.delta_session import require_delta
from spark_jobs.backends.spark.figures import figures
from spark_jobs.backends.spark.ingest import ingest, loaded_rows
from spark_jobs.backends.spark.merge import merge, replace_grains
from spark_jobs.backends.spark.spark_table import STALE, SparkTable, own
from spark_jobs.layers.bronze import SCHEMA, ArrowRecords, BronzeBatch, KafkaRecords, LoadedBatches
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import GoldCommit
from spark_jobs.layers.row_provenance import ReplacedGrains
from spark_jobs.layers.silver_tables import Month, RefineRun, SilverTables, files_at
from spark_jobs.tables.data_files import (
    BATCH,
    HIVE_NULL,
    DataFile,
    TableSpec,
    bounds_of,
    parquet_files,
    read_files,
    read_folder,
    write_files,
    write_folder,
)
from spark_jobs.tables.delta_table import RowsUnaccounted, Table


class SparkSql:
    """A session of its own, with its views. A name in double quotes is a column, as in DuckDB."""

    first_reason = "reasons[0]"
    rules = "explode(array_distinct(reasons.rule))"
    numbers = "explode(sequence(1, {}))"
    # Spark compares no maps.
    with_map = "to_json({}, map('timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS', 'ignoreNullFields', 'false'))"

    def __init__(self, spark: SparkSession) -> None:
        self._session = spark.newSession()
        self._session.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")

    def view_files(self, name: str, files: Sequence[Path], schema: StructType) -> None:
        read_files(self._session, schema, files).createOrReplaceTempView(name)

    def view_folder(self, name: str, folder: Path, schema: StructType) -> None:
        read_folder(self._session, folder, schema).createOrReplaceTempView(name)

    def view_table(self, name: str, table: Table, files: Sequence[DataFile]) -> None:
        table.read(self._session, files).createOrReplaceTempView(name)

    def view_places(self, name: str, places: Sequence[Position]) -> None:
        rows = self._session.createDataFrame(list(places), "partition int, offset long")
        rows.createOrReplaceTempView(name)

    def view_query(self, name: str, sql: str) -> None:
        self._session.sql(sql).createOrReplaceTempView(name)

    def view_candidates(self, name: str, writer: SilverTables, given: Sequence[Path]) -> None:
        """Create the view by a join of silver with the hashes of the rows' identities."""
        silver, identity = writer.silver, list(writer.dataset.pipeline.identity)
        marks = read_files(self._session, silver.spec.data_schema, given).select(F.xxhash64(*identity).alias("_mark"))
        rows = silver.read(self._session, silver.files()).withColumn("_mark", F.xxhash64(*identity))
        found = rows.join(marks.distinct(), "_mark", "left_semi")
        found.select(*dict.fromkeys([*identity, *RANK])).createOrReplaceTempView(name)

    def find_duplicates(self, dataset: Dataset, fresh: str, known: str) -> None:
        """Make the table by a window over each identity."""
        identity, session = list(dataset.pipeline.identity), self._session
        rows = session.sql(f"select * from {fresh}").select(*dict.fromkeys([*identity, *COORDINATES]))
        earlier = session.sql(f"select * from {known}").select(*dict.fromkeys([*identity, *RANK]))
        both = rows.withColumn("_fresh", F.lit(True)).unionByName(
            earlier.withColumn("_fresh", F.lit(False)), allowMissingColumns=True
        )
        copies(both, identity).localCheckpoint(eager=False).createOrReplaceTempView("duplicates")

    def view_rejected(self, name: str, dataset: Dataset) -> None:
        """Create the view."""
        invalid, duplicates = self._session.table("invalid"), self._session.table("duplicates")
        rows = refused_rows(dataset, invalid).unionByName(duplicate_rows(dataset, duplicates))
        rows.createOrReplaceTempView(name)

    def create_table(self, name: str, sql: str) -> None:
        """Create a view of a query whose rows executors keep."""
        self._session.sql(sql).localCheckpoint(eager=False).createOrReplaceTempView(name)

    def save(self, sql: str, folder: Path) -> None:
        """Write the rows of a query into a folder, replacing its content."""
        write_folder(self._session.sql(sql), folder)

    save_records = save

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in figures(self._session.sql(sql))]

    def count(self, sql: str) -> int:
        return int(self.rows(f"select count(*) from ({sql})")[0][0])


DAYS_OF_A_MONTH = 31


@dataclass(frozen=True)
class SparkBackend:
    """Executors do all row work; the driver reads and commits metadata."""

    spark: SparkSession

    def __post_init__(self) -> None:
        require_delta(self.spark)

    def open_table(self, spec: TableSpec, version: int | None = None) -> Table:
        return SparkTable(spec, version)

    def ingest(
        self,
        table: Table,
        records: DataFrame | ArrowRecords | KafkaRecords,
        batch: BronzeBatch,
        validate_source: Callable[[], object] = lambda: None,
    ) -> Sequence[DataFile]:
        return ingest(own(table), records, batch, validate_source)

    def loaded_rows(self, settings: Settings, files: FileSet, start: int, bounds: tuple[int, int]) -> LoadedBatches:
        return loaded_rows(self.spark, settings, files, start, bounds)

    def begin_opening(self, dataset: Dataset) -> Callable[[SilverTables], None]:
        """Begin nothing: each step of a run plans its own queries."""
        return lambda _: None

    def adopt(self, writer: SilverTables, gold: Sequence[GoldTable]) -> SilverTables:
        """Have executors read which schemas payloads were written with; keep nothing in this process."""
        return replace(writer, payloads=replace(writer.payloads, heads=partial(_heads, self.spark)))

    def run_after(
        self, writer: SilverTables, ahead: ValidatedRun | None, next_bounds: NextBounds, validations: Validations | None
    ) -> None:
        """Validate no run ahead: executors are busy with the one before."""

    def apart(self, writer: SilverTables, folder: Path) -> SilverTables:
        """Return the tables with a folder of their own for unfinished work."""
        return replace(writer, staging=folder / "_staging")

    def decide(
        self, writer: SilverTables, run: RefineRun, following: NextRun | None = None, *, is_committed: bool = False
    ) -> DecidedRun:
        return decide(writer, run, is_committed=is_committed)

    def validate(
        self, writer: SilverTables, records: Sequence[Path], batches: tuple[int, int], folder: Path, until: int
    ) -> ValidatedFiles:
        return validate(writer, records, batches, folder, until)

    def merge(self, commit: GoldCommit, decided: DecidedRun | None = None) -> None:
        merge(commit)

    @contextmanager
    def sql(self) -> Iterator[SparkSql]:
        yield SparkSql(self.spark)

    def replace(
        self, table: Table, month: Month, removed: Path, added: Path, transaction: Transaction, metadata: Metadata
    ) -> None:
        """Replace rows in one MERGE, which reads the files that may have rows of the removed ones' batches."""
        session, target, on = self.spark.newSession(), own(table), list(POSITION)
        schema, places = table.spec.data_schema, StructType([table.spec.data_schema[name] for name in on])
        stale, files = read_folder(session, removed, places), parquet_files(removed)
        there = target.read(session, files_at(table, files)).join(stale, on, "left_semi").count()
        if there != metadata["rows_removed"]:
            why = f"{metadata['rows_removed']} rows were to be replaced, {there} are there"
            raise RowsUnaccounted(table.spec.name, (-1, transaction.version), why)
        fresh = read_folder(session, added, schema).select("*", month.column, F.lit(False).alias(STALE))
        source = fresh.unionByName(stale.withColumn(STALE, F.lit(True)), allowMissingColumns=True)
        target.replace(source, on, transaction, metadata, _batches_of(files))

    def replace_grains(
        self, target: GoldTable, replaced: ReplacedGrains, transaction: Transaction, metadata: Metadata
    ) -> None:
        replace_grains(target, replaced, transaction, metadata)

    def expire(
        self, table: Table, before: int, order: Sequence[str], transaction: Transaction, metadata: Metadata
    ) -> None:
        session, expired = self.spark.newSession(), f"_batch_id < {before}"
        there = table.read(session, table.batch_files(0, before - 1)).where(expired).count()
        if there != metadata["rows_removed"]:
            why = f"{metadata['rows_removed']} rows were to be removed, {there} are there"
            raise RowsUnaccounted(table.spec.name, (0, before - 1), why)
        own(table).delete(session, expired, transaction, metadata)

    def drop_expired(self, writer: SilverTables, ends: Mapping[int, int]) -> None:
        """Do nothing: silver itself is read for identities."""

    def rebuild_identities(self, writer: SilverTables) -> int:
        """Do nothing: there is no index."""
        return 0

    def rewrite(
        self, table: Table, group: Sequence[DataFile], folder: Path, order: Sequence[str], day: str, *, aside: bool
    ) -> list[DataFile]:
        """Have tasks write the rows sorted; `Table.compact` fences its commit by the table's version."""
        spec, value = table.spec, group[0].partition_text
        rows = table.read(self.spark, group).withColumn(spec.partition, F.lit(None if value == HIVE_NULL else value))
        is_divided = day and sum(file.size for file in group) >= SPLIT_BY_DAY
        tasks = rows.repartitionByRange(DAYS_OF_A_MONTH, F.to_date(day)) if is_divided else rows.coalesce(1)
        ordered = tasks.sortWithinPartitions(*order) if order else tasks
        write_files(ordered, folder, "overwrite", spec.partition, spec.writing.spark_options)
        return table.written_files(folder)


def _heads(spark: SparkSession, records: Sequence[Path]) -> Iterator[bytes]:
    """Yield the different beginnings of the records' values."""
    values = read_files(spark, StructType([SCHEMA["value"]]), records)
    heads = values.select(F.substring("value", 1, HEADER_BYTES).alias("head")).where("head is not null").distinct()
    return (bytes(row["head"]) for row in figures(heads))


def _batches_of(files: Sequence[Path]) -> Column:
    """Return a condition that all rows of a table meet that have a batch of the rows in these files."""
    bounds = [each for path in files for each in bounds_of(path, (BATCH,)) if BATCH in each[0]]
    low, high = min((low[BATCH] for low, _ in bounds), default=0), max((high[BATCH] for _, high in bounds), default=-1)
    return F.col(f"t.`{BATCH}`").between(low, high)
