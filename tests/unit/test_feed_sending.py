"""Sending to a broker (librdkafka's own, in this process): all rows, in order, known places, going on after a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import orjson
import polars as pl
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from error_codes import raises

from include.ground.errors import Refused
from include.producers import sending
from include.producers.faults import Shares
from include.producers.feed import Feed, InvalidEventRange
from include.producers.manifest import Ends, ManifestExists, ManifestUnreadable, journal_path, read_manifest
from include.producers.sending import (
    DeliveryFailed,
    Pace,
    Run,
    SendProgress,
    Sent,
    SentChunk,
    deliveries,
    produce,
    send,
)
from include.producers.weather import WEATHER

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SHARES = Shares(duplicates=0.05, late=0.02, reorder=0.02, corrupt=0.01)
RUN = Run(WEATHER, until=datetime(2013, 1, 11, tzinfo=UTC), shares=SHARES, seed=4)
Row = tuple[bytes | None, bytes | None]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    first = next(iter(owner.list_topics(timeout=10).brokers.values()))
    yield f"{first.host}:{first.port}"
    owner.flush(1)


def ends(bootstrap: str, topic: str) -> Ends:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "allow.auto.create.topics": True})
    found: Ends = {}
    while not found:
        parts = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        found = {part: consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=10)[1] for part in parts}
    consumer.close()
    return found


def log(bootstrap: str, topic: str) -> dict[int, list[Row]]:
    """Everything in the topic, by partition in order of offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": False})
    until = ends(bootstrap, topic)
    consumer.assign([TopicPartition(topic, part, 0) for part in until])
    rows: dict[int, list[Row]] = {part: [] for part in until}
    while any(len(rows[part]) < end for part, end in until.items()):
        message = consumer.poll(10)
        assert message is not None, "the topic is shorter than its end"
        assert message.error() is None
        assert message.offset() == len(rows[message.partition() or 0])
        rows[message.partition() or 0].append((message.key(), message.value()))
    consumer.close()
    return rows


def table(count: int, marked: int = 7) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "key": [f"k{i % 11}".encode() for i in range(count)],
            "value": [f"v{i}".encode() for i in range(count)],
            "fault": [("late" if i % marked == 0 else None) for i in range(count)],
        },
        schema_overrides={"fault": pl.String},
    )


def sender(bootstrap: str, topic: str, manifest: Path) -> Callable[..., Sent]:
    feed = Feed(WEATHER.name, topic, "", WEATHER.id_field, WEATHER.time_field, WEATHER.frame, WEATHER.wrong_values)
    run = Run(feed, RUN.since, RUN.until, RUN.repeat, RUN.shares, RUN.seed)
    return partial(send, run, bootstrap, now=NOW, manifest=manifest, log_ends=ends)


def test_all_rows_arrive_in_order_of_their_key_and_marked_ones_are_located(broker: str) -> None:
    rows = table(5_000)
    done = produce(broker, "order", rows)
    assert (done.sent, done.next_row) == (5_000, 5_000)
    found = log(broker, "order")
    wanted: dict[bytes, list[bytes]] = {}
    for key, value in rows.select("key", "value").rows():
        wanted.setdefault(key, []).append(value)
    for records in found.values():
        for key in {key for key, _ in records}:
            assert [value for k, value in records if k == key] == wanted.pop(key or b"")
    assert not wanted
    assert sorted(done.positions) == list(range(0, 5_000, 7))
    for row, (partition, offset) in done.positions.items():
        assert found[partition][offset] == (rows["key"][row], rows["value"][row])


def test_tombstone_and_empty_value_stay_different(broker: str) -> None:
    rows = pl.DataFrame({"key": [b"k", b"k"], "value": [None, b""], "fault": ["corrupt", "corrupt"]})
    produce(broker, "empty", rows)
    assert [values for values in log(broker, "empty").values() if values] == [[(b"k", None), (b"k", b"")]]


def test_produce_waits_for_a_full_queue(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "QUEUE_RECORDS", 100)
    assert produce(broker, "full", table(3_000)).sent == 3_000
    found = [[int((value or b"")[1:]) for _, value in rows] for rows in log(broker, "full").values()]
    assert sorted(number for rows in found for number in rows) == list(range(3_000))
    assert all(rows == sorted(rows) for rows in found)


def test_chunks_are_reported_when_they_are_in_the_topic(broker: str) -> None:
    reported: list[tuple[SentChunk, int]] = []
    produce(
        broker,
        "chunks",
        table(2_500),
        start_at=500,
        chunk_rows=900,
        on_chunk=lambda chunk: reported.append((chunk, sum(ends(broker, "chunks").values()))),
    )
    assert [(chunk.start, chunk.end, total) for chunk, total in reported] == [
        (500, 1_400, 900),
        (1_400, 2_300, 1_800),
        (2_300, 2_500, 2_000),
    ]
    assert all(chunk.start <= row < chunk.end for chunk, _ in reported for row in chunk.positions)


def test_rate_is_kept_and_progress_is_reported(broker: str) -> None:
    reported: list[SendProgress] = []
    began = time.monotonic()
    done = produce(broker, "rate", table(600), Pace(rate=1_000, on_progress=reported.append))
    assert 0.55 < time.monotonic() - began < 3
    assert reported[-1].sent == reported[-1].total == 600
    assert len(reported) >= 4
    assert done.behind < 1


def test_schedule_does_not_wait_for_a_slow_caller(broker: str) -> None:
    # Two chunks of a second each, a caller of 1.5 s after each: 4 s when what is due goes out at once, 5 s when not.
    spent = list[float]()
    pace = Pace(rate=500, clock=lambda: time.monotonic() + sum(spent))
    slow = produce(broker, "slow", table(1_000), pace, chunk_rows=500, on_chunk=lambda _: spent.append(1.5))
    assert slow.behind > 0.3
    assert slow.seconds < 4.8


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_invalid_rate_is_refused(broker: str, rate: float) -> None:
    with raises(Refused, "invalid-rate"):
        produce(broker, "never", table(1), Pace(rate=rate))


def test_rejected_record_raises_delivery_failed(broker: str) -> None:
    rows = pl.DataFrame({"key": [b"k"], "value": [b"x" * (sending.LARGEST_MESSAGE + 1)], "fault": ["corrupt"]})
    with pytest.raises(DeliveryFailed) as failed:
        produce(broker, "large", rows)
    assert failed.value.failed == 1
    assert "large" in failed.value.first_error


def test_rejected_record_among_others_raises_delivery_failed(broker: str) -> None:
    too_large = b"x" * (sending.LARGEST_MESSAGE + 1)
    rows = table(3).with_columns(pl.Series("value", [b"a", too_large, b"b"]))
    with pytest.raises(DeliveryFailed) as failed:
        produce(broker, "one large", rows)
    assert failed.value.failed >= 1
    assert "large" in failed.value.first_error


def test_unreachable_broker_raises_delivery_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "DELIVERY_SECONDS", 1)
    with pytest.raises(DeliveryFailed) as failed:
        produce("127.0.0.1:1", "gone", table(20))
    assert failed.value.failed == 20


def test_manifest_holds_the_offset_of_every_fault(broker: str, tmp_path: Path) -> None:
    manifest = tmp_path / "faults of a run.jsonl"
    sent = sender(broker, "whole", manifest)()
    rows = deliveries(RUN, NOW)
    assert sent.finished
    assert sent.total == sent.produced.sent == rows.height
    head, *lines = read_manifest(manifest)
    assert head["finished"]
    assert head["sent"] == rows.height
    marked = rows.filter(pl.col("fault").is_not_null())
    assert (
        pl.DataFrame(lines)
        .select("fault", "kind", "reason", "event_id")
        .equals(marked.select("fault", "kind", "reason", "event_id"))
    )
    found = log(broker, "whole")
    for line, value in zip(lines, marked["value"], strict=True):
        assert found[line["partition"]][line["offset"]][1] == value
    assert not journal_path(manifest).exists()


def test_copies_follow_their_originals_in_the_topic(broker: str, tmp_path: Path) -> None:
    manifest = tmp_path / "m"
    sender(broker, "copies", manifest)()
    found = log(broker, "copies")
    copies = [line for line in read_manifest(manifest) if line.get("reason") == "duplicate"]
    assert copies
    for line in copies:
        before = [value for _, value in found[line["partition"]][: line["offset"]]]
        assert any(f'"event_id":"{line["event_id"]}"'.encode() in (value or b"") for value in before)


def test_stopped_run_continues_without_sending_twice(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = tmp_path / "m"
    monkeypatch.setattr(sending, "BURST", 50)
    whole = tmp_path / "whole"
    again = sender(broker, "stopped", manifest)
    stops = iter([False, False])
    first = again(pace=Pace(stop=lambda: next(stops, True)))
    assert not first.finished
    assert 0 < first.produced.next_row < first.total
    assert not next(read_manifest(manifest))["finished"]
    second = again()
    assert second.finished
    assert second.resumed_at == first.produced.next_row
    sender(broker, "stopped-not", whole)()
    assert log(broker, "stopped") == log(broker, "stopped-not")
    pairs = zip(list(read_manifest(manifest))[1:], list(read_manifest(whole))[1:], strict=True)
    assert all(one | {"topic": ""} == other | {"topic": ""} for one, other in pairs)


def test_chunk_resent_after_a_crash_is_in_the_manifest(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(Exception):
        pass

    monkeypatch.setattr("include.producers.sending.produce", partial(produce, chunk_rows=200))
    manifest = tmp_path / "m"
    calls: list[int] = []

    def crashing(bootstrap: str, topic: str) -> Ends:
        calls.append(1)
        if len(calls) == 4:
            raise Crash  # chunk 3 is in the topic, and not yet in the journal
        return ends(bootstrap, topic)

    again = sender(broker, "crashed", manifest)
    with pytest.raises(Crash):
        again(log_ends=crashing)
    with journal_path(manifest).open("ab") as torn:
        torn.write(b'{"sent": 60')
    monkeypatch.setattr(sending, "BURST", 50)
    stop_answers = iter([False] * 5)
    first = again(pace=Pace(stop=lambda: next(stop_answers, True)))
    done = again()
    assert (first.resumed_at, done.resumed_at) == (400, first.produced.next_row)
    assert 600 <= done.resumed_at < done.total
    assert done.finished
    resent = [line for line in read_manifest(manifest) if line["fault"] == "resent"]
    assert {(line["from"], line["to"]) for line in resent} == {(400, 600)}
    assert sum(line["end"] - line["offset"] for line in resent) == 400
    found = log(broker, "crashed")
    assert sum(map(len, found.values())) == done.total + 200
    rows = deliveries(RUN, NOW)
    marked = rows.with_row_index("row").filter(pl.col("fault").is_not_null())
    lines = [line for line in read_manifest(manifest) if line["fault"] not in ("run", "resent")]
    for line, value in zip(lines, marked["value"], strict=True):
        assert found[line["partition"]][line["offset"]][1] == value


def test_manifest_of_a_finished_or_other_run_is_not_overwritten(broker: str, tmp_path: Path) -> None:
    manifest = tmp_path / "m"
    sender(broker, "finished", manifest)()
    before = manifest.read_bytes()
    with pytest.raises(ManifestExists) as same:
        sender(broker, "finished", manifest)()
    assert same.value.finished
    with pytest.raises(ManifestExists) as other:
        sender(broker, "another", manifest)()
    assert not other.value.finished
    assert manifest.read_bytes() == before
    assert sum(ends(broker, "finished").values()) == orjson.loads(before.splitlines()[0])["sent"]


def test_recreated_topic_is_refused(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BURST", 50)
    manifest = tmp_path / "m"
    stops = iter([False, False])
    sender(broker, "old", manifest)(pace=Pace(stop=lambda: next(stops, True)))
    with raises(Refused, "topic-recreated"):
        sender(broker, "old", manifest)(log_ends=lambda *_: {0: 0})


def test_invalid_manifest_is_refused(broker: str, tmp_path: Path) -> None:
    manifest = tmp_path / "m"
    manifest.write_text("my thesis\n")
    with pytest.raises(ManifestUnreadable) as refused:
        sender(broker, "thesis", manifest)()
    assert refused.value.line == 1
    assert manifest.read_text() == "my thesis\n"


def test_empty_or_future_slice_is_refused() -> None:
    with pytest.raises(InvalidEventRange):
        deliveries(Run(WEATHER, since=datetime(2020, 1, 1, tzinfo=UTC)), NOW)
    with pytest.raises(InvalidEventRange):
        deliveries(Run(WEATHER, repeat=14), NOW)
    assert deliveries(Run(WEATHER, repeat=13), NOW).height == 13 * 26_115
