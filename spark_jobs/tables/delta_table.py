"""A Delta table: Spark or this process writes files (layers/adr-0002), the owner commits them (adr-0004).

A commit of added files, removed files, transaction (app id, version) and metadata is atomic. An app id and version
commit at most once. A process that no longer owns the table is refused. Files without a commit stay in the table's
folder after a crash, invisible to readers, until `headrace maintain` deletes them.
"""

from __future__ import annotations

import json
import sys
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from include.ground.app_ids import OWNER_APP_ID, owner_epoch, owner_number, owner_version, require_ownership
from include.ground.delta_log import (
    LOG,
    TRANSACTION,
    TRANSACTIONS,
    Commit,
    checkpoint_file,
    fenced_transactions,
    found_transaction,
    has_commit,
    open_delta,
    refuse_lost_commits,
    transaction_commit,
)
from include.ground.durable_files import name_by_checksum, sync_files
from include.ground.errors import Terminal
from include.ground.stored_path import delta_options, remove_tree
from spark_jobs.tables.commit_log import Action, SupersededCheckpoints, VersionTaken, put_commit
from spark_jobs.tables.data_files import (
    BATCH,
    DataFile,
    TableSpec,
    actions,
    batch_rows,
    files_of,
    finished_files,
    read_files,
    write_files,
    written_file,
)
from spark_jobs.tables.log_lines import error_reason, log_line


class FileIndex:
    """Files by path; `rows` is the number of their rows."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self._files = {file.path: file for file in files}
        self._order = sorted(map(_key, self._files.values()))
        self.rows = sum(file.rows for file in self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[DataFile]:
        return iter(self._files.values())

    def add(self, file: DataFile) -> None:
        """Add a file, or replace the one of the same path."""
        self.remove(file.path)
        self._files[file.path] = file
        self.rows += file.rows
        insort(self._order, _key(file))

    def remove(self, path: str) -> None:
        """Remove a file, if the table has it."""
        file = self._files.pop(path, None)
        if file is not None:
            self.rows -= file.rows
            del self._order[bisect_left(self._order, _key(file))]

    def of_batches(self, first: int, last: int) -> list[DataFile]:
        """Return the files that may have rows of batches [first, last]; skips those that end before them."""
        start = bisect_left(self._order, (first, ""))
        files = (self._files[path] for _, path in islice(self._order, start, None))
        return [file for file in files if file.overlaps(BATCH, first, last)]


def _key(file: DataFile) -> tuple[int, str]:
    """Return the file's last batch and path; a file without bounds sorts last, since it may have any batch."""
    known = BATCH in file.low and BATCH in file.high
    return (int(str(file.high[BATCH])) if known else sys.maxsize, file.path)


# delta-rs never cleans the log (adr-0002). The owner deletes old files as `retention` of pipeline.yaml says; a log
# checkpoint names them for this long, and a writer of another kind must leave them meanwhile.
TOMBSTONE_RETENTION = timedelta(days=1)
PROPERTIES = {
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": f"interval {TOMBSTONE_RETENTION.days} days",
    "delta.checkpointInterval": "25",
    "delta.enableDeletionVectors": "false",
}


RESTATED = 50
"""Of this many commits of a fenced table one restates all transactions: progress is found without reading more."""


class OwnershipLost(Terminal):
    """Another process has committed to the table: this process no longer owns it and must stop."""

    def __init__(self, table: str, app_id: str, why: str) -> None:
        super().__init__(
            f"{table}: the commit of {app_id} was refused, another process owns this table now ({why}); "
            "nothing of this attempt is visible",
            "headrace status",
        )
        self.table = table
        self.app_id = app_id


class RowsUnaccounted(Terminal):
    """The written rows do not match the batch's records; the batch is not committed."""

    def __init__(self, table: str, batches: tuple[int, int], why: str) -> None:
        super().__init__(
            f"{table}, batches {batches[0]} to {batches[1]}: {why}; nothing was committed", "headrace audit"
        )
        self.table = table
        self.batches = batches


class CompactedRowsDiffer(Terminal):
    """Compacted files have another number of rows than the files they replace; they were not committed."""

    def __init__(self, table: str, rows: int, written: int) -> None:
        super().__init__(
            f"{table}: compaction wrote {written} rows instead of {rows}; nothing was committed", "headrace audit"
        )
        self.table = table


class Table:
    """A table and its log state in memory, which the owner's own commits advance.

    A process that only reads opens it at a `version`.
    """

    def __init__(self, spec: TableSpec, version: int | None = None) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        # A repeated attempt overwrites its folder, which must never hold another process's files: committed ones, or
        # those of a JVM that outlived its driver.
        self._writer = uuid4().hex[:8]
        self._versions: dict[str, tuple[int, int]] = {}
        """By app id: the transaction version and the table version of its last commit by this process."""
        self._owner: int | None = None
        """The owner's transaction of its last commit; None: the table is not claimed."""
        self._may_commit = version is None
        self._delta = _open_or_create(spec) if version is None else open_delta(spec.path, version)
        refuse_lost_commits(spec.path, self._delta.version())
        self._load()
        self._checkpoints = None if version is not None else self._superseded_checkpoints()

    def _superseded_checkpoints(self) -> SupersededCheckpoints:
        # 100 is delta-rs's own interval, of a table that was made without one.
        interval = int(self._delta.metadata().configuration.get("delta.checkpointInterval", 100))
        return SupersededCheckpoints(self.spec.path, self.version, interval)

    def _load(self) -> None:
        """Copy the log's state from `_delta`, which is behind after commits of this process."""
        self._version = self._delta.version()
        self._files = FileIndex(files_of(self._delta, self.spec))
        self._was_fenced = self._may_commit and self._delta.transaction_version(OWNER_APP_ID) is not None
        self._committed: dict[str, int] = {}
        self._stale = False

    def _refresh(self) -> None:
        """Reload after a failed commit call, since the log may contain the commit. Raises OwnershipLost."""
        if self._stale:
            self._delta = open_delta(self.spec.path)
            self._load()
            if self._owner is not None:
                self._follow_owner()

    def _follow_owner(self) -> None:
        """Continue after the owner's last transaction in the log, which may be that of the failed call."""
        known, mine = self._transaction_version(OWNER_APP_ID) or 0, owner_epoch(self._owner or 0)
        if owner_epoch(known) != mine:
            self._stale = True
            raise OwnershipLost(self.spec.name, OWNER_APP_ID, f"epoch {owner_epoch(known)} has claimed it")
        self._owner = known

    def advance(self) -> None:
        """Advance to the owner's newest commit, in a process that only reads the table."""
        with self._lock:
            self._delta.update_incremental()
            self._load()

    @property
    def version(self) -> int:
        """The version of the log state in memory."""
        return self._version

    @property
    def table_id(self) -> str:
        """The id that Delta assigned when the table was created."""
        return str(self._delta.metadata().id)

    def committed(self, app_id: str) -> int:
        """Return the last transaction version of `app_id`, -1 for none."""
        with self._lock:
            self._refresh()
            if app_id not in self._committed:
                found = self._transaction_version(app_id)
                self._committed[app_id] = -1 if found is None else found
            return self._committed[app_id]

    def _transaction_version(self, app_id: str) -> int | None:
        try:
            return found_transaction(self._delta, self.spec.path, app_id)
        except DeltaError:
            # It reads the checkpoint that the snapshot was opened with, which the owner may have removed since.
            self._delta = open_delta(self.spec.path, self._version)
            return found_transaction(self._delta, self.spec.path, app_id)

    def claim(self, epoch: int) -> None:
        """Fence the commits of earlier owners, also those in flight: the claim changes what each of them depends on.

        What was committed before is known afterwards. Raises OwnershipLost when an owner of this epoch or a later one
        has claimed the table.
        """
        with self._lock:
            while True:
                self._delta = open_delta(self.spec.path)
                self._load()
                known = self._transaction_version(OWNER_APP_ID) or 0
                if owner_epoch(known) >= epoch:
                    raise OwnershipLost(self.spec.name, OWNER_APP_ID, f"epoch {owner_epoch(known)} has claimed it")
                self._owner = owner_version(epoch, owner_number(known))
                restated = {TRANSACTIONS: fenced_transactions(self.spec.path, self._version) if known else {}}
                claim = {"txn": {"appId": OWNER_APP_ID, "version": self._owner}}
                with suppress(VersionTaken):
                    put_commit(self.spec.path, self._version + 1, restated, [claim], durable=self.spec.durable)
                    self._version += 1
                    return

    @property
    def is_fenced(self) -> bool:
        """Whether an owner has claimed the table, so that each commit needs the owner's transaction."""
        return self._owner is not None or self._was_fenced

    @property
    def needs_claim(self) -> bool:
        """Whether an owner must claim the table before its first commit."""
        return self.is_fenced

    @property
    def claimed_epoch(self) -> int:
        """The epoch of the owner that has claimed the table; 0: none has."""
        with self._lock:
            return owner_epoch(self._owner or self._transaction_version(OWNER_APP_ID) or 0)

    def _next_transaction(self, app_id: str, version: int, metadata: Mapping[str, Any]) -> tuple[str, Action]:
        """Return userMetadata and transaction of a commit: of a table that is claimed, the owner's."""
        if self._owner is None:
            if self.is_fenced:
                raise OwnershipLost(self.spec.name, app_id, "an owner has claimed it, and this process has not")
            return json.dumps(metadata, sort_keys=True), {"txn": {"appId": app_id, "version": version}}
        following = self._owner + 1
        fenced = {**metadata, TRANSACTION: [app_id, version]}
        if owner_number(following) % RESTATED == 0:
            fenced[TRANSACTIONS] = fenced_transactions(self.spec.path, self._version)
        return json.dumps(fenced, sort_keys=True), {"txn": {"appId": OWNER_APP_ID, "version": following}}

    def _note_transaction(self, app_id: str, version: int) -> None:
        """Note a commit of this process, which is the table's newest version."""
        self._owner = None if self._owner is None else self._owner + 1
        self._committed[app_id] = version
        self._versions[app_id] = version, self._version

    def files(self) -> list[DataFile]:
        """Return the table's current files."""
        with self._lock:
            self._refresh()
            return list(self._files)

    def batch_files(self, first: int, last: int) -> list[DataFile]:
        """Return the current files that may hold rows of batches [first, last]; compacted ones also hold others."""
        with self._lock:
            self._refresh()
            return self._files.of_batches(first, last)

    def count_rows(self, first: int, last: int) -> int:
        """Return how many rows of batches [first, last] it has; reads only files that have other batches too."""
        return self.rows_of_batches(self.batch_files(first, last), first, last)

    def rows_of_batches(self, files: Sequence[DataFile], first: int, last: int) -> int:
        """Return how many rows of batches [first, last] some of its files have."""
        mixed = [file for file in files if not file.lies_within(BATCH, first, last)]
        whole = sum(file.rows for file in files) - sum(file.rows for file in mixed)
        return whole + batch_rows(self.spec.path, mixed, first, last).total()

    @property
    def rows(self) -> int:
        """The number of rows in the table's current files."""
        with self._lock:
            self._refresh()
            return self._files.rows

    @property
    def file_count(self) -> int:
        """The number of the table's current files."""
        return len(self._files)

    def read(self, spark: SparkSession, files: Iterable[DataFile]) -> DataFrame:
        """Return the rows of exactly these files, without the partition column."""
        return read_files(spark, self.spec.data_schema, [self.spec.path / file.path for file in files])

    def read_batches(self, spark: SparkSession, files: Iterable[DataFile], first: int, last: int) -> DataFrame:
        """Return the rows of batches [first, last] in these files.

        Files without other batches are not filtered: a batch number in the query plan makes Spark generate and
        compile new code for each batch.
        """
        chosen = list(files)
        rows = self.read(spark, chosen)
        is_exact = all(file.lies_within("_batch_id", first, last) for file in chosen)
        return rows if is_exact else rows.where(F.col("_batch_id").between(first, last))

    def write(self, rows: DataFrame, folder: str) -> list[DataFile]:
        """Write `rows` into `folder` of the table with Spark; return the files, invisible to readers until `commit`."""
        path = self.attempt_folder(folder)
        chosen = rows.select(*self.spec.schema.fieldNames())
        validate_types(self.spec, chosen.schema)
        write_files(chosen, path, "overwrite", self.spec.partition, self.spec.writing.spark_options)
        files = self.written_files(path)
        if not files:
            remove_tree(path)
        return files

    def attempt_folder(self, folder: str) -> Path:
        """Return the path of `folder` for this process's files."""
        return self.spec.path / f"{folder}-{self._writer}"

    def written_files(self, path: Path) -> list[DataFile]:
        """Return the files below `path`, one folder per partition, without empty ones; rename each by its checksum."""
        found = (written_file(self.spec, name_by_checksum(file)) for file in finished_files(path))
        return [file for file in found if file.rows > 0]

    def commit(
        self,
        app_id: str,
        version: int,
        metadata: Mapping[str, Any],
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
    ) -> int:
        """Commit files, transaction and metadata atomically; return the table's new version.

        Raises OwnershipLost when another process has committed with this app id or removed the same files.
        """
        self._sync_files(added)
        with self._lock:
            self._refresh()
            stated, transaction = self._next_transaction(app_id, version, metadata)
            self._put(app_id, {"userMetadata": stated}, added, removed, transaction)
            self._note_transaction(app_id, version)
            return self._version

    def commit_of(self, app_id: str, version: int) -> Commit:
        """Return a transaction's commit; reads one file when this process made it. Raises CommitMissing."""
        return transaction_commit(self.spec.path, app_id, version, self.version_of(app_id, version))

    def version_of(self, app_id: str, version: int) -> int | None:
        """Return the table version of this process's last commit of `app_id`, None when it is another transaction's."""
        with self._lock:
            transaction, found = self._versions.get(app_id, (None, None))
            return found if transaction == version else None

    def compact(self, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        """Replace files by others with the same rows. `dataChange=false`: change-feed readers see no rows.

        The commit belongs to no batch, so it has no transaction. Raises CompactedRowsDiffer when the row counts
        differ, OwnershipLost when another process has committed.
        """
        rows = [sum(file.rows for file in files) for files in (removed, added)]
        if rows[0] != rows[1]:
            raise CompactedRowsDiffer(self.spec.name, *rows)
        self._sync_files(added)
        with self._lock:
            self._refresh()
            self._put("maintenance", {}, added, removed, data_change=False)

    def _sync_files(self, files: Sequence[DataFile]) -> None:
        """Force files to disk before the commit that names them."""
        if self.spec.durable:
            sync_files([self.spec.path / file.path for file in files], self.spec.path)

    def _put(
        self,
        committer: str,
        facts: Mapping[str, str],
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        *transaction: Action,
        data_change: bool = True,
    ) -> None:
        """Commit the next version; its transaction comes last. Raises OwnershipLost when another process has it."""
        content = [*actions(self.spec, added, removed, data_change=data_change), *transaction]
        require_ownership()
        self._stale = True
        try:
            put_commit(self.spec.path, self._version + 1, facts, content, durable=self.spec.durable)
        except VersionTaken as error:
            # A reload would make a former owner current again: it stays refused.
            self._stale = False
            raise OwnershipLost(self.spec.name, committer, str(error)) from error
        self._version += 1
        self._replace(added, removed)
        self._write_checkpoint()
        self._stale = False

    def _write_checkpoint(self) -> None:
        """Write a checkpoint of the log when one is due, and remove superseded ones."""
        assert self._checkpoints is not None
        if self._checkpoints.is_due(self._version):
            try:
                self._delta.update_incremental()
                self._delta.create_checkpoint()
                self._sync_checkpoint()
            except (DeltaError, OSError) as error:
                # The disk may be full: the commit counts, and the next checkpoint has what this one lacks.
                following = self._checkpoints.following(self._version)
                log_line(
                    f"{self.spec.name}: no checkpoint of the log at version {self._version} ({error_reason(error)});"
                    f" the commit counts, the next checkpoint is at version {following}"
                )
        self._checkpoints.advance(self._version)

    def _sync_checkpoint(self) -> None:
        """Force the newest checkpoint to disk."""
        if self.spec.durable:
            log = self.spec.path / LOG
            sync_files([checkpoint_file(self.spec.path, self._version), log / "_last_checkpoint"], log)

    def _replace(self, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        for file in removed:
            self._files.remove(file.path)
        for file in added:
            self._files.add(file)


def validate_types(spec: TableSpec, schema: StructType) -> None:
    """Raise Terminal unless the rows have the table's types: Parquet accepts others, and the next reader would fail."""
    for expected, found in zip(spec.schema.fields, schema.fields, strict=True):
        if found.dataType.simpleString() != expected.dataType.simpleString():
            actual, declared = found.dataType.simpleString(), expected.dataType.simpleString()
            raise Terminal(
                f"{spec.name}: column {expected.name} is {actual}, the table has {declared}",
                "a column of another type needs tables of its own: headrace release run",
            )


def partitioned_schema(schema: StructType, partition: str) -> StructType:
    """Return `schema` with all columns nullable, as in files, and the string partition column at the end."""
    return nullable_columns(field for field in schema.fields if field.name != partition).add(partition, "string")


def nullable_columns(fields: Iterable[StructField]) -> StructType:
    """Return columns as files have them: each may be null."""
    return StructType([StructField(field.name, field.dataType, True) for field in fields])


def _open_or_create(spec: TableSpec) -> DeltaTable:
    try:
        return open_delta(spec.path)
    except TableNotFoundError:
        bounded = {"delta.dataSkippingStatsColumns": ",".join(spec.bounded)}
        return DeltaTable.create(
            str(spec.path),
            Schema.from_json(spec.schema.json()),
            partition_by=[spec.partition],
            name=spec.name,
            configuration=PROPERTIES | bounded,
            storage_options=delta_options(spec.path),
        )
    except DeltaError as error:
        # Of a store that does not answer: StoreUnavailable.
        has_commit(spec.path, 0)
        remedy = "headrace repair DATASET   (removes what a power cut left at the end of the log)"
        raise Terminal(f"{spec.name} at {spec.path} cannot be opened: {error}", remedy) from error
