"""The events of the benchmarks: real flights with the demo's faults, year after year."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import polars as pl
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from include.errors import Transient
from include.kafka_address import client_options
from include.producers.event_feed import REPETITION
from include.producers.flight_events import FLIGHTS
from include.producers.injected_faults import DEFAULT_SEED, DEFAULT_SHARES, inject_faults
from include.producers.kafka_producer import LARGEST_MESSAGE, QUEUE_RECORDS, produce

POLL_EVERY = 2_000
# The broker aborts a transaction that is open for longer; this is the longest it allows.
TRANSACTION_MS = 900_000
PATIENCE = 120.0


class PreloadFailed(Transient):
    """Kafka did not accept the events of the transaction; none is visible."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the events to be measured could not be sent: {why}", "the same command again")


class EventSupply:
    """An endless sequence of deliveries in order: each year follows the one before, with its own ids."""

    def __init__(self) -> None:
        self._year = 0
        self._rest = pl.DataFrame()

    def frames(self, count: int) -> Iterator[pl.DataFrame]:
        """Yield the next `count` deliveries as frames of at most a year (columns as `inject_faults`)."""
        while count > 0:
            if not self._rest.height:
                self._rest = year(self._year)
                self._year += 1
            taken = self._rest.head(count)
            self._rest = self._rest.slice(taken.height)
            count -= taken.height
            yield taken


def year(number: int) -> pl.DataFrame:
    """Return the deliveries of the year 2013 moved by `number` repetitions, with newly drawn faults."""
    return inject_faults(FLIGHTS.frame(REPETITION * number), FLIGHTS, DEFAULT_SHARES, DEFAULT_SEED + number)


@dataclass(frozen=True)
class SendCost:
    """Cost of sending `events`: `seconds` of wall time, `cpu_seconds` of this process; without deriving them."""

    events: int
    seconds: float
    cpu_seconds: float

    def plus(self, other: SendCost) -> SendCost:
        """Return the sum."""
        return SendCost(self.events + other.events, self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)


def send_frames(bootstrap: str, frames: Iterable[pl.DataFrame]) -> SendCost:
    """Send as fast as possible, outside a transaction; return the time and CPU that it took."""
    total = SendCost(0, 0.0, 0.0)
    for frame in frames:
        began, cpu = time.monotonic(), time.process_time()
        produce(bootstrap, FLIGHTS.topic, frame)
        total = total.plus(SendCost(frame.height, time.monotonic() - began, time.process_time() - cpu))
    return total


class Preload:
    """Events in one open transaction: in the topic, but invisible to `read_committed` consumers."""

    def __init__(self, bootstrap: str) -> None:
        self._failed: KafkaError | None = None
        self._producer = Producer(
            {
                **client_options(bootstrap),
                "transactional.id": "headrace-bench",
                "transaction.timeout.ms": TRANSACTION_MS,
                "compression.type": "lz4",
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                "message.max.bytes": LARGEST_MESSAGE,
                "partitioner": "murmur2_random",
                "on_delivery": self._delivered,
                "log_level": 2,
            }
        )

    def send(self, frames: Iterable[pl.DataFrame]) -> SendCost:
        """Begin the transaction and send; return when every event is in the topic. Raises PreloadFailed."""
        total = SendCost(0, 0.0, 0.0)
        try:
            self._producer.init_transactions(PATIENCE)
            self._producer.begin_transaction()
            for frame in frames:
                total = total.plus(self._send(frame))
        except KafkaException as error:
            raise PreloadFailed(str(error)) from error
        return total

    def commit(self) -> None:
        """Make all events visible at once. Raises PreloadFailed."""
        try:
            self._producer.commit_transaction(PATIENCE)
        except KafkaException as error:
            raise PreloadFailed(str(error)) from error

    def _send(self, frame: pl.DataFrame) -> SendCost:
        began, cpu = time.monotonic(), time.process_time()
        rows = zip(frame["key"].to_list(), frame["value"].to_list(), strict=True)
        for number, (key, value) in enumerate(rows):
            self._queue(key, value)
            if number % POLL_EVERY == 0:
                self._producer.poll(0)
        if self._producer.flush(PATIENCE) or self._failed is not None:
            raise PreloadFailed(self._failed.str() if self._failed else "the broker did not accept them in time")
        return SendCost(frame.height, time.monotonic() - began, time.process_time() - cpu)

    def _queue(self, key: bytes, value: bytes | None) -> None:
        while True:
            try:
                self._producer.produce(FLIGHTS.topic, value, key)
                return
            except BufferError:
                self._producer.poll(0.05)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._failed = self._failed or error
