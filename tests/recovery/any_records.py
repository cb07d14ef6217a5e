"""Records with anything that Kafka takes: any time, key, header, size and compression, also of aborted transactions.

They are drawn from a seed. What librdkafka does not send (times before 1970, header names that are no UTF-8) goes to
the broker in a request of our own.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 3
ANY_TIME = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
    # Each time far from the last one would begin a segment.
    "segment.ms": str(2**63 - 1),
    "max.message.bytes": "2000000",
}
NOW_MS = 1_792_000_000_000
FIRST_MS, LAST_MS = -62_135_510_400_000, 253_402_128_000_000
TIMES = (
    *(-1, 0, 1, NOW_MS // 1000, NOW_MS, NOW_MS * 1000, NOW_MS * 1_000_000, 253_402_300_800_000, 2**63 - 1, -(2**63)),
    *(FIRST_MS, FIRST_MS - 1, LAST_MS, LAST_MS + 1, 253_402_300_799_999, -62_135_596_800_000, -14_831_769_600_000),
    *(2**53, -(2**53), 9_223_372_036_854_775, 9_223_372_036_854_776, -9_223_372_036_854_776, 8_210_266_876_799_999),
)
"""Units of producers, and both sides of what the calendar, a 64-bit number of microseconds and a double hold."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Headers = list[tuple[bytes, bytes | None]]


@dataclass(frozen=True)
class AnyRecord:
    """A record to send; `reading`: the number of the valid reading that its value is, None for anything else."""

    partition: int
    time: int
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)
    reading: int | None = None

    @property
    def needs_own_request(self) -> bool:
        """Whether librdkafka would send something else: it takes 0 for the current time."""
        return self.time <= 0 or any(not _is_utf8(name) for name, _ in self.headers)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in text


def any_records(chance: random.Random, values: Iterable[tuple[int, bytes]], count: int) -> Iterator[AnyRecord]:
    """Yield `count` records; `values` are valid readings with their numbers."""
    readings, given = iter(values), list[tuple[int, bytes]]()
    for number in range(count):
        kind = chance.choices(("reading", "again", "null", "bytes", "large"), (60, 6, 10, 20, 0.3))[0]
        reading: int | None = None
        value: bytes | None = None
        if kind == "reading" or (kind == "again" and not given):
            given.append(next(readings))
            reading, value = given[-1]
        elif kind == "again":
            reading, value = chance.choice(given)
        elif kind != "null":
            value = chance.randbytes(chance.choice((0, 1, 40)) if kind == "bytes" else chance.choice((70_000, 1 << 20)))
        is_first_large = number == count // 2
        key = chance.choice((None, b"", b"\xff\x00", b"d1", chance.randbytes(20)))
        key = chance.randbytes(900_000) if is_first_large else key
        yield AnyRecord(chance.randrange(PARTITIONS), _time(chance), key, value, _headers(chance, number), reading)


def _time(chance: random.Random) -> int:
    kind = chance.random()
    if kind < 0.5:
        return NOW_MS + chance.randrange(1000)
    return chance.choice(TIMES) if kind < 0.9 else chance.randrange(-(2**63), 2**63)


def _headers(chance: random.Random, number: int) -> Headers:
    if number == 7:
        return [(b"many", b"%d" % each) for each in range(10_000)]
    one = (b"", b"trace", "größe".encode(), b"headrace.kafka_timestamp", b"\xff\xfe")
    names = [chance.choice(one if chance.random() < 0.1 else one[:-1]) for _ in range(chance.choice((0, 0, 0, 1, 3)))]
    return [(name, chance.choice((None, b"", b"\xff\x00", b"5"))) for name in names]


def create_topic(bootstrap: str, topic: str) -> None:
    """Create a topic that takes producers' times, whatever they are."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=ANY_TIME)])[topic].result(30)


def send(
    bootstrap: str, topic: str, chance: random.Random, records: Sequence[AnyRecord]
) -> dict[tuple[int, int], AnyRecord]:
    """Send the records in groups, each by one codec, a part of them in transactions; return the committed by place."""
    sent: dict[tuple[int, int], AnyRecord] = {}
    rest = list(records)
    plain = {codec: Producer(_options(bootstrap, codec)) for codec in CODECS}
    transactional = Producer({**_options(bootstrap, "lz4"), "transactional.id": f"{topic}-{chance.random()}"})
    transactional.init_transactions(30)
    while rest:
        group, rest = rest[: (size := chance.randrange(1, 60))], rest[size:]
        kind = chance.choice(("plain", "plain", "plain", "committed", "aborted"))
        own = [each for each in group if each.needs_own_request]
        for record, offset in _send_raw(bootstrap, topic, own):
            sent[record.partition, offset] = record
        others = [each for each in group if not each.needs_own_request]
        if kind == "plain":
            sent |= _produced(plain[chance.choice(CODECS)], topic, others)
            continue
        transactional.begin_transaction()
        found = _produced(transactional, topic, others)
        if kind == "committed":
            transactional.commit_transaction(30)
            sent |= found
        else:
            transactional.abort_transaction(30)
    return sent


def _options(bootstrap: str, codec: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 1, "message.max.bytes": 2_000_000}


def _produced(producer: Producer, topic: str, records: Sequence[AnyRecord]) -> dict[tuple[int, int], AnyRecord]:
    places: dict[tuple[int, int], AnyRecord] = {}

    def note(record: AnyRecord, error: object, message: Message) -> None:
        assert error is None, error
        places[record.partition, int(str(message.offset()))] = record

    for record in records:
        headers = [(name.decode(), value) for name, value in record.headers]
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            partition=record.partition,
            timestamp=record.time,
            headers=headers,  # type: ignore[arg-type]
            on_delivery=lambda error, message, record=record: note(record, error, message),
        )
    assert producer.flush(60) == 0
    return places


def _send_raw(bootstrap: str, topic: str, records: Sequence[AnyRecord]) -> Iterator[tuple[AnyRecord, int]]:
    """Send records by the protocol's Produce request, a batch for each partition; yield them with their offsets."""
    by_partition: Mapping[int, list[AnyRecord]] = defaultdict(list)
    for record in records:
        by_partition[record.partition].append(record)
    host, _, port = bootstrap.rpartition(":")
    for partition, group in by_partition.items():
        batch = _record_batch(group)
        name = topic.encode()
        body = struct.pack(">hhih", 0, 3, 1, -1)  # Produce, version 3, correlation, no client id
        body += struct.pack(">hhi", -1, -1, 30_000)  # no transaction, all replicas, milliseconds
        body += struct.pack(f">ih{len(name)}siii", 1, len(name), name, 1, partition, len(batch)) + batch
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.makefile("rb")
            (size,) = struct.unpack(">i", answer.read(4))
            content = answer.read(size)
        error, first = struct.unpack_from(">hq", content, 4 + 4 + 2 + len(name) + 4 + 4)
        assert error == 0, f"the broker refused {group} with code {error}"
        yield from ((record, first + number) for number, record in enumerate(group))


def _record_batch(records: Sequence[AnyRecord]) -> bytes:
    base = records[0].time
    content = b"".join(_record(record, record.time - base, number) for number, record in enumerate(records))
    most = max(record.time for record in records)
    checked = struct.pack(">hiqqqhii", 0, len(records) - 1, base, most, -1, -1, -1, len(records)) + content
    after_length = struct.pack(">ibI", -1, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


def _record(record: AnyRecord, later: int, number: int) -> bytes:
    headers = b"".join(_bytes(name) + _bytes(value) for name, value in record.headers)
    body = b"\0" + _varint(later) + _varint(number) + _bytes(record.key) + _bytes(record.value)
    body += _varint(len(record.headers)) + headers
    return _varint(len(body)) + body


def _bytes(text: bytes | None) -> bytes:
    return _varint(-1) if text is None else _varint(len(text)) + text


def _varint(number: int) -> bytes:
    """Encode a number of 64 bits; a difference of two may have more, and the reader's sum has the same bits."""
    signed = (number + 2**63) % 2**64 - 2**63
    left, out = (signed << 1 ^ signed >> 63) & (2**64 - 1), bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


@cache
def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


def _crc32c(content: bytes) -> int:
    table, found = _table(), 0xFFFFFFFF
    for byte in content:
        found = table[(found ^ byte) & 255] ^ found >> 8
    return found ^ 0xFFFFFFFF
