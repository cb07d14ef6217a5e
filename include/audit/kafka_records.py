"""Read Kafka with a consumer of the audit's own: `read_committed`, explicit offsets, no group membership, no commits.

Reads: one topic.  Writes: nothing.
Guarantee: the chunks of a partition cover the requested offsets without a gap; each holds every committed record
of its range. Offsets without a record (transaction markers, aborted or compacted records) are legal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import polars as pl

from include.audit.kafka_columns import KafkaReadFailed, PartitionReader, partition_reader
from include.ground.errors import Transient
from include.ground.kafka import log_end_offsets, log_start_offsets, topic_id

CHUNK_RECORDS = 200_000
CHUNK_BYTES = 64 * 1024 * 1024
READ_BYTES = 16 * 1024 * 1024
READ_TIMEOUT = 30.0
HEADERS = pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))
RECORD: dict[str, pl.DataType] = {
    "offset": pl.Int64(),
    "timestamp": pl.Int64(),
    "timestamp_type": pl.Int32(),
    "key": pl.Binary(),
    "value": pl.Binary(),
    "headers": HEADERS,
}


class AuditUnavailable(Transient):
    """Kafka could not be read to the end, so the audit has no result."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; nothing was audited", "headrace up, then headrace audit again")
        self.why = why


@dataclass(frozen=True)
class Chunk:
    """All committed records that Kafka has in [start, end) of a partition, ascending.

    `records` has the columns of RECORD: timestamp in milliseconds; timestamp_type as in Spark (0 set by
    the producer, 1 by the broker).
    """

    partition: int
    start: int
    end: int
    records: pl.DataFrame


RecordSource = Callable[[int, int, int, Iterable[int]], Iterator[Chunk]]
"""Yields the records of a partition from an offset up to another; some chunk ends at each of the offsets given last."""


@dataclass(frozen=True)
class Topic:
    """A topic as the broker reports it: per partition the log start and end offsets, and a reader of its records."""

    name: str
    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    records: RecordSource


def open_topic(bootstrap: str, name: str, jars: Path) -> Topic:
    """Return a topic with its current offsets; `jars` is the folder of the verified ones.

    Raises BrokerUnreachable or TopicMissing.
    """
    starts, ends = log_start_offsets(bootstrap, name), log_end_offsets(bootstrap, name)

    def records(partition: int, start: int, end: int, chunk_ends: Iterable[int]) -> Iterator[Chunk]:
        return read_chunks(bootstrap, name, partition, start, end, jars, chunk_ends)

    return Topic(name, topic_id(bootstrap, name), starts, ends, records)


def read_chunks(
    bootstrap: str, topic: str, partition: int, start: int, end: int, jars: Path, chunk_ends: Iterable[int] = ()
) -> Iterator[Chunk]:
    """Yield the partition's records in [start, end), a chunk of up to about 200,000 or 64 MB after the other.

    A chunk ends at each offset of `chunk_ends`, which ascend. Raises AuditUnavailable.
    """
    if start >= end:
        return
    try:
        with partition_reader(jars, bootstrap, topic, partition, start) as reader:
            for until in chain((each for each in chunk_ends if start < each < end), [end]):
                yield from _chunks(reader, partition, start, until)
                start = until
    except KafkaReadFailed as error:
        raise AuditUnavailable(f"reading {topic}/{partition} at {bootstrap} failed: {error}") from error


def _chunks(reader: PartitionReader, partition: int, start: int, end: int) -> Iterator[Chunk]:
    """A chunk ends after its last record; the last chunk ends at `end`, which may have no record."""
    position, rows, size, parts = start, 0, 0, list[pl.DataFrame]()
    while position < end:
        reached, records = _next_read(reader, partition, position, end, CHUNK_RECORDS - rows)
        position, rows, size = reached, rows + len(records), size + int(records.estimated_size())
        parts.append(records)
        if rows >= CHUNK_RECORDS or size >= CHUNK_BYTES or position >= end:
            yield Chunk(partition, start, position, pl.concat(parts))
            start, rows, size, parts = position, 0, 0, []


def _next_read(reader: PartitionReader, partition: int, position: int, end: int, most: int) -> tuple[int, pl.DataFrame]:
    """Return the next offset to read, which is behind `position`, and the records before it."""
    began = time.monotonic()
    while time.monotonic() - began <= READ_TIMEOUT:
        reached, records = reader.read(end, most, READ_BYTES)
        if reached > position:
            return reached, records
    raise AuditUnavailable(f"partition {partition}: no record after offset {position} for {READ_TIMEOUT:.0f} s")
