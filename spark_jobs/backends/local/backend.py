"""The local backend: rows are computed in the driver's process; what it cannot do raises NeedsSpark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyspark.sql import DataFrame

from spark_jobs.backends.backend import DecidedRun, Kind, Metadata, NeedsSpark, Transaction
from spark_jobs.backends.local.bronze import commit_bronze
from spark_jobs.backends.local.gold import merge
from spark_jobs.backends.local.runs import LocalRun, NextRun, RunRows, decided_run
from spark_jobs.backends.local.tables import LocalTables, local_tables
from spark_jobs.layers.bronze import ArrowRecords, BronzeBatch, KafkaRecords
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import commit_merged
from spark_jobs.layers.gold_update import GoldUpdate
from spark_jobs.layers.silver_tables import RefineRun, SilverTables
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table


class LocalBackend:
    """Arrow and DuckDB over the tables' own files, which this process commits."""

    kind: Kind = "local"
    validates_ahead: bool = True

    def open_table(self, spec: TableSpec, version: int | None = None) -> Table:
        """Open or create a table; with a `version` only to read it as it was."""
        return Table(spec, version)

    def claim(self, tables: Iterable[Table], epoch: int) -> None:
        """Claim the tables that an owner of the other backend has claimed.

        The lease, and where it expires the commit of a new owner, keep earlier owners from the others.
        """
        for table in tables:
            if table.needs_claim:
                table.claim(epoch)

    def ingest(
        self,
        table: Table,
        records: DataFrame | ArrowRecords | KafkaRecords,
        batch: BronzeBatch,
        validate_source: Callable[[], object] = lambda: None,
    ) -> list[DataFile]:
        """Commit a batch of offsets to bronze."""
        return commit_bronze(table, records, batch, validate_source)

    def adopt(self, writer: SilverTables, gold: Sequence[GoldTable]) -> LocalTables:
        """Return a release's tables with its index, prepared queries and planned merges."""
        return local_tables(writer, gold)

    def decide(
        self, writer: SilverTables, run: RefineRun, following: NextRun | None = None, *, is_committed: bool = False
    ) -> LocalRun:
        """Write a run's files of silver and rejected."""
        return decided_run(adopted(writer), run, following, is_committed=is_committed)

    def merge(
        self,
        target: GoldTable,
        writer: SilverTables,
        update: GoldUpdate,
        transaction: Transaction,
        facts: Metadata,
        decided: DecidedRun | None = None,
    ) -> None:
        """Merge the rows of a run into a gold table; those of an update that is no run's are Spark's."""
        tables = adopted(writer)
        if not update.parts:
            commit_merged(target, update, (transaction.app_id, transaction.version), facts)
            return
        if target.gold.name not in tables.plans or update.late is None:
            raise NeedsSpark("DuckDB has no such keys, measures or refresh")
        rows = decided.rows if isinstance(decided, LocalRun) else RunRows.of_part(tables, update.late)
        merge(tables, target, update, transaction, facts, rows)


def adopted(writer: SilverTables) -> LocalTables:
    """Return a release's tables as the local backend has them."""
    assert isinstance(writer, LocalTables), f"{writer.silver.spec.name} was opened for another backend"
    return writer
