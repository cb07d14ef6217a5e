"""Sends deliveries to a topic: idempotent, acknowledged by all replicas, in order, at a rate or as fast as possible.

*Guarantee*: when `produce` returns, every row it counts is in the topic, in order within its partition, once for this
call. *Partition*: murmur2 of the key, as the Java client does. *After a crash*: the state of rows after the last
chunk reported to `on_chunk` is unknown; sending them again makes duplicates, which is why they have ids. *Does not*
create topics; of faults it only records the positions of marked rows.

`produce_batch` takes 1.6 µs of CPU a record, a call of `produce` for each 2.0 (librdkafka's mock broker, 500 records a
burst); it reports a record that it refuses only in that record's dict, and queues those that follow in the burst.

Sends one run of a feed: its events with injected faults, and the manifest.

A run with a manifest can be stopped at any moment: the same run with the same manifest continues after the last
chunk that is known to be in the topic. After a crash (not after Ctrl-C) that chunk is sent a second time; these
records are duplicates, and the manifest records them (`resent`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from include.ground.errors import Refused, Transient
from include.ground.kafka import PartitionsNotReady, log_end_offsets, wait_until_usable
from include.ground.kafka_address import client_options
from include.producers.faults import Shares, inject_faults
from include.producers.feed import Feed, InvalidEventRange, events, validate_range
from include.producers.manifest import (
    Ends,
    Journal,
    Line,
    extend_journal,
    open_journal,
    refuse_other_run,
    write_manifest,
)

CHUNK = 20_000
BURST = 2_000
PROGRESS_SECONDS = 0.1
DELIVERY_SECONDS = 120
# A bad record may be larger than the broker's usual limit of 1 MB; compressed it is small.
LARGEST_MESSAGE = 4_000_000
QUEUE_RECORDS = 200_000
Position = tuple[int, int]
Queued = dict[str, Any]
"""A record in the form of `produce_batch`: key, value, and a callback that gets its delivery report."""


class DeliveryFailed(Transient):
    """`failed` records were not accepted, for the reason `first_error`; some that follow them may be in the topic."""

    def __init__(self, topic: str, failed: int, first_error: str) -> None:
        super().__init__(
            f"{failed} record(s) for topic {topic} were not delivered ({first_error}); sending stopped there",
            "headrace status, then the same command again: with --manifest it continues, without it starts over",
        )
        self.topic = topic
        self.failed = failed
        self.first_error = first_error


@dataclass(frozen=True)
class SendProgress:
    """Rows [first, sent) of `total` were queued in `seconds`; `behind`: seconds behind the schedule."""

    first: int
    sent: int
    total: int
    seconds: float
    behind: float

    @property
    def rate(self) -> float:
        return (self.sent - self.first) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Pace:
    """How fast rows are sent: `rate` in events/s, None for as fast as possible.

    A rate is an open loop: delayed rows are sent as soon as possible, the schedule does not change. It starts with the
    call, or started at `began` (of `clock`): a schedule can continue over several calls. `stop` is called between
    bursts; rows queued by then are delivered.
    """

    rate: float | None = None
    began: float | None = None
    on_progress: Callable[[SendProgress], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic


AT_ONCE = Pace()


@dataclass(frozen=True)
class SentChunk:
    """Rows [start, end) are in the topic; `positions`: marked row → (partition, offset)."""

    start: int
    end: int
    positions: dict[int, Position]


@dataclass(frozen=True)
class Produced:
    """Result of `produce`: `sent` rows in this call, the next row is `next_row`; `behind`: worst delay, seconds."""

    sent: int
    next_row: int
    seconds: float
    behind: float
    positions: dict[int, Position]
    """Positions of marked rows that were not reported to `on_chunk`."""


def produce(
    bootstrap: str,
    topic: str,
    deliveries: pl.DataFrame,
    pace: Pace = AT_ONCE,
    *,
    start_at: int = 0,
    chunk_rows: int = CHUNK,
    on_chunk: Callable[[SentChunk], None] | None = None,
) -> Produced:
    """Send rows from `start_at` on; columns `key`, `value` (binary, null = tombstone) and `fault` (null = unmarked).

    With `on_chunk`, each chunk is flushed and reported before the next begins. Raises DeliveryFailed when the broker
    does not accept a record.
    """
    if pace.rate is not None and not pace.rate > 0:
        what = f"--rate {pace.rate:g} is not a positive number of events per second; nothing was sent"
        raise Refused(what, code="invalid-rate", rate=pace.rate)
    outbox = Outbox(bootstrap, topic)
    schedule = Schedule(pace, start_at, deliveries.height)
    row = start_at
    while row < deliveries.height and not pace.stop():
        first = row
        row = queue_chunk(outbox, schedule, deliveries.slice(first, chunk_rows), first)
        if on_chunk:
            outbox.flush()
            on_chunk(SentChunk(first, row, outbox.take_positions()))
    outbox.flush()
    schedule.report(row, force=True)
    return Produced(row - start_at, row, schedule.elapsed(), schedule.worst, outbox.take_positions())


def queue_chunk(outbox: Outbox, schedule: Schedule, chunk: pl.DataFrame, first: int) -> int:
    """Queue the rows of a chunk, which begins with row `first`, as they fall due; return the row after the last one."""
    messages = outbox.messages(chunk, first)
    done, count = 0, len(messages)
    while done < count and not schedule.pace.stop():
        due = min(schedule.due() - first, count, done + BURST)
        if due <= done:
            outbox.poll(schedule.wait(first + done))
            continue
        outbox.put(messages[done:due])
        done = due
        outbox.poll(0)
        schedule.report(first + done)
    return first + done


class Schedule:
    """When each row is due, and the delay."""

    def __init__(self, pace: Pace, first: int, total: int) -> None:
        self.pace, self.rate, self.first, self.total = pace, pace.rate, first, total
        self.began = pace.clock() if pace.began is None else pace.began
        self.reported_at = 0.0
        self.worst = 0.0

    def elapsed(self) -> float:
        return self.pace.clock() - self.began

    def due(self) -> int:
        return self.total if self.rate is None else self.first + int(self.elapsed() * self.rate)

    def wait(self, row: int) -> float:
        """Return the seconds until the row after `row` is due: at most 50 ms, so that `stop` is checked; at least 5."""
        ahead = 0.0 if self.rate is None else (row + 1 - self.first) / self.rate - self.elapsed()
        return min(max(ahead, 0.005), 0.05)

    def report(self, row: int, force: bool = False) -> None:
        """Record the delay of `row`; report the progress, unless that was done a moment ago."""
        now = self.elapsed()
        behind = 0.0 if self.rate is None else max(0.0, now - (row - self.first) / self.rate)
        self.worst = max(self.worst, behind)
        if force or now - self.reported_at >= PROGRESS_SECONDS:
            self.reported_at = now
            self.pace.on_progress(SendProgress(self.first, row, self.total, now, behind))


def batching_options() -> dict[str, str | int]:
    """Return the options of a client that sends many records in few requests, partitioned as Java's client does it."""
    return {
        "compression.type": "lz4",
        "linger.ms": 20,
        "batch.size": 1_000_000,
        "batch.num.messages": 100_000,
        "queue.buffering.max.messages": QUEUE_RECORDS,
        "message.max.bytes": LARGEST_MESSAGE,
        "partitioner": "murmur2_random",
    }


class Outbox:
    """A Kafka producer with its delivery reports: failures, and positions of marked rows. `flush` ends its use.

    Without `keeping_positions` it reports failures alone, which costs less CPU for each record.
    """

    def __init__(self, bootstrap: str, topic: str, *, keeping_positions: bool = True) -> None:
        self.topic = topic
        self.keeping_positions = keeping_positions
        self.failed = 0
        self.first_error = ""
        self.transport_error = ""
        self.positions: dict[int, Position] = {}
        self.producer = Producer(
            {
                **client_options(bootstrap),
                "enable.idempotence": True,
                "acks": "all",
                **batching_options(),
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                "on_delivery": self._delivered,
                "delivery.report.only.error": not keeping_positions,
                "error_cb": self._on_error,
                "log_level": 2,
            }
        )

    def messages(self, rows: pl.DataFrame, first: int) -> list[Queued]:
        """Return the records of rows, which begin with row `first`, as `put` takes them."""
        records = zip(rows["key"].to_list(), rows["value"].to_list(), strict=True)
        messages: list[Queued] = [{"key": key, "value": value} for key, value in records]
        if self.keeping_positions:
            for place in rows["fault"].is_not_null().arg_true().to_list():
                messages[place]["callback"] = partial(self._record_position, first + place)
        return messages

    def put(self, messages: list[Queued]) -> None:
        """Queue records, waiting while the queue is full. Raises DeliveryFailed when one cannot be queued."""
        # Once the queue is full, librdkafka takes none of the messages that follow, so their order stays.
        while self.producer.produce_batch(self.topic, messages) < len(messages):
            messages = [message for message in messages if "_error" in message]
            for message in messages:
                self._refuse(message.pop("_error"))
            self.poll(0.05)

    def _refuse(self, error: KafkaError) -> None:
        """Abort because a record cannot be queued, unless the queue is just full."""
        if error.code() != KafkaError._QUEUE_FULL:
            self._note(error)
            self._abort(KafkaException(error))

    def poll(self, seconds: float) -> None:
        """Process delivery reports. Raises DeliveryFailed when a record was not delivered."""
        self.producer.poll(seconds)
        if self.failed:
            self._abort()

    def flush(self) -> None:
        """Wait until every queued record is in the topic. Raises DeliveryFailed."""
        while self.producer.flush(0.2):
            self.poll(0)
        self.poll(0)

    def take_positions(self) -> dict[int, Position]:
        taken, self.positions = self.positions, {}
        return taken

    def _abort(self, cause: KafkaException | None = None) -> None:
        self.producer.purge()
        self.producer.flush(5)
        raise DeliveryFailed(self.topic, self.failed, self.first_error) from cause

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._note(error)

    def _record_position(self, row: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._note(error)
            return
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None:
            self.positions[row] = (partition, offset)

    def _note(self, error: KafkaError) -> None:
        self.failed += 1
        cause = f"; {self.transport_error}" if self.transport_error else ""
        self.first_error = self.first_error or f"{error.str()}{cause}"

    def _on_error(self, error: KafkaError) -> None:
        self.transport_error = error.str()


LogEnds = Callable[[str, str], Ends]
"""(bootstrap, topic) → the end offset of each partition."""


@dataclass(frozen=True)
class Run:
    """What to send: a slice of a feed (`since <= time < until`), repeated, with faults drawn by `seed`.

    InvalidEventRange when the slice cannot hold an event.
    """

    feed: Feed
    since: datetime | None = None
    until: datetime | None = None
    repeat: int = 1
    shares: Shares = field(default_factory=Shares)
    seed: int = 1

    def __post_init__(self) -> None:
        validate_range(self.since, self.until, self.repeat)

    def facts(self) -> Line:
        """Return the identity of the run, as JSON."""
        return {
            "feed": self.feed.name,
            "topic": self.feed.topic,
            "from": self.since.isoformat() if self.since else None,
            "to": self.until.isoformat() if self.until else None,
            "repeat": self.repeat,
            "shares": asdict(self.shares),
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Sent:
    """Result of a run: `produced` by this call; `total` records in the run, `finished` when all are in the topic."""

    produced: Produced
    total: int
    finished: bool
    resumed_at: int = 0


def deliveries(run: Run, now: datetime) -> pl.DataFrame:
    """Return everything the run delivers, in order (columns as `inject_faults`).

    InvalidEventRange when the slice is empty, a repetition would be in the future, after `now`, or records of the feed
    cannot be corrupted.
    """
    if run.shares.corrupt and not run.feed.corruptible:
        raise InvalidEventRange(f"records of {run.feed.name} cannot be corrupted: their times are not in ISO 8601")
    selected = events(run.feed, run.since, run.until, run.repeat)
    if not selected.height:
        raise InvalidEventRange(f"{run.feed.name} has no events in the requested range")
    newest = selected["occurred_at"].max()
    if isinstance(newest, datetime) and newest > now:
        raise InvalidEventRange(f"--repeat {run.repeat} reaches {newest.isoformat()}, which is in the future")
    return inject_faults(selected, run.feed, run.shares, run.seed)


def send(
    run: Run,
    bootstrap: str,
    *,
    now: datetime,
    rows: pl.DataFrame | None = None,
    manifest: Path | None = None,
    pace: Pace = AT_ONCE,
    log_ends: LogEnds | None = None,
) -> Sent:
    """Send the run to its topic (which must exist) and write the manifest of what was delivered.

    `rows`: its `deliveries(run, now)`, if already computed.

    With `manifest`, an interrupted run is continued; ManifestExists when the file belongs to another run or to this
    one and it is finished. After `pace.stop` or a failed delivery the manifest holds what was delivered.
    """
    if manifest:
        refuse_other_run(manifest, run.facts())
    rows = deliveries(run, now) if rows is None else rows
    if not manifest:
        done = produce(bootstrap, run.feed.topic, rows, pace)
        return Sent(done, rows.height, done.next_row == rows.height)
    writer = _JournalWriter(run, rows, manifest, partial(log_ends or ends_with_retry, bootstrap, run.feed.topic))
    start_at = writer.journal.sent
    try:
        done = produce(bootstrap, run.feed.topic, rows, pace, start_at=start_at, on_chunk=writer.record)
    finally:
        write_manifest(manifest, writer.journal, finished=writer.journal.sent == rows.height)
    return Sent(done, rows.height, done.next_row == rows.height, start_at)


def ends_with_retry(bootstrap: str, topic: str) -> Ends:
    """Return the end offset of each partition, with the producer's timeout while a broker restarts."""
    try:
        return log_end_offsets(bootstrap, topic, DELIVERY_SECONDS)
    except PartitionsNotReady:
        wait_until_usable(bootstrap, topic, DELIVERY_SECONDS)
        return log_end_offsets(bootstrap, topic, DELIVERY_SECONDS)


class _JournalWriter:
    """Writes the run's journal, chunk by chunk."""

    def __init__(self, run: Run, rows: pl.DataFrame, manifest: Path, log_ends: Callable[[], Ends]) -> None:
        self.topic, self.rows, self.log_ends = run.feed.topic, rows, log_ends
        found = log_ends()
        self.journal: Journal = open_journal(manifest, run.facts(), found)
        # Records after the journal's end reached the topic before the crash.
        self.crashed = found != self.journal.ends

    def record(self, chunk: SentChunk) -> None:
        ends = self.log_ends()
        lines = fault_lines(self.rows, self.topic, chunk.positions)
        if self.crashed:
            lines = [*resent_lines(self.topic, chunk, self.journal.ends, ends), *lines]
            self.crashed = False
        self.journal = extend_journal(self.journal, chunk.end, ends, lines)


def fault_lines(rows: pl.DataFrame, topic: str, positions: dict[int, Position]) -> list[Line]:
    """Return the manifest lines of the delivered marked rows, in order of delivery."""
    landed = sorted(positions)
    marked = rows[landed].select("fault", "kind", "reason", "event_id").to_dicts() if landed else []
    return [
        mark | {"topic": topic, "partition": positions[row][0], "offset": positions[row][1]}
        for row, mark in zip(landed, marked, strict=True)
    ]


def resent_lines(topic: str, chunk: SentChunk, before: Ends, after: Ends) -> list[Line]:
    """Return a `resent` line per partition: rows of the chunk, and the offsets that contain both copies."""
    return [
        {
            "fault": "resent",
            "from": chunk.start,
            "to": chunk.end,
            "topic": topic,
            "partition": partition,
            "offset": before.get(partition, 0),
            "end": end,
        }
        for partition, end in sorted(after.items())
    ]
