"""Bronze's reader on a real broker gives the rows of Spark's Kafka source, for any ranges in any order."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from transactional_records import send_transactions

from include.ground.errors import Transient
from include.ground.settings import Settings
from include.state.run_files import bootstrap_servers
from spark_jobs.backends.local import kafka_ranges
from spark_jobs.backends.local.arrow_files import read_arrow
from spark_jobs.backends.local.kafka_ranges import KafkaRanges
from spark_jobs.layers.bronze import complete_source_options

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


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def reader(spark: SparkSession, settings: Settings, stop: threading.Event) -> Iterator[KafkaRanges]:
    reader = opened(spark, settings, TOPIC, stop)
    yield reader
    reader.close()


def opened(spark: SparkSession, settings: Settings, topic: str, stop: threading.Event) -> KafkaRanges:
    return KafkaRanges(spark, topic, complete_source_options(settings, bootstrap_servers(settings), {}, {}), stop)


def rows_of_spark(
    spark: SparkSession, settings: Settings, ranges: Ranges, topic: str = TOPIC, partitions: int = PARTITIONS
) -> pa.Table:
    bounds = {
        name: json.dumps({topic: {str(p): ranges.get(p, (0, 0))[at] for p in range(partitions)}})
        for at, name in enumerate(("startingOffsets", "endingOffsets"))
    }
    options = complete_source_options(settings, bootstrap_servers(settings), {"subscribe": topic, **bounds}, {})
    rows = spark.read.format("kafka").options(**options).load()
    return rows.orderBy("partition", "offset").toArrow()


@pytest.fixture(scope="module")
def first_partition(spark: SparkSession, settings: Settings) -> pa.Table:
    """Return what Spark's source gives of the first partition."""
    return rows_of_spark(spark, settings, {0: (0, END)})


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
    spark: SparkSession, settings: Settings, reader: KafkaRanges, tmp_path: Path, ranges: Ranges
) -> None:
    expected = rows_of_spark(spark, settings, ranges)
    assert len(expected) > 0
    assert_same(rows_in(reader.write(ranges, tmp_path)), expected)


def test_ranges_that_follow_each_other_or_are_repeated_have_their_own_records(
    first_partition: pa.Table, reader: KafkaRanges, tmp_path: Path
) -> None:
    for start, end in ((0, 2), (2, 3), (3, 5), (5, 10), (10, END), (2, 3), (2, 3), (0, END), (4, 10)):
        expected = first_partition.filter((pc.field("offset") >= start) & (pc.field("offset") < end))
        assert_same(rows_in(reader.write({0: (start, end)}, tmp_path)), expected)


def test_range_without_records_has_no_file(reader: KafkaRanges, tmp_path: Path) -> None:
    assert reader.write({0: (5, 9), 1: (2, 2)}, tmp_path) == []
    assert reader.write({0: (11, 12)}, tmp_path) == []
    assert list(tmp_path.rglob("*.arrow")) == []


@pytest.mark.parametrize(("span", "batches"), [((7, MANY), 3), ((MANY - 5, MANY + WIDE), 2)])
def test_large_range_is_written_in_several_batches(
    spark: SparkSession,
    settings: Settings,
    stop: threading.Event,
    tmp_path: Path,
    span: tuple[int, int],
    batches: int,
) -> None:
    reader = opened(spark, settings, LARGE, stop)
    (file,) = reader.write({0: span}, tmp_path)
    rows = read_arrow([file])
    reader.close()
    assert len(rows["value"].chunks) == batches
    assert_same(rows.combine_chunks(), rows_of_spark(spark, settings, {0: span}, LARGE, 1).combine_chunks())


def test_file_that_cannot_be_written_fails_the_range_which_is_read_again(
    spark: SparkSession, settings: Settings, reader: KafkaRanges, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_ranges, "SUFFIX", "/no such folder/file.arrow")
    ranges = dict.fromkeys(range(PARTITIONS), (0, 5))
    with pytest.raises(Py4JJavaError, match="No such file"):
        reader.write(ranges, tmp_path)
    monkeypatch.undo()
    assert_same(rows_in(reader.write(ranges, tmp_path)), rows_of_spark(spark, settings, ranges))


def test_range_that_kafka_does_not_have_fails_and_leaves_no_file(
    spark: SparkSession, settings: Settings, stop: threading.Event, tmp_path: Path
) -> None:
    declared = settings.model_copy(update={"kafka_options": {"kafkaConsumer.PollTimeoutMs": "1000"}})
    reader = opened(spark, declared, TOPIC, stop)
    expected = rf"{TOPIC}-1: no records for \d+ s at offset 5, the range ends at 9"
    with pytest.raises(Transient, match=expected) as failed:
        reader.write({0: (0, 5), 1: (3, 9)}, tmp_path)
    assert failed.value.code == "range-failed"
    assert list(tmp_path.rglob("*.arrow")) == []
    assert rows_in(reader.write({1: (3, 5)}, tmp_path))["offset"].to_pylist() == [3, 4]
    reader.close()


def test_records_that_kafka_has_deleted_fail_the_range(
    spark: SparkSession, settings: Settings, stop: threading.Event, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers(settings)})
    (deleted,) = admin.delete_records([TopicPartition(DELETED, 0, 4)]).values()
    deleted.result(30)
    reader = opened(spark, settings, DELETED, stop)
    with pytest.raises(Py4JJavaError, match="OffsetOutOfRange"):
        reader.write({0: (2, 10)}, tmp_path)
    assert rows_in(reader.write({0: (4, 10)}, tmp_path))["offset"].to_pylist() == list(range(4, 10))
    reader.close()


def test_drain_ends_the_wait_for_records_that_do_not_come(
    reader: KafkaRanges, stop: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_ranges, "DRAIN_SECONDS", 1)
    stop.set()
    assert rows_in(reader.write({1: (0, 5)}, tmp_path))["offset"].to_pylist() == [0, 1, 2, 3, 4]
    with pytest.raises(Transient) as stopped:
        reader.write({1: (5, 9)}, tmp_path)
    assert stopped.value.code == "read-stopped"


def test_drain_ends_a_read_that_takes_long(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_ranges, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(kafka_ranges, "DRAIN_SECONDS", 0)
    stop = threading.Event()
    stop.set()
    reader = opened(spark, settings, LARGE, stop)
    with pytest.raises(Transient) as stopped:
        reader.write({0: (0, MANY)}, tmp_path)
    assert stopped.value.code == "read-stopped"
    assert list(tmp_path.rglob("*.arrow")) == []
    stop.clear()
    assert len(rows_in(reader.write({0: (0, 1)}, tmp_path))) == 1
    reader.close()
