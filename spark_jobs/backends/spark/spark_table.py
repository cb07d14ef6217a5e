"""A table whose rows Spark writes: each write is one commit of delta-spark with the owner's transaction.

*Guarantee:* a write that another owner's claim has overtaken commits nothing and raises OwnershipLost. delta-spark
skips a write whose transaction is not newer than the stored one and returns as after a success, and it may fail after
its commit: the transaction in the log decides, never the call's end.
*After a crash:* files without a commit stay in the table's folder, as those of the other backend.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DecimalType, TimestampType

from include.ground.app_ids import OWNER_APP_ID, owner_epoch, require_ownership
from include.ground.delta_log import commit_content, has_commit
from spark_jobs.backends.backend import Metadata, Transaction
from spark_jobs.tables.data_files import Bound, DataFile, TableSpec, finished_files, widened, written_file
from spark_jobs.tables.delta_table import OwnershipLost, Table, validate_types

if TYPE_CHECKING:
    from delta.tables import DeltaTable as SparkDelta

CONCURRENT_TRANSACTION = "ConcurrentTransactionException"
STALE = "_stale"
"""In the source of a replacement: whether a row names rows to remove, or is a row to add."""
TXN_APP_ID, TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class SparkTable(Table):
    """The state of a table's log, as `Table`; its verbs take frames. It must be claimed before its first write."""

    needs_claim = True

    def written_files(self, path: Path) -> list[DataFile]:
        """Return the files below `path` by their footers; executors name them, so no byte of theirs is read here."""
        found = (written_file(self.spec, file) for file in finished_files(path))
        return [file for file in found if file.rows > 0]

    def append(self, rows: DataFrame, transaction: Transaction, metadata: Metadata) -> None:
        """Commit rows with the table's columns. Raises OwnershipLost."""
        chosen = rows.select(*self.spec.schema.fieldNames())
        validate_types(self.spec, chosen.schema)
        with self._writing(transaction, metadata) as (version, stated):
            options = {"txnAppId": OWNER_APP_ID, "txnVersion": str(version), "userMetadata": stated}
            chosen.write.format("delta").mode("append").options(**options).save(str(self.spec.path))

    def replace(
        self, source: DataFrame, on: Sequence[str], transaction: Transaction, metadata: Metadata, *within: Column
    ) -> None:
        """Remove the rows that equal a row of `source` marked STALE in the columns `on`, and add its other rows.

        `within`: conditions on the columns of `t`, which hold for all rows to remove: other files are not read.
        """
        validate_types(self.spec, source.select(*self.spec.schema.fieldNames()).schema)
        same = [F.col(f"t.`{name}`").eqNullSafe(F.col(f"s.`{name}`")) for name in on]
        matched = reduce(and_, [*within, *same], F.col(f"s.{STALE}"))
        values: dict[str, str | Column] = {f"`{name}`": F.col(f"s.`{name}`") for name in self.spec.schema.fieldNames()}
        with self._statement(source.sparkSession, transaction, metadata):
            merge = _by_spark(source.sparkSession, self.spec.path).alias("t").merge(source.alias("s"), matched)
            merge.whenMatchedDelete().whenNotMatchedInsert(f"not s.{STALE}", values).execute()

    def delete(self, session: SparkSession, condition: str, transaction: Transaction, metadata: Metadata) -> None:
        """Remove the rows for which a condition holds."""
        with self._statement(session, transaction, metadata):
            _by_spark(session, self.spec.path).delete(condition)

    @contextmanager
    def _statement(self, session: SparkSession, transaction: Transaction, metadata: Metadata) -> Iterator[None]:
        """Execute a statement, which takes its transaction from the session, and from no other's.

        A configuration that stayed would have the session's next statement skipped.
        """
        with self._writing(transaction, metadata) as (version, stated):
            configured = {TXN_APP_ID: OWNER_APP_ID, TXN_VERSION: str(version), USER_METADATA: stated}
            try:
                for key, value in configured.items():
                    session.conf.set(key, value)
                yield
            finally:
                for key in configured:
                    session.conf.unset(key)

    @contextmanager
    def _writing(self, transaction: Transaction, metadata: Metadata) -> Iterator[tuple[int, str]]:
        """Yield the owner's transaction and the metadata for one commit, and follow the log to it."""
        with self._lock:
            self._refresh()
            if self._owner is None:
                raise OwnershipLost(self.spec.name, transaction.app_id, "this process has not claimed it")
            stated, action = self._next_transaction(transaction.app_id, transaction.version, metadata)
            version = int(action["txn"]["version"])
            require_ownership()
            try:
                yield version, stated
            except (Py4JJavaError, PySparkException) as error:
                if not self._has_followed(transaction, version):
                    if CONCURRENT_TRANSACTION in f"{type(error).__name__} {error}":
                        raise OwnershipLost(self.spec.name, transaction.app_id, "another owner claimed it") from error
                    raise
            else:
                if not self._has_followed(transaction, version):
                    raise OwnershipLost(self.spec.name, transaction.app_id, "the log has a later owner's transaction")

    def _has_followed(self, transaction: Transaction, version: int) -> bool:
        """Advance to the newest commit; return whether the log has the owner's transaction. Raises OwnershipLost."""
        found = False
        while has_commit(self.spec.path, self._version + 1):
            content = commit_content(self.spec.path, self._version + 1)
            logged = [json.loads(line) for line in content.splitlines() if line.strip()]
            owners = [each["txn"]["version"] for each in logged if each.get("txn", {}).get("appId") == OWNER_APP_ID]
            if owners and owner_epoch(owners[0]) != owner_epoch(version):
                # Its commits are not followed: a later commit of this process must find its version taken.
                why = f"an owner of epoch {owner_epoch(owners[0])} has claimed it"
                raise OwnershipLost(self.spec.name, transaction.app_id, why)
            self._version += 1
            removed = [DataFile(unquote(each["remove"]["path"]), "", 0, 0) for each in logged if "remove" in each]
            self._replace([logged_file(self.spec, each["add"]) for each in logged if "add" in each], removed)
            if version in owners:
                self._note_transaction(transaction.app_id, transaction.version)
                found = True
        if self._checkpoints is not None:
            self._checkpoints.advance(self._version)
        return found


def own(table: Table) -> SparkTable:
    """Return a table as Spark's backend has opened it."""
    assert isinstance(table, SparkTable), f"{table.spec.name} was opened by another backend"
    return table


def logged_file(spec: TableSpec, add: Mapping[str, Any]) -> DataFile:
    """Return a file as a commit names it, with the bounds of the columns that a table declares."""
    stats = json.loads(add["stats"]) if add.get("stats") else {}
    low, high = stats.get("minValues", {}), stats.get("maxValues", {})
    return DataFile(
        unquote(add["path"]),
        add["partitionValues"][spec.partition],
        stats["numRecords"],
        add["size"],
        dict(_bounds(spec, low)),
        {name: widened(bound) for name, bound in _bounds(spec, high)},
        {name: count for name, count in stats.get("nullCount", {}).items() if name in spec.bounded},
    )


def _bounds(spec: TableSpec, found: Mapping[str, Any]) -> Iterator[tuple[str, Bound]]:
    for name in spec.bounded:
        if found.get(name) is not None and not isinstance(spec.schema[name].dataType, DecimalType):
            yield name, _bound(spec.schema[name].dataType, found[name])


def _bound(kind: DataType, value: Any) -> Bound:
    if isinstance(kind, TimestampType):
        return datetime.fromisoformat(value).astimezone(UTC)
    return date.fromisoformat(value) if isinstance(kind, DateType) else value


def _by_spark(session: SparkSession, path: Path) -> SparkDelta:
    # Imported late: a driver of the local backend needs no delta-spark.
    from delta.tables import DeltaTable

    return DeltaTable.forPath(session, str(path))
