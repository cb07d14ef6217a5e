"""Read a few single records of a topic, with a consumer that joins no group and commits nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from include.ground.kafka import QUIET, TIMEOUT, BrokerUnreachable, translate_error
from include.ground.kafka_address import client_options


@dataclass(frozen=True)
class KafkaRecord:
    """One record: offset, timestamp in UTC milliseconds, key and value."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


RecordReader = Callable[[int, int, int], list[KafkaRecord]]
"""(partition, start, end) → the committed records that Kafka has in [start, end)."""


@contextmanager
def record_reader(bootstrap: str, topic: str, timeout: float = TIMEOUT) -> Iterator[RecordReader]:
    """Yield a reader of short ranges. It raises BrokerUnreachable after `timeout` seconds without an answer.

    Offsets without a record (transaction markers, aborted or compacted records) are left out.
    """
    consumer = Consumer(
        {
            **client_options(bootstrap),
            # The client requires a group id; it never subscribes or commits with it.
            "group.id": "headrace-records",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 16 * 1024,
            **QUIET,
        }
    )
    try:
        yield lambda partition, start, end: _read(consumer, TopicPartition(topic, partition, start), end, timeout)
    except KafkaException as error:
        raise translate_error(error, f"reading records of {topic}", bootstrap, topic) from error
    except TimeoutError as error:
        raise BrokerUnreachable(bootstrap, str(error)) from error
    finally:
        consumer.close()


def _read(consumer: Consumer, place: TopicPartition, end: int, timeout: float) -> list[KafkaRecord]:
    found: list[KafkaRecord] = []
    consumer.assign([place])
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None:
            continue
        record = _record(message)
        if record is None or record.offset >= end:
            return found
        found.append(record)
        if record.offset == end - 1:
            return found
    raise TimeoutError(f"no answer about offset {place.offset} of partition {place.partition} in {timeout:.0f} s")


def _record(message: Message) -> KafkaRecord | None:
    """Return the message's record, None at the end of what can be read. Raises KafkaException for an error."""
    error, offset = message.error(), message.offset()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    if error is not None or offset is None:
        return None
    return KafkaRecord(offset, message.timestamp()[1], message.key(), message.value())
