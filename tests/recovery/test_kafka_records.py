"""What the driver reads itself are the rows of Spark's Kafka source, for any ranges (layers/adr-0019)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from transactional_records import send_transactions

from include.ground.errors import Transient
from include.ground.settings import Settings
from include.state.run_files import bootstrap_servers
from spark_jobs.backends.local.arrow_files import read_arrow
from spark_jobs.layers import kafka_records
from spark_jobs.layers.bronze import complete_source_options
from spark_jobs.layers.kafka_records import read_here, records_in

TOPIC, LARGE, DELETED = "ranges", "many-records", "deleted-records"
PARTITIONS = 4
"""More than threads that read."""
HEADERS = [("trace", b"\x00\xff"), ("trace", b""), ("größe", None)]
SENT = [
    (b"a", b"first", None),
    (None, b"second", HEADERS),
    (b"", None, None),
    (b"\x00\x80", b"", [("last", b"x")]),
    (b"e", b"f" * 70_000, []),
]
END = 12
"""Of partition 0: SENT, three aborted records and their marker, two committed ones and theirs."""
MANY = 40_000
WIDE = 15
"""Records of nearly a megabyte, after the MANY."""
Ranges = dict[int, tuple[int, int]]


@pytest.fixture(scope="module")
def settings(broker_settings: Settings) -> Settings:
    """Send SENT to both partitions, and to the first also an aborted and a committed transaction."""
    address = {"bootstrap.servers": bootstrap_servers(broker_settings)}
    own_times = {"message.timestamp.type": "CreateTime"}
    appended = {"message.timestamp.type": "LogAppendTime"}
    topics = [
        NewTopic(TOPIC, PARTITIONS, 1, config=own_times),
        NewTopic(LARGE, 1, 1, config=appended),
        NewTopic(DELETED, 1, 1),
    ]
    admin = AdminClient(address)
    for created in admin.create_topics(topics).values():
        created.result(30)
    producer = Producer({**address, "linger.ms": 50, "enable.idempotence": True})
    for partition in range(PARTITIONS):
        for number, (key, value, headers) in enumerate(SENT):
            at = 1_000 + number
            producer.produce(TOPIC, key=key, value=value, partition=partition, timestamp=at, headers=headers)
    for number in range(MANY):
        key, _, headers = SENT[number % 3]
        producer.produce(LARGE, key=key, value=str(number) if number % 7 else None, partition=0, headers=headers)
        producer.poll(0)
    for number in range(WIDE):
        producer.produce(LARGE, value=f"{number}{'x' * 900_000}", partition=0)
    for number in range(10):
        producer.produce(DELETED, value=str(number), partition=0)
    producer.flush(30)
    send_transactions(address, TOPIC)
    return broker_settings


Read = Callable[[Ranges], list[Path]]


@pytest.fixture
def read(spark: SparkSession, settings: Settings, tmp_path: Path) -> Read:
    return lambda ranges: read_of(spark, settings, TOPIC, ranges, tmp_path)


def read_of(spark: SparkSession, settings: Settings, topic: str, ranges: Ranges, folder: Path) -> list[Path]:
    return read_here(spark, topic, options_of(settings), ranges, folder)


def options_of(settings: Settings) -> dict[str, str]:
    return complete_source_options(settings, bootstrap_servers(settings), {}, {})


def rows_of_spark(spark: SparkSession, settings: Settings, ranges: Ranges, topic: str = TOPIC) -> pa.Table:
    rows = records_in(spark, topic, options_of(settings), ranges).rows
    return rows.orderBy("partition", "offset").toArrow()


def rows_in(files: list[Path]) -> pa.Table:
    return read_arrow(files).sort_by([("partition", "ascending"), ("offset", "ascending")])


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    assert found.select(expected.column_names).cast(expected.schema).equals(expected)


@pytest.mark.parametrize(
    "ranges",
    [
        {0: (0, END), 1: (0, 5), 2: (1, 5), 3: (0, 4)},
        {0: (1, 4)},
        {1: (3, 4), 0: (2, 2)},
        {0: (6, 11), 1: (0, 1)},
        {0: (4, 6)},
    ],
)
def test_rows_are_those_of_sparks_kafka_source(
    spark: SparkSession, settings: Settings, read: Read, ranges: Ranges
) -> None:
    expected = rows_of_spark(spark, settings, ranges)
    assert len(expected) > 0
    assert_same(rows_in(read(ranges)), expected)


def test_range_without_records_has_no_file(read: Read) -> None:
    assert read({0: (5, 9), 1: (2, 2)}) == []
    assert read({0: (11, 12)}) == []


@pytest.mark.parametrize(("span", "batches"), [((7, MANY), 3), ((MANY - 5, MANY + WIDE), 2)])
def test_large_range_is_read_in_several_batches(
    spark: SparkSession,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    span: tuple[int, int],
    batches: int,
) -> None:
    monkeypatch.setattr(kafka_records, "READ_RECORDS", 16_384)
    (file,) = read_of(spark, settings, LARGE, {0: span}, tmp_path)
    rows = read_arrow([file])
    assert len(rows["value"].chunks) == batches
    assert_same(rows.combine_chunks(), rows_of_spark(spark, settings, {0: span}, LARGE).combine_chunks())


def test_range_that_kafka_does_not_have_fails_and_leaves_no_file(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_records, "WAIT_SECONDS", 1.0)
    with pytest.raises(Transient, match=f"{TOPIC}-1: no records at offset 5"):
        read({1: (3, 9)})
    assert list(tmp_path.rglob("*.arrow")) == []
    assert rows_in(read({1: (3, 5)}))["offset"].to_pylist() == [3, 4]


def test_records_that_kafka_has_deleted_fail_the_range(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers(settings)})
    (deleted,) = admin.delete_records([TopicPartition(DELETED, 0, 4)]).values()
    deleted.result(30)
    with pytest.raises(Py4JJavaError, match="OffsetOutOfRange"):
        read_of(spark, settings, DELETED, {0: (2, 10)}, tmp_path)
    found = read_of(spark, settings, DELETED, {0: (4, 10)}, tmp_path)
    assert rows_in(found)["offset"].to_pylist() == list(range(4, 10))
