"""Read Kafka with an independent consumer: `read_committed`, explicit offsets, no group membership, no commits.

Reads: one topic.  Writes: nothing.
Guarantee: the chunks of a partition cover the requested offsets without a gap; each holds every committed record
of its range. Offsets without a record (transaction markers, aborted or compacted records) are legal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from include.clients.kafka import QUIET, log_end_offsets, log_start_offsets, topic_id
from include.errors import Transient
from include.kafka_address import client_options

CHUNK_RECORDS = 200_000
CHUNK_BYTES = 128 * 1024 * 1024
MESSAGES_AT_A_TIME = 10_000
BYTES_AT_A_TIME = 16 * 1024 * 1024
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


RecordSource = Callable[[int, int, int], Iterator[Chunk]]


@dataclass(frozen=True)
class Topic:
    """A topic as the broker reports it: per partition the log start and end offsets, and a reader of its records."""

    name: str
    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    records: RecordSource


def open_topic(bootstrap: str, name: str) -> Topic:
    """Return a topic with its current offsets. Raises BrokerUnreachable or TopicMissing."""
    starts, ends = log_start_offsets(bootstrap, name), log_end_offsets(bootstrap, name)

    def records(partition: int, start: int, end: int) -> Iterator[Chunk]:
        return read_chunks(bootstrap, name, partition, start, end)

    return Topic(name, topic_id(bootstrap, name), starts, ends, records)


def read_chunks(bootstrap: str, topic: str, partition: int, start: int, end: int) -> Iterator[Chunk]:
    """Yield the partition's records in [start, end), a chunk of about 200,000 or 128 MB after the other.

    Raises AuditUnavailable.
    """
    if start >= end:
        return
    consumer = _consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        yield from _chunks(consumer, partition, start, end)
    except KafkaException as error:
        raise AuditUnavailable(f"reading {topic}/{partition} at {bootstrap} failed: {error}") from error
    finally:
        consumer.close()


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            **client_options(bootstrap),
            # The client requires a group id; it never subscribes or commits with it.
            "group.id": "headrace-audit",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.max.bytes": 64 * 1024 * 1024,
            "max.partition.fetch.bytes": 16 * 1024 * 1024,
            "fetch.message.max.bytes": 16 * 1024 * 1024,
            "queued.max.messages.kbytes": 128 * 1024,
            **QUIET,
        }
    )


def _chunks(consumer: Consumer, partition: int, start: int, end: int) -> Iterator[Chunk]:
    """A chunk ends after its last record; the last chunk ends at `end`, which may have no record."""
    buffered: list[Message] = []
    size, position, last_progress = 0, start, time.monotonic()
    while position < end:
        batch = consumer.consume(_batch_size(len(buffered), size), timeout=0.2)
        records, position = _records_below(batch, position, end)
        if records or position >= end:
            last_progress = time.monotonic()
        buffered += records
        size += sum(map(len, records))
        if buffered and position < end and (len(buffered) >= CHUNK_RECORDS or size >= CHUNK_BYTES):
            yield Chunk(partition, start, position, record_frame(buffered))
            buffered, size, start, last_progress = [], 0, position, time.monotonic()
        if time.monotonic() - last_progress > READ_TIMEOUT:
            raise AuditUnavailable(f"partition {partition}: no record after offset {position} for {READ_TIMEOUT:.0f} s")
    yield Chunk(partition, start, end, record_frame(buffered))


def _batch_size(records: int, size: int) -> int:
    """Return how many messages fit in memory together, by the average size so far."""
    average = size / records if records else 16_384
    return max(1, min(MESSAGES_AT_A_TIME, int(BYTES_AT_A_TIME / max(average, 1))))


def _records_below(batch: list[Message], position: int, end: int) -> tuple[list[Message], int]:
    """Return the records below `end`, and the offset up to which the partition is read."""
    records = batch
    if any(map(Message.error, batch)):
        records = [message for message in batch if message.error() is None]
        ends = [_offset(message) for message in batch if _is_end(message)]
        position = max(position, min(max(ends, default=position), end))
    if records:
        position = max(position, min(_offset(records[-1]) + 1, end))
        if _offset(records[-1]) >= end:
            records = [record for record in records if _offset(record) < end]
    return records, position


def _is_end(message: Message) -> bool:
    """Return whether the message marks the partition's end. Raises KafkaException for any other error."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return error is not None


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:
        raise AuditUnavailable("Kafka sent a record without an offset")
    return offset


def record_frame(messages: list[Message]) -> pl.DataFrame:
    """Return messages as a frame with the columns of RECORD; a record without headers has null there."""
    # `map` over the class's methods: a comprehension takes twice as long, and this is most of the audit's time.
    kinds, stamps = zip(*map(Message.timestamp, messages), strict=True) if messages else ((), ())
    columns: dict[str, Any] = {
        "offset": list(map(Message.offset, messages)),
        "timestamp": stamps,
        "timestamp_type": kinds,
        "key": list(map(Message.key, messages)),
        "value": list(map(Message.value, messages)),
        "headers": _headers(messages),
    }
    frame = pl.DataFrame({name: pl.Series(name, data, RECORD[name]) for name, data in columns.items()})
    return frame.with_columns(pl.col("timestamp_type") - 1)


def _headers(messages: list[Message]) -> list[Any]:
    found = list(map(Message.headers, messages))
    if not any(found):
        return [None] * len(found)
    return [[{"key": pair[0], "value": pair[1]} for pair in headers] if headers else None for headers in found]
