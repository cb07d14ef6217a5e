"""Sends the benchmarks' events, at once, into one transaction, or in an open loop, and counts them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from benchmarks.sent_records import SentRecords
from include.ground.errors import Transient
from include.ground.kafka_address import client_options
from include.producers.sending import Outbox, Pace, Schedule, batching_options, produce, queue_chunk

POLL_EVERY = 2_000
# The broker aborts a transaction that is open for longer; this is the longest it allows.
TRANSACTION_MS = 900_000
PATIENCE = 120.0


class PreloadFailed(Transient):
    """Kafka did not accept the events of the transaction; none is visible."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the events to be measured could not be sent: {why}", "the same command again")


@dataclass(frozen=True)
class Target:
    """A topic, and what was sent to it."""

    bootstrap: str
    topic: str
    sent: SentRecords


def send_frames(target: Target, frames: Iterable[pl.DataFrame]) -> None:
    """Send as fast as possible, outside a transaction."""
    for frame in frames:
        produce(target.bootstrap, target.topic, frame)
        target.sent.add(frame)


class OpenLoop(threading.Thread):
    """Sends frames at a steady rate by one schedule and one producer, in a background thread.

    Delayed records never delay the schedule. `behind`: the worst delay against the schedule, seconds.
    """

    def __init__(self, target: Target, frames: Iterable[pl.DataFrame], rate: float) -> None:
        super().__init__(name="sender", daemon=True)
        self.behind = 0.0
        self.error: Exception | None = None
        self._target, self._frames, self._rate = target, frames, rate
        self._stop_event = threading.Event()

    def run(self) -> None:
        """Send until the frames end or `stop` is called."""
        try:
            self._send()
        except Exception as error:  # noqa: BLE001  (raised by finish)
            self.error = error

    def finish(self) -> None:
        """Wait for the end and raise the error that ended it, if any."""
        self.join()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop early and wait for the thread."""
        self._stop_event.set()
        self.join()

    def _send(self) -> None:
        outbox = Outbox(self._target.bootstrap, self._target.topic, keeping_positions=False)
        schedule, row = Schedule(Pace(self._rate, stop=self._stop_event.is_set), first=0, total=0), 0
        for frame in self._frames:
            first, row = row, queue_chunk(outbox, schedule, frame, row)
            self._target.sent.add(frame.head(row - first))
            if self._stop_event.is_set():
                break
        outbox.flush()
        self.behind = schedule.worst


class Preload:
    """Events in one open transaction: in the topic, but invisible to `read_committed` consumers."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._failed: KafkaError | None = None
        self._producer = Producer(
            {
                **client_options(target.bootstrap),
                "transactional.id": "headrace-bench",
                "transaction.timeout.ms": TRANSACTION_MS,
                **batching_options(),
                "on_delivery": self._delivered,
                "log_level": 2,
            }
        )

    def send(self, frames: Iterable[pl.DataFrame]) -> None:
        """Begin the transaction and send; return when every event is in the topic. Raises PreloadFailed."""
        try:
            self._producer.init_transactions(PATIENCE)
            self._producer.begin_transaction()
            for frame in frames:
                self._send(frame)
                self._target.sent.add(frame)
        except KafkaException as error:
            raise PreloadFailed(str(error)) from error

    def commit(self) -> None:
        """Make all events visible at once. Raises PreloadFailed."""
        try:
            self._producer.commit_transaction(PATIENCE)
        except KafkaException as error:
            raise PreloadFailed(str(error)) from error

    def _send(self, frame: pl.DataFrame) -> None:
        rows = zip(frame["key"].to_list(), frame["value"].to_list(), strict=True)
        for number, (key, value) in enumerate(rows):
            self._queue(key, value)
            if number % POLL_EVERY == 0:
                self._producer.poll(0)
        if self._producer.flush(PATIENCE) or self._failed is not None:
            raise PreloadFailed(self._failed.str() if self._failed else "the broker did not accept them in time")

    def _queue(self, key: bytes, value: bytes | None) -> None:
        while True:
            try:
                self._producer.produce(self._target.topic, value, key)
                return
            except BufferError:
                self._producer.poll(0.05)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._failed = self._failed or error
