"""The protocol of a backend: the verbs that read and write rows.

The engine decides when a verb is called, on which batches and whether at all; a backend decides none of it. `Table` is
what both sides share: the facts of a table's log (version, transactions, files with their bounds), never rows.
Each verb makes at most one commit a table, with the metadata that the engine gives it, or none and an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from include.declare.dataset import Dataset
from include.declare.file_sets import FileSet
from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.read.rejected_records import Position
from spark_jobs.contract.warning_counts import Counts
from spark_jobs.layers.bronze import ArrowRecords, BronzeBatch, KafkaRecords, LoadedBatches
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import GoldCommit
from spark_jobs.layers.row_provenance import ReplacedGrains
from spark_jobs.layers.silver_tables import Month, RefineRun, SilverTables
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table

if TYPE_CHECKING:
    from spark_jobs.backends.local.runs import NextBounds, NextRun, ValidatedRun, Validations

Metadata = Mapping[str, Any]
SPLIT_BY_DAY = 4 << 20
"""Bytes from which on a group that is compacted becomes a file for each day."""


class Transaction(NamedTuple):
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
class ValidatedFiles:
    """Valid records as rows of silver, month included; the others with their reasons.

    The accepted may still contain duplicates. `warnings`: counted among the accepted. `has_inputs`: the accepted also
    have the inputs of gold.
    """

    accepted: tuple[Path, ...]
    invalid: tuple[Path, ...]
    warnings: Counts = field(default_factory=dict)
    has_inputs: bool = False


class FilesDamaged(Terminal):
    """Files of a table are damaged; they were not compacted."""

    def __init__(self, table: str, paths: Sequence[Path]) -> None:
        names = ", ".join(path.name for path in paths)
        super().__init__(f"{table}: {names} do not have their bytes; they were not compacted", "headrace audit")
        self.table, self.paths = table, tuple(paths)


class Queries(Protocol):
    """A session of SQL over files and tables; a name in double quotes is a column."""

    def view_files(self, name: str, files: Sequence[Path], schema: StructType) -> None:
        """Create a view of these files with the columns of `schema`; an empty one without files."""

    def view_folder(self, name: str, folder: Path, schema: StructType) -> None:
        """Create a view of a folder's files."""

    def view_table(self, name: str, table: Table, files: Sequence[DataFile]) -> None:
        """Create a view of some of a table's files."""

    def view_places(self, name: str, places: Sequence[Position]) -> None:
        """Create a view with the columns `partition` and `offset`."""

    def view_query(self, name: str, sql: str) -> None:
        """Create a view of a query."""

    def create_table(self, name: str, sql: str) -> None:
        """Create a view of a query whose rows are computed once."""

    def save(self, sql: str, folder: Path) -> None:
        """Write the rows of a query into a folder, replacing its content."""

    def save_records(self, sql: str, folder: Path) -> None:
        """As `save`, for records with payloads."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query with a small result."""

    def count(self, sql: str) -> int:
        """Return the row count of a query."""


class Sql(Queries, Protocol):
    """Queries, and in its own words what only one engine's SQL has."""

    first_reason: str
    """The first reason of a row of rejected."""
    rules: str
    """The rules of the reasons of a row of rejected, each once and in a row of its own."""
    numbers: str
    """As many rows as a number that is put into it."""
    with_map: str
    """What a column that has a map inside is compared by."""

    def view_candidates(self, name: str, writer: SilverTables, given: Sequence[Path]) -> None:
        """Create a view of identity and rank of silver's rows that may share an identity with rows of files `given`."""

    def find_duplicates(self, dataset: Dataset, fresh: str, known: str) -> None:
        """Make table `duplicates`: coordinates of rows of `fresh` whose identity occurs earlier there or in `known`.

        Column `_winner` names the first one. Earlier means (ingest batch, partition, offset).
        """

    def view_rejected(self, name: str, dataset: Dataset) -> None:
        """Create a view of the rows of rejected of the views `invalid` and `duplicates`."""


class Backend(Protocol):
    """What does all that touches rows."""

    def open_table(self, spec: TableSpec, version: int | None = None) -> Table:
        """Open or create a table; with a `version` only to read it as it was."""

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

    def loaded_rows(self, settings: Settings, files: FileSet, start: int, bounds: tuple[int, int]) -> LoadedBatches:
        """Yield the records of a set of files from offset `start` on, batch by batch, up to the end of the set.

        `bounds`: rows and bytes of a batch. Raises `file-changed` before anything of a changed file is returned,
        `files-unreadable`.
        """

    def begin_opening(self, dataset: Dataset) -> Callable[[SilverTables], None]:
        """Begin what takes long when a release is opened; the function gives it to the opened tables."""

    def adopt(self, writer: SilverTables, gold: Sequence[GoldTable]) -> SilverTables:
        """Return a release's tables with what the backend keeps of them for `decide` and `merge`."""

    def run_after(
        self, writer: SilverTables, ahead: ValidatedRun | None, next_bounds: NextBounds, validations: Validations
    ) -> NextRun | None:
        """Return what validates the run after the next one (`ahead` if it is validated), None where nothing does."""

    def apart(self, writer: SilverTables, folder: Path) -> SilverTables:
        """Return the tables for a process that does not own them: what it keeps of them lies below `folder`."""

    def decide(
        self, writer: SilverTables, run: RefineRun, following: NextRun | None = None, *, is_committed: bool = False
    ) -> DecidedRun:
        """Validate the records of a run and keep each identity once.

        `is_committed`: silver has the run already. Its rows stay, and records are decided as its commit says. Raises
        RowsUnaccounted unless each record is accepted or rejected. `following`: the next run, validated ahead where
        the backend can.
        """

    def validate(
        self, writer: SilverTables, records: Sequence[Path], batches: tuple[int, int], folder: Path, until: int
    ) -> ValidatedFiles:
        """Validate the records in these files of bronze's columns, by the first `until` bytes of the decisions.

        Replaces the content of `folder` by the result. Raises RowsUnaccounted, TransformationFailed.
        """

    def merge(self, commit: GoldCommit, decided: DecidedRun | None = None) -> None:
        """Merge an update that has rows into a gold table: additive, latest, query or session.

        `decided`: the run that this process has just committed, if the update is of one. Raises NeedsSpark before
        anything is committed where the backend cannot.
        """

    def sql(self) -> AbstractContextManager[Sql]:
        """Open a session of SQL."""

    def replace(
        self, table: Table, month: Month, removed: Path, added: Path, transaction: Transaction, metadata: Metadata
    ) -> None:
        """Replace rows of silver or rejected in one commit: those at the places of `removed` by those of `added`.

        Raises RowsUnaccounted when the table does not have all rows to remove; then nothing is committed.
        """

    def replace_grains(
        self, target: GoldTable, replaced: ReplacedGrains, transaction: Transaction, metadata: Metadata
    ) -> None:
        """Replace rows of gold in one commit, whose metadata also gets `rows` written and the `total`."""

    def expire(
        self, table: Table, before: int, order: Sequence[str], transaction: Transaction, metadata: Metadata
    ) -> None:
        """Remove the rows of batches before `before` in one commit, `rows_removed` in its metadata.

        Files that have others too are written again in this `order`. Raises RowsUnaccounted.
        """

    def drop_expired(self, writer: SilverTables, ends: Mapping[int, int]) -> None:
        """Forget the identities of records before these offsets by partition, which have expired from silver."""

    def rebuild_identities(self, writer: SilverTables) -> int:
        """Build the index of identities again; return its entries, 0 where there is none."""

    def rewrite(
        self, table: Table, group: Sequence[DataFile], folder: Path, order: Sequence[str], day: str, *, aside: bool
    ) -> list[DataFile]:
        """Write the rows of a group of files of one partition into fewer ones below `folder`; return these.

        Rows are sorted by `order`, and divided by the days of a column if there are many and the column is given.
        `aside`: no run waits for it. `Table.compact` commits the files.
        """
