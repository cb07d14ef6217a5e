"""The protocol of a backend: the verbs that read and write rows.

The engine decides when a verb is called, on which batches and whether at all; a backend decides none of it. `Table` is
what both sides share: the facts of a table's log (version, transactions, files with their bounds), never rows.
Each verb makes at most one commit a table, with the metadata that the engine gives it, or none and an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pyspark.sql import DataFrame

from spark_jobs.contract.warning_counts import Counts
from spark_jobs.layers.bronze import ArrowRecords, BronzeBatch, KafkaRecords
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_update import GoldUpdate
from spark_jobs.layers.silver_tables import RefineRun, SilverTables
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import RowsUnaccounted, Table

if TYPE_CHECKING:
    from spark_jobs.backends.local.runs import NextRun

Kind = Literal["local", "spark"]
Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class Transaction:
    """The platform's name of a commit: an app id (`include/ground/app_ids.py`), and its number, which commits once."""

    app_id: str
    version: int


@dataclass(frozen=True)
class DecisionCounts:
    """What a run's two commits say about it, known before the first of them."""

    rows_in: int
    accepted: int
    rejected: int
    reasons: Mapping[str, int]
    dispositions: Mapping[str, int]
    warnings: Counts
    latest: Mapping[str, datetime]
    """The greatest event time of the accepted rows by partition."""
    decided_until: int = 0
    """Length of the list of decisions (bytes) by which the records were validated."""
    schemas_until: int = 0
    """Length of the list of writers' schemas (bytes) by which they were read."""

    def validate(self, table: str, batches: tuple[int, int]) -> None:
        """Raise RowsUnaccounted unless each record is accepted or rejected."""
        if self.rows_in != self.accepted + self.rejected:
            why = f"{self.rows_in} records came in, {self.accepted} are accepted and {self.rejected} rejected"
            raise RowsUnaccounted(table, batches, why)


class NeedsSpark(Exception):
    """The local backend cannot do a step. The engine has Spark do it, and counts it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DecidedRun(Protocol):
    """The records of a run, each of them accepted or rejected, and nothing committed yet."""

    @property
    def counts(self) -> DecisionCounts:
        """The counts for the commits' metadata."""

    def commit_silver(self, transaction: Transaction, metadata: Metadata) -> None:
        """Commit the accepted rows. Raises OwnershipLost."""

    def commit_rejected(self, transaction: Transaction, metadata: Metadata) -> None:
        """Commit the rejected rows. Raises OwnershipLost."""

    def release(self) -> None:
        """Free what the run holds: files, or cached blocks. Called once, also after an error."""


@dataclass(frozen=True)
class Replacement:
    """Rows of a table to replace in one commit: those that equal a row of `removed` in the columns `on`.

    Both are folders of Parquet files or frames; `added` has the table's columns. `expected_removed`: how many there
    must be to replace, else nothing is committed (PatchOutdated of the caller); None where any number will do.
    """

    on: Sequence[str]
    removed: DataFrame | Path
    added: DataFrame | Path | None = None
    expected_removed: int | None = None


class Refining(Protocol):
    """What opens and fills the tables of a release, and bronze."""

    @property
    def kind(self) -> Kind:
        """Its name in HEADRACE_BACKEND."""

    @property
    def validates_ahead(self) -> bool:
        """Whether `decide` uses a run that was validated while the one before was written."""

    def open_table(self, spec: TableSpec, version: int | None = None) -> Table:
        """Open or create a table; with a `version` only to read it as it was."""

    def claim(self, tables: Iterable[Table], epoch: int) -> None:
        """Fence all commits of earlier owners, also those in flight; progress that is read afterwards is final.

        Raises OwnershipLost when an owner of this epoch or a later one has claimed a table.
        """

    def ingest(
        self,
        table: Table,
        records: DataFrame | ArrowRecords | KafkaRecords,
        batch: BronzeBatch,
        validate_source: Callable[[], object] = lambda: None,
    ) -> Sequence[DataFile]:
        """Commit a batch of offsets to bronze, unless its transaction is committed; return the batch's files.

        `validate_source` is called when the records are read; its error prevents the commit. Raises RowsUnaccounted.
        """

    def adopt(self, writer: SilverTables, gold: Sequence[GoldTable]) -> SilverTables:
        """Return a release's tables with what the backend keeps of them for `decide` and `merge`."""

    def decide(
        self, writer: SilverTables, run: RefineRun, following: NextRun | None = None, *, is_committed: bool = False
    ) -> DecidedRun:
        """Validate the records of a run and keep each identity once.

        `is_committed`: silver has the run already. Its rows stay, and records are decided as its commit says. Raises
        RowsUnaccounted unless each record is accepted or rejected. `following`: the next run, validated ahead where
        the backend can.
        """

    def merge(
        self,
        target: GoldTable,
        writer: SilverTables,
        update: GoldUpdate,
        transaction: Transaction,
        facts: Metadata,
        decided: DecidedRun | None = None,
    ) -> None:
        """Merge an update into a gold table: additive, latest, query or session. One without rows is committed too.

        `decided`: the run that this process has just committed, if the update is of one. Raises NeedsSpark before
        anything is committed where the backend cannot.
        """


class Backend(Refining, Protocol):
    """The whole of it: also what patches, expiry and compaction do. The engine has the driver's process do these."""

    def replace(self, table: Table, replacement: Replacement, transaction: Transaction, metadata: Metadata) -> None:
        """Replace rows in one commit: a patch, its reversal, records that bronze lacked."""

    def expire(self, table: Table, before: int, transaction: Transaction, metadata: Metadata) -> int:
        """Remove the rows of batches before `before` in one commit; return how many."""

    def compact(self, table: Table, group: Sequence[DataFile], order: Sequence[str]) -> None:
        """Write the rows of small files into fewer, sorted by `order`; the commit changes no row."""

    def read(self, table: Table, files: Iterable[DataFile], first: int, last: int) -> DataFrame:
        """Return the rows of batches [first, last] in these files, which pin them."""
