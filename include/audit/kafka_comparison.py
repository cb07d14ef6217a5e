"""I1 and I2 of a whole dataset: bronze against the offset ranges of its commits, then against Kafka's records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from threading import Event, Lock
from typing import Any

import numpy as np
import polars as pl

from include.audit.bronze import (
    CommittedRange,
    ExpiredBatches,
    batch_ranges,
    batch_row_findings,
    bronze_commits,
    expired_batches,
    expiry_findings,
    lost_ranges,
    partition_rows,
    range_findings,
    record_findings,
    topic_findings,
)
from include.audit.files import READ_ERRORS
from include.audit.findings import Finding, FindingKind
from include.audit.kafka import CHUNK_BYTES, CHUNK_RECORDS, Chunk, Topic
from include.audit.loaded_files import LoadedFiles
from include.audit.verified_history import AuditScope
from include.declare.dataset import Dataset
from include.declare.writer_schemas import WriterSchemas
from include.ground.record_coordinates import is_file_set
from include.read.memory_database import view_rows
from include.read.publication import Publication
from include.read.published_tables import RECORD_LAYERS, PinnedTables

COMPARED_AGAIN = 1_000
"""Offsets before the verified end that each audit compares with Kafka again."""
PARTITIONS_AT_A_TIME = 2
"""Each holds two chunks of Kafka's records, and bronze's rows of the same offsets as one of them."""
MOST_DUPLICATES = 500_000
MOST_PAYLOAD_BYTES = 64 << 20
"""Rejected duplicates whose payloads are kept when they are compared, in all."""
PAYLOADS = "duplicate_payloads"
DUPLICATES = """
select distinct _partition as partition, _offset as "offset" from rejected where disposition = 'duplicate'
"""


@dataclass
class KeptPayloads:
    """Payloads of rejected duplicates and their headers by place, or none when they have more than MOST_PAYLOAD_BYTES.

    It may be exceeded by one chunk for each partition that is read at the same time.
    """

    frames: list[pl.DataFrame] = field(default_factory=list)
    size: int = 0
    _lock: Lock = field(default_factory=Lock)

    @property
    def is_full(self) -> bool:
        return self.size > MOST_PAYLOAD_BYTES

    def add(self, rows: pl.DataFrame) -> None:
        """Keep rows; partitions are read at the same time."""
        with self._lock:
            self.frames.append(rows)
            self.size += int(rows.estimated_size())
            if self.is_full:
                self.frames.clear()


@dataclass
class KafkaCounts:
    """Per partition: records read from Kafka, rows of bronze that Kafka has deleted; `lost`: ranges never read.

    `aged`: what has expired from the tables. `layers`: rows of the tables, per partition.
    `payloads`: those of rejected duplicates, as far as they are equal to bronze's.
    """

    kafka: dict[int, int] = field(default_factory=dict)
    expired: dict[int, int] = field(default_factory=dict)
    lost: list[CommittedRange] = field(default_factory=list)
    aged: ExpiredBatches = ExpiredBatches()
    payloads: KeptPayloads = field(default_factory=KeptPayloads)
    layers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class AuditInput:
    """What is audited: the tables of one publication against `topic`, which is Kafka's side.

    `fixes` are corrected payloads of rejected records by partition and offset, `schemas` the writers'.
    """

    dataset: Dataset
    publication: Publication
    tables: PinnedTables
    topic: Topic
    fixes: Mapping[tuple[int, int], bytes] = field(default_factory=dict)
    schemas: WriterSchemas = field(default_factory=dict)
    files: LoadedFiles = field(kw_only=True)

    def table(self, layer: str) -> str:
        return f"{layer}.{self.dataset.name}"


def kafka_findings(database: Any, given: AuditInput, counted: KafkaCounts, scope: AuditScope) -> Iterator[Finding]:
    """Compare bronze with its commits, with Kafka, and with the files that were loaded; `counted` gets the counts."""
    publication, tables, topic, files = given.publication, given.tables, given.topic, given.files
    table = given.table("bronze")
    yield from files.findings(table)
    metadata = bronze_commits(tables.table(table), scope.bronze_version)
    # Sets of files that the release does not have are in bronze alone.
    ranges = [r for r in batch_ranges(metadata) if not is_file_set(r.partition) or r.partition in files.sets]
    counted.lost = [*scope.lost, *lost_ranges(metadata)]
    before = [CommittedRange(scope.batch, int(partition), 0, end, 0) for partition, end in scope.ends.items()]
    yield from range_findings([*before, *ranges, *lost_ranges(metadata)], publication.offsets, table)
    layers = {layer: tables.table(f"{layer}.{publication.dataset}") for layer in RECORD_LAYERS}
    counted.aged = aged = expired_batches(layers, ranges)
    if aged.complete and scope.verified is None:
        yield from expiry_findings(layers, aged, ranges)
    recreated = list(topic_findings(metadata, topic, table))
    yield from recreated
    for partition, end in () if recreated else publication.offsets.items():
        counted.expired[partition] = _rows_in(database, partition, 0, min(end, topic.starts.get(partition, 0)))
        counted.expired[partition] += sum(_rows_in(database, partition, *s) for s in files.unread_spans(partition))

    def of_partition(partition: int) -> list[Finding]:
        end = publication.offsets[partition]
        # A broker that lost its newest records may have reused offsets below the verified end.
        first = max(scope.end(partition) - COMPARED_AGAIN, aged.ends.get(partition, 0), topic.starts.get(partition, 0))
        return list(comparison.findings(partition, first, end, scope.end(partition)))

    ended = Event()
    comparison = _KafkaComparison(tables.arrow(table), table, topic, counted, ended, _duplicates(database))
    with ThreadPoolExecutor(PARTITIONS_AT_A_TIME, "kafka") as pool:
        try:
            compared = pool.map(of_partition, sorted(counted.expired))
            # Meanwhile the JVM starts.
            yield from batch_row_findings(database, [each for each in ranges if each.batch >= aged.of("bronze")], table)
            yield from chain.from_iterable(compared)
        except BaseException:
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _duplicates(database: Any) -> dict[int, np.ndarray[Any, Any]]:
    """Return by partition the sorted offsets of the duplicates in the view `rejected`; none if there are too many."""
    try:
        found: pl.DataFrame = database.sql(DUPLICATES).pl()
    except READ_ERRORS:
        # The damage is named where rejected is compared; bronze can be compared without it.
        return {}
    if found.height > MOST_DUPLICATES:
        return {}
    known = found.drop_nulls()
    return {int(str(number)): part["offset"].sort().to_numpy() for (number,), part in known.group_by(["partition"])}


def is_compared(database: Any, counted: KafkaCounts) -> bool:
    """Whether each row of the view `bronze` was compared with a record of Kafka."""
    rows = database.sql("select count(*) from bronze").fetchall()[0][0]
    return bool(rows == sum(counted.kafka.values()))


def payload_view(database: Any, counted: KafkaCounts) -> str:
    """Return the view that has the payloads of the rejected duplicates: `bronze`, unless all were kept."""
    duplicates = database.sql(f"select count(*) from ({DUPLICATES})").fetchall()[0][0]
    frames = counted.payloads.frames
    if not frames or sum(each.height for each in frames) != duplicates:
        return "bronze"
    view_rows(database, PAYLOADS, pl.concat(frames).to_arrow())
    return PAYLOADS


def _rows_in(database: Any, partition: int, start: int, end: int) -> int:
    sql = 'select count(*) from bronze where partition = ? and "offset" >= ? and "offset" < ?'
    return int(database.execute(sql, [partition, start, end]).fetchall()[0][0])


@dataclass(frozen=True)
class _KafkaComparison:
    """Compares Kafka's records with the rows of bronze and counts them; stops once the audit has `ended`."""

    bronze: Any
    table: str
    topic: Topic
    counted: KafkaCounts
    ended: Event
    duplicates: Mapping[int, np.ndarray[Any, Any]]

    def findings(self, partition: int, start: int, end: int, verified: int) -> Iterator[Finding]:
        """Compare offsets [start, end) of a partition, chunk by chunk; those before `verified` are counted already."""
        log_end = self.topic.ends.get(partition, 0)
        if log_end < end:
            detail = f"published up to {end}, but Kafka's log ends at {log_end}"
            yield Finding(FindingKind.surplus, self.table, end - log_end, detail, partition, log_end, end)
        self.counted.kafka[partition] = 0
        bronze = partition_rows(self.bronze, partition, start)
        # A chunk of Kafka takes more memory than its bytes.
        ends = bronze.ends(CHUNK_RECORDS, CHUNK_BYTES // 2)
        records = _read_ahead(self.topic.records(partition, start, min(end, log_end), ends), self.ended)
        for chunk in records:
            self.counted.kafka[partition] += int((chunk.records["offset"] >= verified).sum())
            found = list(record_findings(chunk, bronze.frame(chunk.start, chunk.end), self.table))
            yield from found
            if not found:
                self._keep_payloads(chunk)

    def _keep_payloads(self, chunk: Chunk) -> None:
        offsets, kept = self.duplicates.get(chunk.partition), self.counted.payloads
        if offsets is None or kept.is_full:
            return
        rows = chunk.records[_places(chunk.records["offset"].to_numpy(), offsets)]
        if rows.height:
            kept.add(
                rows.select(
                    pl.lit(chunk.partition, pl.Int32).alias("partition"), "offset", "value", "headers"
                ).rechunk()
            )


def _read_ahead(chunks: Iterator[Chunk], ended: Event) -> Iterator[Chunk]:
    """Yield the chunks until `ended`; a thread reads the next one while the caller compares one."""
    with ThreadPoolExecutor(1, "kafka-ahead") as pool:
        following = pool.submit(next, chunks, None)
        while (chunk := following.result()) is not None and not ended.is_set():
            following = pool.submit(next, chunks, None)
            yield chunk


def _places(offsets: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the places of the wanted offsets among others; both ascend."""
    if not len(offsets):
        return np.empty(0, np.int64)
    near = wanted[np.searchsorted(wanted, offsets[0]) : np.searchsorted(wanted, offsets[-1], "right")]
    places: np.ndarray[Any, Any] = np.searchsorted(offsets, near)
    found: np.ndarray[Any, Any] = places[offsets[places] == near]
    return found
