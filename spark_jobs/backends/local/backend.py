"""The local backend: rows are computed in the driver's process; what it cannot do raises NeedsSpark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame

from include.declare.dataset import Dataset
from spark_jobs.backends.backend import DecidedRun, Metadata, NeedsSpark, Transaction, ValidatedFiles
from spark_jobs.backends.local.bronze import commit_bronze
from spark_jobs.backends.local.duckdb_session import DuckSession, database_of_many_rows
from spark_jobs.backends.local.gold import merge
from spark_jobs.backends.local.identities import IdentityLookup, find_duplicates
from spark_jobs.backends.local.rewrites import Rewrites
from spark_jobs.backends.local.runs import (
    LocalRun,
    NextBounds,
    NextRun,
    RunRows,
    ValidatedRun,
    Validations,
    decided_run,
)
from spark_jobs.backends.local.tables import LocalTables, local_tables, rejected_rows_sql
from spark_jobs.backends.local.validation import begin_full_validation, validate_files
from spark_jobs.layers.bronze import ArrowRecords, BronzeBatch, KafkaRecords
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import GoldUpdate
from spark_jobs.layers.silver_tables import RefineRun, SilverTables
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table


class LocalSql(DuckSession):
    """A session of DuckDB."""

    first_reason = "reasons[1]"
    rules = "unnest(list_distinct([reason.rule for reason in reasons]))"
    numbers = "unnest(range({}))"
    with_map = "{}"

    def view_candidates(self, name: str, writer: SilverTables, given: Sequence[Path]) -> None:
        adopted(writer).identities.view_candidates(self, name, given)

    def find_duplicates(self, dataset: Dataset, fresh: str, known: str) -> None:
        find_duplicates(self, dataset, fresh, known)

    def view_rejected(self, name: str, dataset: Dataset) -> None:
        self.view_query(name, rejected_rows_sql(dataset))


@dataclass(frozen=True)
class LocalBackend(Rewrites):
    """Arrow and DuckDB over the tables' own files, which this process commits."""

    def open_table(self, spec: TableSpec, version: int | None = None) -> Table:
        return Table(spec, version)

    def ingest(
        self,
        table: Table,
        records: DataFrame | ArrowRecords | KafkaRecords,
        batch: BronzeBatch,
        validate_source: Callable[[], object] = lambda: None,
    ) -> list[DataFile]:
        return commit_bronze(table, records, batch, validate_source)

    def begin_opening(self, dataset: Dataset) -> Callable[[SilverTables], None]:
        """Have a thread plan the full validation: another one plans seconds of other queries meanwhile."""
        assert self.spark is not None
        begun = begin_full_validation(self.spark, dataset)
        return lambda writer: adopted(writer).prepared.expect(begun)

    def run_after(
        self, writer: SilverTables, ahead: ValidatedRun | None, next_bounds: NextBounds, validations: Validations
    ) -> NextRun:
        return NextRun(adopted(writer), ahead, next_bounds, validations)

    def adopt(self, writer: SilverTables, gold: Sequence[GoldTable]) -> LocalTables:
        return local_tables(writer, gold)

    def apart(self, writer: SilverTables, folder: Path) -> LocalTables:
        """Return the tables with an index of their own, built from silver's rows."""
        index = IdentityLookup(writer.dataset, writer.silver, folder / "identities", owns=True)
        return replace(adopted(writer), staging=folder / "_staging", identities=index)

    def decide(
        self, writer: SilverTables, run: RefineRun, following: NextRun | None = None, *, is_committed: bool = False
    ) -> LocalRun:
        return decided_run(adopted(writer), run, following, is_committed=is_committed)

    def validate(
        self, writer: SilverTables, records: Sequence[Path], batches: tuple[int, int], folder: Path, until: int
    ) -> ValidatedFiles:
        return validate_files(adopted(writer), records, batches, folder, until)

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
        if target.gold.name not in tables.merges or update.late is None:
            raise NeedsSpark("DuckDB has no such keys, measures or refresh")
        late = update.late
        rows = decided.rows if isinstance(decided, LocalRun) else RunRows(tables, late.files, (late.first, late.last))
        merge(tables, target, update, transaction, facts, rows)

    @contextmanager
    def sql(self) -> Iterator[LocalSql]:
        with closing(LocalSql(database_of_many_rows())) as duck:
            yield duck

    def drop_expired(self, writer: SilverTables, ends: Mapping[int, int]) -> None:
        adopted(writer).identities.drop_expired(ends)

    def rebuild_identities(self, writer: SilverTables) -> int:
        return adopted(writer).identities.rebuild()


def adopted(writer: SilverTables) -> LocalTables:
    """Return a release's tables as the local backend has them."""
    assert isinstance(writer, LocalTables), f"{writer.silver.spec.name} was opened for another backend"
    return writer
