"""Sending a user's own file: every line as it is, in order, with the key that a field gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from include.producers import command
from include.producers.command import record_key, send_file
from include.producers.sending import Pace, SendProgress

LINES = [b'{"id": "a", "n": 1}', b"nonsense \xff", b'{"id": 2}', b"{}", b'{"id": "a", "n": 2}']


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    first = next(iter(owner.list_topics(timeout=10).brokers.values()))
    yield f"{first.host}:{first.port}"
    owner.flush(1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my records.jsonl"
    path.write_bytes(b"\n".join([*LINES[:2], b"", *LINES[2:]]))
    return path


def records(bootstrap: str, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, part, 0) for part in consumer.list_topics(topic).topics[topic].partitions])
    found = []
    while len(found) < count:
        message = consumer.poll(10)
        assert message is not None
        found.append((message.key(), message.value()))
    assert consumer.poll(0.2) is None
    consumer.close()
    return found


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (b'{"id": "x"}', b"x"),
        (b'{"id": 7}', b"7"),
        (b'{"id": {"a": [1, 2]}}', b'{"a":[1,2]}'),
        (b'{"id": null}', None),
        (b'{"other": 1}', None),
        (b"[1]", None),
        (b"\xff", None),
    ],
)
def test_key_is_the_value_of_the_field(record: bytes, key: bytes | None) -> None:
    assert record_key(record, "id") == key


def test_every_line_is_a_record_with_the_bytes_of_the_line(broker: str, file: Path) -> None:
    seen: list[SendProgress] = []
    sent = send_file(file, broker, "lines", key="id", pace=Pace(on_progress=seen.append))
    assert (sent.produced.sent, sent.total, sent.finished) == (5, 5, True)
    found = records(broker, "lines", 5)
    assert sorted(value or b"" for _, value in found) == sorted(LINES)
    assert {value: key for key, value in found}[LINES[2]] == b"2"
    assert [value for key, value in found if key == b"a"] == [LINES[0], LINES[4]]
    assert (seen[-1].sent, seen[-1].total) == (5, 5)


def test_chunks_together_are_the_whole_file_at_the_rate(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "CHUNK_LINES", 10)
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(35)))
    sent = send_file(path, broker, "chunks", pace=Pace(rate=100))
    assert sent.produced.sent == 35
    assert 0.2 < sent.produced.seconds < 5
    assert len(records(broker, "chunks", 35)) == 35


def test_stop_leaves_the_rest_of_the_file(broker: str, file: Path) -> None:
    sent = send_file(file, broker, "stopped", pace=Pace(stop=lambda: True))
    assert (sent.produced.sent, sent.total, sent.finished) == (0, 5, False)
