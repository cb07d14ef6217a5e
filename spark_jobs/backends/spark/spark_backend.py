"""The backend of Spark: the verbs of `backend.py` by plain PySpark and delta-spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.backends.backend import DecidedRun, Kind, Metadata, Replacement, Transaction
from spark_jobs.backends.local.runs import NextRun
from spark_jobs.backends.local.tables import local_tables
from spark_jobs.backends.spark.decide import decide
from spark_jobs.backends.spark.delta_session import require_delta
from spark_jobs.backends.spark.ingest import ingest
from spark_jobs.backends.spark.merge import merge
from spark_jobs.backends.spark.spark_table import STALE, SparkTable
from spark_jobs.layers.bronze import ArrowRecords, BronzeBatch, KafkaRecords
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_update import GoldUpdate
from spark_jobs.layers.silver_tables import RefineRun, SilverTables
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import RowsUnaccounted, Table


@dataclass(frozen=True)
class SparkBackend:
    """Executors do all row work; the driver reads and commits metadata."""

    spark: SparkSession
    kind: Kind = "spark"
    validates_ahead: bool = False

    def __post_init__(self) -> None:
        require_delta(self.spark)

    def open_table(self, spec: TableSpec, version: int | None = None) -> Table:
        """Open or create a table."""
        return SparkTable(spec, version)

    def claim(self, tables: Iterable[Table], epoch: int) -> None:
        """Commit a claim to each table."""
        for table in tables:
            table.claim(epoch)

    def ingest(
        self,
        table: Table,
        records: DataFrame | ArrowRecords | KafkaRecords,
        batch: BronzeBatch,
        validate_source: Callable[[], object] = lambda: None,
    ) -> Sequence[DataFile]:
        """Commit a batch of bronze."""
        return ingest(_own(table), records, batch, validate_source)

    def adopt(self, writer: SilverTables, gold: Sequence[GoldTable]) -> SilverTables:
        """Keep what a patch needs of a release; each step of a run plans its own queries."""
        return local_tables(writer, ())

    def decide(
        self, writer: SilverTables, run: RefineRun, following: NextRun | None = None, *, is_committed: bool = False
    ) -> DecidedRun:
        """Decide a run; the next one is not validated ahead: executors are busy with this one."""
        return decide(writer, run, is_committed=is_committed)

    def merge(
        self,
        target: GoldTable,
        writer: SilverTables,
        update: GoldUpdate,
        transaction: Transaction,
        facts: Metadata,
        decided: DecidedRun | None = None,
    ) -> None:
        """Merge an update into a gold table."""
        merge(target, writer, update, transaction, facts)

    def replace(self, table: Table, replacement: Replacement, transaction: Transaction, metadata: Metadata) -> None:
        """Replace rows in one MERGE. Raises RowsUnaccounted unless as many rows are there as are expected."""
        session, own = self.spark.newSession(), _own(table)
        removed, on = _frame(session, replacement.removed).select(*replacement.on), list(replacement.on)
        if replacement.expected_removed is not None:
            there = own.read(session, own.files()).join(removed, on, "left_semi").count()
            if there != replacement.expected_removed:
                why = f"{replacement.expected_removed} rows were to be replaced, {there} are there"
                raise RowsUnaccounted(own.spec.name, (-1, transaction.version), why)
        source = removed.withColumn(STALE, F.lit(True))
        if replacement.added is not None:
            added = _frame(session, replacement.added).select(*own.spec.schema.fieldNames())
            source = added.withColumn(STALE, F.lit(False)).unionByName(source, allowMissingColumns=True)
        own.replace(source, on, transaction, metadata)

    def expire(self, table: Table, before: int, transaction: Transaction, metadata: Metadata) -> int:
        """Delete the rows of batches before `before`."""
        rows, own = table.rows, _own(table)
        own.delete(self.spark.newSession(), f"_batch_id < {before}", transaction, metadata)
        return rows - own.rows

    def read(self, table: Table, files: Iterable[DataFile], first: int, last: int) -> DataFrame:
        """Return the rows of batches [first, last] in these files."""
        return table.read_batches(self.spark, files, first, last)


def _own(table: Table) -> SparkTable:
    assert isinstance(table, SparkTable), f"{table.spec.name} was opened by another backend"
    return table


def _frame(session: SparkSession, rows: DataFrame | Path) -> DataFrame:
    return session.read.parquet(str(rows)) if isinstance(rows, Path) else rows
