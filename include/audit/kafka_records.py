"""What Kafka has, read by a consumer of our own: `read_committed`, explicit offsets, no group, nothing committed.

Reads: one topic.  Writes: nothing.
Guarantee: the chunks of a partition cover the offsets asked for without a hole; each holds every committed record
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

CHUNK_RECORDS = 100_000
CHUNK_BYTES = 128 * 1024 * 1024
MESSAGES_AT_A_TIME = 10_000
BYTES_AT_A_TIME = 16 * 1024 * 1024
SILENCE = 30.0
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
    """Kafka could not be read to the end, so the audit says neither balanced nor not."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; nothing was judged", "headrace status; headrace up; then headrace audit again")
        self.why = why


@dataclass(frozen=True)
class Chunk:
    """All committed records that Kafka has in [start, end) of a partition, ascending.

    `records` has the columns of RECORD: timestamp in milliseconds; timestamp_type as Spark numbers it (0 the
    producer's, 1 the broker's).
    """

    partition: int
    start: int
    end: int
    records: pl.DataFrame


RecordSource = Callable[[int, int, int], Iterator[Chunk]]


@dataclass(frozen=True)
class Topic:
    """A topic as the broker has it now: per partition [first offset kept, next offset), and its records."""

    name: str
    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    records: RecordSource


def open_topic(bootstrap: str, name: str) -> Topic:
    """Look at a topic; BrokerUnreachable or TopicMissing."""
    starts, ends = log_start_offsets(bootstrap, name), log_end_offsets(bootstrap, name)

    def records(partition: int, start: int, end: int) -> Iterator[Chunk]:
        return read_chunks(bootstrap, name, partition, start, end)

    return Topic(name, topic_id(bootstrap, name), starts, ends, records)


def read_chunks(bootstrap: str, topic: str, partition: int, start: int, end: int) -> Iterator[Chunk]:
    """Yield the partition's records in [start, end), about 100,000 or 128 MB at a time; NothingJudged on failure."""
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
            "bootstrap.servers": bootstrap,
            # The client insists on a group's name; nothing is ever subscribed or committed under it.
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
    """A chunk ends after its last record; the last one ends at `end`, whether or not a record is there."""
    held: list[Message] = []
    size, position, heard = 0, start, time.monotonic()
    while position < end:
        batch = consumer.consume(_fitting(len(held), size), timeout=0.2)
        records, position = _sorted_out(batch, position, end)
        if records or position >= end:
            heard = time.monotonic()
        held += records
        size += sum(map(len, records))
        if held and position < end and (len(held) >= CHUNK_RECORDS or size >= CHUNK_BYTES):
            yield Chunk(partition, start, position, record_frame(held))
            held, size, start, heard = [], 0, position, time.monotonic()
        if time.monotonic() - heard > SILENCE:
            raise AuditUnavailable(f"partition {partition}: no record after offset {position} for {SILENCE:.0f} s")
    yield Chunk(partition, start, end, record_frame(held))


def _fitting(records: int, size: int) -> int:
    """So many messages that they fit in memory together, judged by those before."""
    average = size / records if records else 16_384
    return max(1, min(MESSAGES_AT_A_TIME, int(BYTES_AT_A_TIME / max(average, 1))))


def _sorted_out(batch: list[Message], position: int, end: int) -> tuple[list[Message], int]:
    """The records below `end`, and the offset before which everything has been seen."""
    records = [message for message in batch if message.error() is None]
    if len(records) < len(batch):
        ends = [_offset(message) for message in batch if _is_end(message)]
        position = max(position, min(max(ends, default=position), end))
    if records:
        position = max(position, min(_offset(records[-1]) + 1, end))
        if _offset(records[-1]) >= end:
            records = [record for record in records if _offset(record) < end]
    return records, position


def _is_end(message: Message) -> bool:
    """Whether the message says that the partition's end was reached; raises what else it says."""
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
    stamps = [message.timestamp() for message in messages]
    columns: dict[str, Any] = {
        "offset": [message.offset() for message in messages],
        "timestamp": [stamp for _, stamp in stamps],
        "timestamp_type": [kind - 1 for kind, _ in stamps],
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
        "headers": _headers(messages),
    }
    return pl.DataFrame({name: pl.Series(name, data, RECORD[name]) for name, data in columns.items()})


def _headers(messages: list[Message]) -> list[Any]:
    found = [message.headers() for message in messages]
    if not any(found):
        return [None] * len(found)
    return [[{"key": pair[0], "value": pair[1]} for pair in headers] if headers else None for headers in found]
