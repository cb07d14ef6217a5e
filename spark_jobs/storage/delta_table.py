"""How a table is written: files first (Spark, or DuckDB: layers/adr-0002), delta-rs commits them, one owner per table.

Guarantee: a commit holds files added, files removed, the transaction (app id, version) and our metadata, all or
nothing; the same app id and version never commit twice; a process that is no longer the owner is refused.
After a crash: files of an attempt that did not commit stay in the table's folder, unseen by every reader, until
they are vacuumed.
Does not: read or write rows itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from include.errors import Terminal
from spark_jobs.storage.data_files import DataFile, TableSpec, actions, files_of, written_file

# The log is the ledger's truth, so it is kept; VACUUM's own retention is what bounds a slow reader.
RETENTION = timedelta(days=7)
PROPERTIES = {
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": f"interval {RETENTION.days} days",
    "delta.checkpointInterval": "50",
    "delta.enableDeletionVectors": "false",
}


class OwnershipLost(Terminal):
    """Another process has committed under our app id: this one has lost the table and must stop."""

    def __init__(self, table: str, app_id: str, why: str) -> None:
        super().__init__(
            f"{table}: the commit of {app_id} was refused, another process owns this table now ({why}); "
            "nothing of this attempt is visible",
            "headrace status",
        )
        self.table = table
        self.app_id = app_id


class RowsUnaccounted(Terminal):
    """What came in is not what was written; the batch is not committed."""

    def __init__(self, table: str, batches: tuple[int, int], why: str) -> None:
        super().__init__(
            f"{table}, batches {batches[0]} to {batches[1]}: {why}; nothing was committed", "headrace audit"
        )
        self.table = table
        self.batches = batches


class CompactedRowsDiffer(Terminal):
    """Files that were to stand for others hold another number of rows; they were not committed."""

    def __init__(self, table: str, rows: int, written: int) -> None:
        super().__init__(
            f"{table}: {written} rows were written in the place of {rows}; nothing was committed", "headrace audit"
        )
        self.table = table


class Table:
    """A table as its owner holds it: the log's state in memory, brought on by its own commits alone.

    Opened at a `version` it is for a process that only reads.
    """

    def __init__(self, spec: TableSpec, version: int | None = None) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        # A folder is overwritten when an attempt is repeated. Another process's files, committed or being written by
        # a JVM that outlived its driver, must never be in it.
        self._writer = uuid4().hex[:8]
        self._delta = _open_or_create(spec) if version is None else DeltaTable(str(spec.path), version=version)
        self._load()

    def _load(self) -> None:
        """Take the log's state over from `_delta`."""
        self._files = {file.path: file for file in files_of(self._delta, self.spec)}
        self._committed: dict[str, int] = {}
        self._stale = False

    def _refresh(self) -> None:
        """After a commit that failed: it may be in the log all the same, so what the disk says counts."""
        if self._stale:
            self._delta = DeltaTable(str(self.spec.path))
            self._load()

    def follow(self) -> None:
        """Take over what the table's owner has committed since: for a process that only reads it."""
        with self._lock:
            self._delta.update_incremental()
            self._load()

    @property
    def version(self) -> int:
        """The table's version."""
        return self._delta.version()

    @property
    def table_id(self) -> str:
        """The id that the table got when it was created."""
        return str(self._delta.metadata().id)

    def committed(self, app_id: str) -> int:
        """Return the last version that `app_id` has committed, -1 for none."""
        with self._lock:
            self._refresh()
            if app_id not in self._committed:
                found = self._delta.transaction_version(app_id)
                self._committed[app_id] = -1 if found is None else found
            return self._committed[app_id]

    def files(self) -> list[DataFile]:
        """Return the table's files now."""
        with self._lock:
            self._refresh()
            return list(self._files.values())

    def read(self, spark: SparkSession, files: Iterable[DataFile]) -> DataFrame:
        """Return the rows of exactly these files, without the partition column."""
        return read_files(spark, self.spec.data_schema, [self.spec.path / file.path for file in files])

    def read_batches(self, spark: SparkSession, files: Iterable[DataFile], first: int, last: int) -> DataFrame:
        """Return the rows of batches [first, last] in these files.

        Files that hold no other batch are not filtered: a number in a plan makes Spark generate, compile and warm up
        other code for each batch.
        """
        chosen = list(files)
        rows = self.read(spark, chosen)
        whole = all(file.lies_within("_batch_id", first, last) for file in chosen)
        return rows if whole else rows.where(F.col("_batch_id").between(first, last))

    def write(self, rows: DataFrame, folder: str) -> list[DataFile]:
        """Let Spark write `rows` into `folder` of the table; return the files, which nobody sees before `commit`."""
        place = self.place(folder)
        chosen = rows.select(*self.spec.schema.fieldNames())
        validate_types(self.spec, chosen.schema)
        chosen.write.partitionBy(self.spec.partition).mode("overwrite").parquet(str(place))
        return self.written(place)

    def place(self, folder: str) -> Path:
        """Return where this process writes files of the table that are to be in `folder`."""
        return self.spec.path / f"{folder}-{self._writer}"

    def written(self, place: Path) -> list[DataFile]:
        """Return the files that were written there, one folder a partition, and have rows."""
        found = (written_file(self.spec, path) for path in sorted(place.rglob("*.parquet")))
        return [file for file in found if file.rows > 0]

    def commit(
        self,
        app_id: str,
        version: int,
        metadata: Mapping[str, Any],
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
    ) -> int:
        """Commit files, transaction and metadata in one step; return the table's new version.

        Raises NoLongerOwner when another process has committed with this app id or removed the same files.
        """
        properties = CommitProperties(
            app_transactions=[Transaction(app_id, version)],
            custom_metadata={"userMetadata": json.dumps(metadata, sort_keys=True)},
            max_commit_retries=0,
        )
        with self._lock:
            self._refresh()
            self._write(actions(self.spec, added, removed), properties, app_id, version)
            self._replace(added, removed)
            self._committed[app_id] = version
            return self._delta.version()

    def compact(self, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        """Let files stand for others that hold the same rows; who follows the table's changes sees none.

        RowsRearranged when the rows are not as many. It is nobody's batch, so it has no transaction.
        """
        rows = [sum(file.rows for file in files) for files in (removed, added)]
        if rows[0] != rows[1]:
            raise CompactedRowsDiffer(self.spec.name, *rows)
        properties = CommitProperties(max_commit_retries=0)
        with self._lock:
            self._refresh()
            self._stale = True
            try:
                self._create(actions(self.spec, added, removed, data_change=False), properties)
            except CommitFailedError as error:
                raise OwnershipLost(self.spec.name, "maintenance", str(error)) from error
            self._replace(added, removed)
            self._stale = False

    def vacuum(self, keep_versions: Sequence[int], retention: timedelta = RETENTION) -> int:
        """Remove files that no version in `keep_versions` has, nor any of the last `retention`; return how many.

        Files of an attempt that never committed are among them once they are as old.
        """
        with self._lock:
            self._refresh()
            self._stale = True
            gone = self._delta.vacuum(
                retention_hours=int(retention / timedelta(hours=1)),
                dry_run=False,
                full=True,
                enforce_retention_duration=False,
                keep_versions=sorted({self._delta.version(), *keep_versions}),
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
            self._delta.update_incremental()
            self._load()
            return len(gone)

    def _replace(self, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        for file in removed:
            self._files.pop(file.path, None)
        self._files |= {file.path: file for file in added}

    def _create(self, actions: list[AddAction | RemoveAction], properties: CommitProperties) -> None:
        self._delta.create_write_transaction(
            actions,
            "append",
            self._delta.schema(),
            partition_by=[self.spec.partition],
            commit_properties=properties,
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
        self._delta.update_incremental()

    def _write(
        self, actions: list[AddAction | RemoveAction], properties: CommitProperties, app_id: str, version: int
    ) -> None:
        try:
            self._create(actions, properties)
        except CommitFailedError as error:
            raise OwnershipLost(self.spec.name, app_id, str(error)) from error
        except (DeltaError, OSError):
            # On a full disk, for one, the commit can be written and the log's checkpoint after it not.
            self._stale = True
            self._refresh()
            if self._delta.transaction_version(app_id) != version:
                raise


def validate_types(spec: TableSpec, schema: StructType) -> None:
    """The rows' types are the table's: Parquet would take others, and the next reader would fail."""
    for wanted, found in zip(spec.schema.fields, schema.fields, strict=True):
        if found.dataType.simpleString() != wanted.dataType.simpleString():
            is_, was = found.dataType.simpleString(), wanted.dataType.simpleString()
            raise Terminal(f"{spec.name}: column {wanted.name} became {is_}, the table has {was}", "headrace status")


def read_files(spark: SparkSession, schema: StructType, paths: Sequence[Path]) -> DataFrame:
    """Return the rows of exactly these Parquet files; without files, no rows."""
    if not paths:
        return no_rows(spark, schema)
    return spark.read.schema(schema).parquet(*[str(path) for path in paths])


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return no rows with these columns, known as empty to the planner (an empty list would start Python workers)."""
    return spark.range(0).select(*[F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields])


def partitioned_schema(schema: StructType, partition: str) -> StructType:
    """Return `schema`, all nullable as files are, with the string partition column at the end."""
    fields = [StructField(f.name, f.dataType, True) for f in schema.fields if f.name != partition]
    return StructType(fields).add(partition, "string")


def _open_or_create(spec: TableSpec) -> DeltaTable:
    try:
        return DeltaTable(str(spec.path))
    except TableNotFoundError:
        bounded = {"delta.dataSkippingStatsColumns": ",".join(spec.bounded)}
        schema = Schema.from_json(spec.schema.json())
        return DeltaTable.create(
            str(spec.path), schema, partition_by=[spec.partition], name=spec.name, configuration=PROPERTIES | bounded
        )
    except DeltaError as error:
        raise Terminal(f"{spec.name} at {spec.path} cannot be opened: {error}", "headrace audit") from error
