"""Bronze: every Kafka record, byte for byte (docs/architecture.md §4, step 3).

Batch N is one commit, and the same N never commits twice. After a crash N runs again with the same offsets; if it was
committed, its files are used unchanged. No key and no value is parsed.
A batch's commit also says which partitions are idle at its end, so that streams, rebuilds and audits compute the same
watermark from the commits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from include.declare.event_times import IDLE
from include.declare.file_sets import FileSet
from include.ground.app_ids import quiet_app_id
from include.ground.delta_log import batch_commit
from include.ground.kafka_address import source_options
from include.ground.paths import bronze_path
from include.ground.record_coordinates import (
    FIRST_DATE,
    FIRST_FILE_SET,
    LAST_DATE,
    LOADED,
    is_file_set,
    kafka_ends,
    offset_in_set,
)
from include.ground.settings import Settings, reject_unsafe
from include.read.record_files import payloads
from include.read.record_stores import file_changed, how_changed
from spark_jobs.tables.data_files import DataFile, ParquetWriting, TableSpec
from spark_jobs.tables.delta_table import RowsUnaccounted, Table
from spark_jobs.tables.failpoints import Step, pass_step

WOKEN = "woken"


@dataclass(frozen=True)
class IdleSet:
    """The partitions idle at the end of a batch; `woken`: the last batch at which one ceased to be idle, or -1."""

    partitions: frozenset[int] = frozenset()
    woken: int = -1

    def after(self, number: int, partitions: Collection[int]) -> IdleSet:
        """Return the set at the end of batch `number`, at which these partitions are idle."""
        fresh = frozenset(partitions)
        return IdleSet(fresh, self.woken if self.partitions <= fresh else number)

    def with_new(self, partitions: Collection[int]) -> IdleSet:
        """Return the set with partitions that were added to the topic: they have brought nothing so far."""
        return replace(self, partitions=self.partitions.union(partitions))

    @property
    def metadata(self) -> dict[str, Any]:
        return {IDLE: sorted(self.partitions), **({WOKEN: self.woken} if self.woken >= 0 else {})}


def read_idle_set(metadata: Mapping[str, Any]) -> IdleSet:
    """Return the set that a commit's metadata has; earlier versions knew no idle partitions."""
    return IdleSet(frozenset(map(int, metadata.get(IDLE, ()))), int(metadata.get(WOKEN, -1)))


def awake_partitions(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Return the partitions that are not idle; none for a commit of an earlier version, which does not know."""
    if IDLE not in metadata:
        return frozenset()
    idle = read_idle_set(metadata).partitions
    return frozenset(kafka_ends(metadata["offsets"])) - idle


def idle_set_at(bronze: Table, batch: int) -> IdleSet:
    """Return the set at the end of a batch of bronze."""
    return read_idle_set(batch_commit(bronze.spec.path, batch).facts)


def last_before_waking(bronze: Table, first: int, last: int) -> int:
    """Return the last batch up to `last` before a partition wakes that was idle after batch `first` or a later one.

    A run ends there: what was complete with the partition idle stays so, and after the run this can no longer be seen.
    """
    while first < last and (woken := idle_set_at(bronze, last).woken) > first:
        last = woken - 1
    return last


@dataclass(frozen=True)
class ReleasedBronze:
    """Bronze as one release has it: all records of the topic, and those of the sets of files that it includes."""

    table: Table
    file_sets: frozenset[int]

    def batch_files(self, first: int, last: int) -> list[DataFile]:
        """Return the files that may hold records of batches [first, last]; each file has records of one partition."""
        found = ((file, int(str(file.low["partition"]))) for file in self.table.batch_files(first, last))
        return [file for file, partition in found if partition < FIRST_FILE_SET or partition in self.file_sets]

    def count_rows(self, first: int, last: int) -> int:
        return self.table.rows_of_batches(self.batch_files(first, last), first, last)


SCHEMA = (
    T.StructType()
    .add("topic", T.StringType())
    .add("partition", T.IntegerType())
    .add("offset", T.LongType())
    .add("timestamp", T.TimestampType())
    .add("timestamp_type", T.IntegerType())
    .add("key", T.BinaryType())
    .add("value", T.BinaryType())
    .add("headers", T.ArrayType(T.StructType().add("key", T.StringType()).add("value", T.BinaryType())))
    .add("_batch_id", T.LongType())
    .add("_date", T.StringType())
)
FOLLOWS = "follows"
"""In the commit of a batch that Spark did not plan: the number of the last one that it had."""
FOLLOWED = "followed"
"""In the commit of a batch of files: the app id of that one."""
BOUNDED = ("partition", "offset", "timestamp", "_batch_id")
KAFKA_COLUMNS = [name for name in SCHEMA.fieldNames() if not name.startswith("_")]
# Nearly every payload and offset is different: a dictionary of them is built and discarded, and nothing reads the
# smallest payload. zstd takes as long as snappy, for a third of the bytes.
WRITING = ParquetWriting(distinct=("value", "offset"), unbounded=("value",), compression="zstd")
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
GREGORIAN = datetime(1582, 10, 15, tzinfo=UTC)
OVERFLOW = "long overflow"
"""What Spark's Kafka source says about a time that has no microseconds."""


ArrowRecords = Callable[[Path], list[Path]]
"""Adds records to a folder as Arrow files with the columns of Spark's Kafka source; returns these files."""


SOURCE = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of Spark's Kafka source."""


RENAMED = {"timestampType": "timestamp_type"}
"""Columns of the Kafka source that have another name in bronze."""


@dataclass(frozen=True)
class KafkaRecords:
    """The records of a batch: `rows` are read by executors with Spark's source, or `here` in this process.

    Spark's source fails on a time that is not in milliseconds, and gives times before 1582 another number.
    """

    rows: DataFrame
    here: ArrowRecords


@dataclass(frozen=True)
class LoadedRows:
    """The records of offsets [start, end) of a set of files; `spans`: by file, its rows [first, end) that these are."""

    files: FileSet
    start: int
    end: int
    spans: Mapping[int, tuple[int, int]]
    records: DataFrame | ArrowRecords

    @property
    def count(self) -> int:
        return sum(end - first for first, end in self.spans.values())

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Which rows of which files these are, for the commit."""
        files = self.files.files
        return [
            {"file": files[n].address, "sha256": files[n].sha256, "rows": list(span)} for n, span in self.spans.items()
        ]


LoadedBatches = Iterator[LoadedRows]


def refuse_changed(settings: Settings, files: FileSet, numbers: Iterable[int]) -> None:
    """Raise `file-changed` unless these files of a set have the bytes that were planned."""
    for file in (files.files[number] for number in numbers):
        if how := how_changed(settings, *astuple(file)):
            raise file_changed(file.address, how)


def file_records(settings: Settings, files: FileSet, number: int, begin: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file of a set from row `begin` on, as SOURCE. Raises `files-unreadable`."""
    row = 0
    for values in payloads(settings, files.files[number].address, files.form, files.literals):
        row, first = row + len(values), max(row, begin)
        if first < row:
            yield _records(files, number, first, values[first - row :])


def _records(files: FileSet, number: int, row: int, values: pa.Array) -> pa.RecordBatch:
    """Return payloads that follow one another, from `row` of a file on, as records."""
    rows, first = len(values), offset_in_set(number, row)
    constant = {
        "topic": files.files[number].address,
        "partition": files.partition,
        "timestamp": files.planned_at,
        "timestampType": LOADED,
    }
    columns = {"value": values, "offset": pa.array(np.arange(first, first + rows))}
    columns |= {name: pa.repeat(pa.scalar(value), rows) for name, value in constant.items()}
    arrays = [
        columns[each.name].cast(each.type) if each.name in columns else pa.nulls(rows, each.type) for each in SOURCE
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SOURCE)


@dataclass(frozen=True)
class BronzeBatch:
    """The content of batch `number`: half-open offset ranges per partition, and its writer."""

    number: int
    app_id: str
    transaction: int
    offsets: Mapping[int, tuple[int, int]]
    facts: Mapping[str, Any]
    """dataset, topic, topic_id, query_id, epoch, code: go into the commit as they are."""
    before: IdleSet = IdleSet()
    """The idle partitions at the end of the batch before."""
    quiet: frozenset[int] = frozenset()
    """Partitions that are idle at the end of this batch unless it has records of them."""
    lagging: frozenset[int] = frozenset()
    """Partitions of which Kafka has more than this batch ends with: they are not idle, also if they were before."""

    def idle_set(self, brought: Collection[int]) -> IdleSet:
        """Return the idle partitions at the end of the batch, which has records of the partitions `brought`.

        One that never had a record is idle, also if the batch before, of an earlier version, does not say so.
        """
        before = self.before.with_new(
            [partition for partition, (start, _) in self.offsets.items() if not (start or is_file_set(partition))]
        )
        return before.after(self.number, (before.partitions | self.quiet) - self.lagging - set(brought))


def bronze_spec(settings: Settings, dataset: str) -> TableSpec:
    """Return what `bronze.<dataset>` is."""
    path = bronze_path(settings, dataset)
    return TableSpec(f"bronze.{dataset}", path, SCHEMA, "_date", BOUNDED, settings.is_power_safe, WRITING)


def commit_batch(
    table: Table, batch: BronzeBatch, write: Callable[[], list[DataFile]], validate_source: Callable[[], object]
) -> list[DataFile]:
    """Commit the files that `write` writes, unless the batch is committed; return the batch's files.

    `validate_source` runs between the two: the records are read by then, and its error prevents the commit.
    Raises RowsUnaccounted when a record lies outside the batch's ranges, OwnershipLost when another process
    has committed under this app id.
    """
    if table.committed(batch.app_id) >= batch.transaction:
        return table.batch_files(batch.number, batch.number)
    pass_step(Step.BRONZE_STARTED, batch.number)
    files = write()
    validate_ranges(table.spec.name, files, batch)
    validate_source()
    pass_step(Step.BRONZE_WRITTEN, batch.number)
    table.commit(batch.app_id, batch.transaction, batch_metadata(table, files, batch), files)
    pass_step(Step.BRONZE_COMMITTED, batch.number)
    return files


def commit_quiet_batch(table: Table, batch: BronzeBatch) -> None:
    """Commit a batch without records, which says that partitions are idle. Raises OwnershipLost.

    Spark has not planned it: `batch.transaction` is the last one that it has, after which its next one follows.
    """
    app_id = quiet_app_id(batch.app_id)
    metadata = {**batch_metadata(table, [], batch), "app_id": app_id, FOLLOWS: batch.transaction}
    table.commit(app_id, batch.number, metadata, [])
    pass_step(Step.BRONZE_COMMITTED, batch.number)


def fill_gaps(
    table: Table, records: DataFrame, positions: Sequence[tuple[int, int]], app_id: str, facts: Mapping[str, Any]
) -> None:
    """Commit records that are missing from earlier batches; `positions` are batches and partitions. Idempotent.

    The batches' own commits name and count them, so this commit names no offsets.
    """
    if table.committed(app_id) >= 1:
        return
    added: list[DataFile] = []
    for batch, partition in positions:
        rows = records.where((F.col("_batch_id") == batch) & (F.col("partition") == partition)).coalesce(1)
        dated = rows.withColumn("_date", bronze_date())
        added += table.write(dated, f"fill-b{batch:08d}-p{partition}")
    table.commit(app_id, 1, {**facts, "table": table.spec.name, "rows_added": sum(f.rows for f in added)}, added)


def validate_ranges(name: str, files: list[DataFile], batch: BronzeBatch) -> None:
    """Every file holds records of one partition, inside the batch's range, not more than the range has offsets."""
    rows: dict[int, int] = {}
    for file in files:
        partition = int(str(file.low["partition"]))
        start, end = batch.offsets.get(partition, (0, 0))
        if file.high["partition"] != partition or not (start <= file.low["offset"] <= file.high["offset"] < end):  # type: ignore[operator]
            why = (
                f"partition {partition} has offsets {file.low['offset']} to {file.high['offset']}, not [{start}, {end})"
            )
            raise RowsUnaccounted(name, (batch.number, batch.number), why)
        rows[partition] = rows.get(partition, 0) + file.rows
    for partition, count in rows.items():
        start, end = batch.offsets[partition]
        if count > end - start:
            raise RowsUnaccounted(name, (batch.number, batch.number), f"{count} rows in [{start}, {end})")


def micros(time: datetime) -> int:
    """Return the microseconds since 1970."""
    return (time - EPOCH) // MICROSECOND


def bronze_date() -> Column:
    """The date by which `rows_by_date` divides records."""
    first, last = (F.lit(day.isoformat()) for day in (FIRST_DATE, LAST_DATE))
    # Texts of the years 1 to 9999 are in the order of the times.
    return F.greatest(F.least(F.date_format("timestamp", "yyyy-MM-dd"), last), first)


def batch_metadata(table: Table, files: list[DataFile], batch: BronzeBatch) -> dict[str, Any]:
    """Return the metadata of a batch's commit, which has these files."""
    rows = {str(partition): 0 for partition in batch.offsets}
    for file in files:
        rows[str(file.low["partition"])] += file.rows
    times = [micros(t) // 1000 for f in files for t in (f.low["timestamp"], f.high["timestamp"])]  # type: ignore[arg-type]
    return {
        **batch.facts,
        "release": None,
        "table": table.spec.name,
        "app_id": batch.app_id,
        "batches": [batch.number, batch.number],
        "rows": sum(rows.values()),
        "rows_by_partition": rows,
        "offsets": {str(partition): list(span) for partition, span in batch.offsets.items()},
        "timestamps": [min(times), max(times)] if times else None,
        **batch.idle_set([int(partition) for partition, count in rows.items() if count]).metadata,
    }


COMPLETE = {"failOnDataLoss": "true", "kafka.isolation.level": "read_committed", "includeHeaders": "true"}
FETCHED = 1 << 20, 8 << 20
"""Least and most bytes, as compressed as they were sent, that the consumer of a partition fetches at once."""
FETCHED_BY_ALL = 128 << 20
POLLED = 500, 10_000
"""Bounds of `max.poll.records`. At Kafka's default, 500, returning records costs as much as fetching them."""
POLLED_BY_ALL = 100_000


def complete_source_options(
    settings: Settings, bootstrap: str, chosen: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, str]:
    """Return the options `chosen`; declared ones (HEADRACE_KAFKA_OPTIONS) replace `defaults` only.

    Raises InvalidSetting for an option with which records could be lost or misread.
    """
    options = {**defaults, **settings.kafka_options, **source_options(bootstrap), **chosen, **COMPLETE}
    for key, value in options.items():
        reject_unsafe(key, value)
    return options


def fetch_options(partitions: int) -> dict[str, str]:
    """Return the options by which a topic with so many partitions is fetched, where none are declared.

    The consumers hold what they have fetched in the heap, so those of many partitions fetch less each.
    """
    return {
        "kafka.max.partition.fetch.bytes": str(_share(FETCHED_BY_ALL, partitions, *FETCHED)),
        "kafka.fetch.max.bytes": "67108864",
        "kafka.max.poll.records": str(_share(POLLED_BY_ALL, partitions, *POLLED)),
        "kafka.request.timeout.ms": "20000",
        "kafka.default.api.timeout.ms": "30000",
    }


def _share(whole: int, parts: int, least: int, most: int) -> int:
    return max(least, min(most, whole // max(parts, 1)))
