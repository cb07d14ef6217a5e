"""The audit's consumer on a real broker: bytes, bounds, chunks, what a transaction leaves, and no answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import polars as pl
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from transactional_records import send_transactions

from include.audit import kafka
from include.audit.kafka import RECORD, AuditUnavailable, Chunk, read_chunks
from include.ground.settings import Settings
from include.state.run_files import bootstrap_servers

TOPIC = "columns"
HEADERS = [("trace", b"\x00\xff"), ("trace", b""), ("größe", None)]
SENT = [
    (b"a", b"first", None),
    (None, b"second", HEADERS),
    (b"", None, None),
    (b"\x00\x80", b"", [("last", b"x")]),
    (b"e", b"f" * 70_000, None),
]
EXPECTED = pl.DataFrame(
    {
        "offset": range(5),
        "timestamp": range(1_000, 1_005),
        "timestamp_type": [0] * 5,
        "key": [key for key, _, _ in SENT],
        "value": [value for _, value, _ in SENT],
        "headers": [[{"key": key, "value": value} for key, value in headers or []] for _, _, headers in SENT],
    },
    schema=RECORD,
)
ABORTED, COMMITTED = 5, 9
"""Offsets: three aborted records and their marker, then two committed ones and theirs."""
END = 12


@pytest.fixture(scope="module")
def settings(broker_settings: Settings) -> Settings:
    """Send SENT, then an aborted and a committed transaction."""
    address = {"bootstrap.servers": bootstrap_servers(broker_settings)}
    own_times = NewTopic(TOPIC, 1, 1, config={"message.timestamp.type": "CreateTime"})
    admin = AdminClient(address)
    admin.create_topics([own_times])[TOPIC].result(30)
    producer = Producer({**address, "linger.ms": 50})
    for number, (key, value, headers) in enumerate(SENT):
        producer.produce(TOPIC, key=key, value=value, partition=0, timestamp=1_000 + number, headers=headers)
    producer.flush(10)
    send_transactions(address, TOPIC)
    return broker_settings


@pytest.fixture(scope="module", autouse=True)
def jvm(settings: Settings) -> Iterator[None]:
    """Keep the readers' JVM, which each test would start."""
    with kafka.JVM.reader(settings.jars):
        yield


@pytest.fixture
def own_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test's readers a JVM of their own."""
    monkeypatch.setattr(kafka, "JVM", type(kafka.JVM)())


def chunks(settings: Settings, start: int, end: int) -> list[Chunk]:
    return list(read_chunks(bootstrap_servers(settings), TOPIC, 0, start, end, settings.jars))


def assert_chunks(found: list[Chunk], *bounds: int) -> None:
    """Assert that the chunks have these bounds, and what was sent between them."""
    assert [(chunk.start, chunk.end) for chunk in found] == list(pairwise(bounds))
    for chunk in found:
        assert chunk.records.schema == RECORD
        assert chunk.records.equals(EXPECTED.slice(chunk.start, chunk.end - chunk.start))


def test_records_have_the_bytes_that_were_sent(settings: Settings) -> None:
    assert_chunks(chunks(settings, 0, 5), 0, 5)


def test_range_has_the_records_from_its_start_up_to_its_end(settings: Settings) -> None:
    assert_chunks(chunks(settings, 1, 4), 1, 4)
    assert_chunks(chunks(settings, 3, 4), 3, 4)
    assert chunks(settings, 3, 3) == []


@pytest.mark.extended
def test_chunks_of_a_range_follow_each_other_without_a_gap(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "CHUNK_RECORDS", 2)
    assert_chunks(chunks(settings, 0, 5), 0, 2, 4, 5)
    monkeypatch.setattr(kafka, "CHUNK_RECORDS", 100)
    for limit in ("READ_BYTES", "CHUNK_BYTES"):
        monkeypatch.setattr(kafka, limit, 16)
    assert_chunks(chunks(settings, 0, 5), 0, 2, 5)


@pytest.mark.extended
def test_chunks_end_at_the_requested_offsets(settings: Settings) -> None:
    ends = [0, 2, 4, COMMITTED, 99]
    found = read_chunks(bootstrap_servers(settings), TOPIC, 0, 0, 5, settings.jars, ends)
    assert_chunks(list(found), 0, 2, 4, 5)
    found = read_chunks(
        bootstrap_servers(settings), TOPIC, 0, ABORTED, END, settings.jars, [COMMITTED - 1, COMMITTED + 1]
    )
    bounds = [(chunk.start, chunk.end, chunk.records["offset"].to_list()) for chunk in found]
    assert bounds == [
        (ABORTED, COMMITTED - 1, []),
        (COMMITTED - 1, COMMITTED + 1, [COMMITTED]),
        (COMMITTED + 1, END, [COMMITTED + 1]),
    ]


@pytest.mark.parametrize("headers", [[("trace", bytes(2000))], [("", b"")] * 250])
@pytest.mark.extended
def test_headers_count_in_the_size_of_a_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, headers: list[tuple[str, bytes]]
) -> None:
    topic = f"headers-{len(headers)}"
    address = {"bootstrap.servers": bootstrap_servers(settings)}
    admin = AdminClient(address)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer(address)
    for _ in range(20):
        producer.produce(topic, value=b"v", partition=0, headers=headers)
    producer.flush(10)
    monkeypatch.setattr(kafka, "READ_BYTES", 10_000)
    monkeypatch.setattr(kafka, "CHUNK_BYTES", 1)
    found = list(read_chunks(bootstrap_servers(settings), topic, 0, 0, 20, settings.jars))
    assert [len(chunk.records) for chunk in found] == [5] * 4


@pytest.mark.extended
def test_chunk_has_several_reads(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "READ_BYTES", 1)
    assert_chunks(chunks(settings, 0, 5), 0, 5)


def test_range_has_committed_records_only_and_its_chunks_cover_the_others(settings: Settings) -> None:
    found = chunks(settings, ABORTED, END)
    assert [offset for chunk in found for offset in chunk.records["offset"]] == [COMMITTED, COMMITTED + 1]
    assert [(chunk.start, chunk.end) for chunk in found][-1][1] == END
    assert [chunk.start for chunk in found] == [ABORTED, *(chunk.end for chunk in found[:-1])]
    (none,) = chunks(settings, ABORTED, COMMITTED)
    assert (none.start, none.end, len(none.records)) == (ABORTED, COMMITTED, 0)


def test_missing_records_end_the_audit(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "READ_TIMEOUT", 3.0)
    with pytest.raises(AuditUnavailable, match=f"partition 0: no record after offset {END}"):
        chunks(settings, 4, END + 5)


def test_offset_that_kafka_does_not_have_ends_the_audit(settings: Settings) -> None:
    with pytest.raises(AuditUnavailable, match="OutOfRange"):
        chunks(settings, 50, 60)


@pytest.mark.usefixtures("own_jvm")
def test_readers_share_a_jvm_which_ends_with_the_last(settings: Settings) -> None:
    read = read_chunks(bootstrap_servers(settings), TOPIC, 0, 0, 5, settings.jars)
    other = read_chunks(bootstrap_servers(settings), TOPIC, 0, 0, 5, settings.jars)
    next(read)
    next(other)
    process = kafka.JVM.process
    assert list(read) == []
    assert process.poll() is None
    assert list(other) == []
    assert process.poll() is not None


@pytest.mark.usefixtures("own_jvm")
def test_jvm_that_is_killed_ends_the_audit(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "CHUNK_RECORDS", 1)
    read = read_chunks(bootstrap_servers(settings), TOPIC, 0, 0, 5, settings.jars)
    next(read)
    kafka.JVM.process.kill()
    with pytest.raises(AuditUnavailable, match="the JVM that reads Kafka was killed by SIGKILL"):
        list(read)
    assert_chunks(list(chunks(settings, 0, 1)), 0, 1)
