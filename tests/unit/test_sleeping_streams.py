"""Which sleeping streams are woken: by where their topics end, by a request, and once a day."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from include.ground.errors import Transient
from include.run.sleeping_streams import LONGEST, LOOK_EVERY, Ends, SleepingStreams
from include.state.streams import DriverStatus

NOW = datetime.now(UTC)
LEFT = DriverStatus(state="asleep", topic="orders", rests_at={0: 5, 1: 7}, at=NOW - timedelta(minutes=10))
BEFORE = NOW - timedelta(hours=1)


@dataclass
class Topic:
    ends: Ends = field(default_factory=lambda: {0: 5, 1: 7})
    is_down: bool = False
    looks: int = 0

    def __call__(self, topic: str) -> Ends:
        assert topic == "orders"
        self.looks += 1
        if self.is_down:
            raise Transient("no broker answers", "headrace doctor")
        return self.ends


def holds(condition: Callable[[], bool], within: float = 10.0) -> bool:
    end = time.monotonic() + within
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def after_a_look(streams: SleepingStreams, topic: Topic, left: DriverStatus = LEFT) -> bool:
    """Return whether the stream sleeps on, once the thread has looked."""
    looks = topic.looks
    streams.is_asleep(left, BEFORE, NOW)
    assert holds(lambda: topic.looks > looks)
    streams._thread.submit(lambda: None).result()
    return streams.is_asleep(left, BEFORE, NOW)


def test_stream_sleeps_while_its_topic_ends_where_the_driver_left_it() -> None:
    topic = Topic()
    assert after_a_look(SleepingStreams(topic), topic)


def test_stream_is_woken_by_a_record_a_new_partition_and_a_topic_that_is_gone() -> None:
    for ends in ({0: 5, 1: 8}, {0: 5, 1: 7, 2: 0}, {}):
        topic = Topic(ends)
        assert not after_a_look(SleepingStreams(topic), topic)


def test_stream_sleeps_on_while_no_broker_answers_and_is_looked_after_again() -> None:
    topic = Topic(is_down=True)
    streams = SleepingStreams(topic)
    assert after_a_look(streams, topic)
    assert streams.why_not == {"orders": "whether topic orders has records is not known: no broker answers"}
    topic.is_down, topic.ends = False, {0: 6, 1: 7}
    assert not after_a_look(streams, topic)
    assert streams.why_not == {}


def test_a_look_before_the_driver_slept_wakes_nobody() -> None:
    topic = Topic({0: 4, 1: 7})
    streams = SleepingStreams(topic)
    after_a_look(streams, topic)
    slept_again = replace(LEFT, at=datetime.now(UTC) + timedelta(seconds=1))
    assert streams.is_asleep(slept_again, BEFORE, NOW)


def test_topic_is_looked_at_every_few_seconds() -> None:
    topic = Topic()
    streams = SleepingStreams(topic)
    assert after_a_look(streams, topic)
    assert all(streams.is_asleep(LEFT, BEFORE, datetime.now(UTC)) for _ in range(20))
    assert topic.looks == 1
    streams.is_asleep(LEFT, BEFORE, datetime.now(UTC) + LOOK_EVERY)
    assert holds(lambda: topic.looks == 2)


def test_stream_is_woken_by_a_request_and_once_a_day() -> None:
    streams = SleepingStreams(Topic())
    assert not streams.is_asleep(LEFT, NOW - timedelta(minutes=9), NOW)
    assert not streams.is_asleep(LEFT, BEFORE, NOW + LONGEST)
