"""Single records of a topic (librdkafka's own broker, in this process): content, bounds, and an unreachable broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from include.ground.kafka import BrokerUnreachable, KafkaRecord, record_reader

SENT = [(b"a", b"first"), (None, b"second"), (b"c", None)]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    first = next(iter(producer.list_topics(timeout=10).brokers.values()))
    for number, (key, value) in enumerate(SENT):
        producer.produce("records", key=key, value=value, partition=0, timestamp=1_000 + number)
    producer.flush(10)
    yield f"{first.host}:{first.port}"
    # The broker lives as long as this producer.
    producer.flush(1)


def test_record_reader_returns_the_records_of_a_range(broker: str) -> None:
    sent = [KafkaRecord(n, 1_000 + n, key, value) for n, (key, value) in enumerate(SENT)]
    with record_reader(broker, "records") as read:
        assert [read(0, start, end) for start, end in [(1, 2), (0, 3), (2, 9)]] == [sent[1:2], sent, sent[2:]]
        assert read(0, 3, 9) == []


def test_record_reader_without_a_broker_raises_broker_unreachable() -> None:
    with pytest.raises(BrokerUnreachable), record_reader("127.0.0.1:1", "records", timeout=0.2) as read:
        read(0, 0, 1)
