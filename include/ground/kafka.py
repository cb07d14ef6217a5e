"""Kafka's admin client as functions: topics and offsets, every call bounded in time.

`bootstrap` is `host:port[,host:port]`; timeouts are seconds. Raises BrokerUnreachable when no broker answers in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    TopicDescription,
)
from confluent_kafka.cimpl import NewTopic

from include.ground.errors import Terminal, Transient
from include.ground.kafka_address import client_options

TIMEOUT = 10.0
# librdkafka logs a line a second about an unreachable broker; our error reports it once.
QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}
# An admin client asks the broker that the metadata names as controller. When that one is gone, it learns of another by
# the next periodic refresh only, every five minutes by default.
ADMIN: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 2000, "socket.connection.setup.timeout.ms": 5000}
UNKNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
SETTLING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}
LEAST_COPIES = 2
UNLIMITED_RETENTION = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}

Result = TypeVar("Result")
_refusals: dict[str, str] = {}
"""By address, why the broker refused the last connection: a wrong password, or a certificate that is not trusted."""


class BrokerUnreachable(Transient):
    """No broker answered at `bootstrap` within the time given."""

    def __init__(self, bootstrap: str, why: str = "no answer") -> None:
        super().__init__(f"no Kafka broker answers at {bootstrap} ({why})", "headrace status; headrace up")
        self.bootstrap, self.why = bootstrap, why


class TopicMissing(Terminal):
    """The topic does not exist."""

    def __init__(self, topic: str, bootstrap: str) -> None:
        super().__init__(
            f"topic {topic} does not exist at {bootstrap}",
            "headrace up   (creates the topics of all datasets, unless HEADRACE_KAFKA_CREATE_TOPICS is false)",
        )
        self.topic, self.bootstrap = topic, bootstrap


class PartitionsNotReady(Transient):
    """A partition of the topic has no leader yet: the topic was just created, or the broker restarted."""

    def __init__(self, doing: str, bootstrap: str, reason: str) -> None:
        super().__init__(f"{doing} at {bootstrap}: {reason}; the partition has no leader yet", "try again in a while")
        self.bootstrap = bootstrap


class KafkaRefused(Terminal):
    """The broker answered with an error; `answer` is Kafka's name for it."""

    def __init__(self, doing: str, bootstrap: str, answer: str, reason: str) -> None:
        super().__init__(f"{doing} at {bootstrap} was refused: {answer}: {reason}")
        self.bootstrap, self.answer = bootstrap, answer


@lru_cache(maxsize=8)
def admin(bootstrap: str) -> AdminClient:
    """Return the admin client for a broker, one per process: each costs a thread and a connection."""
    options: dict[str, Any] = {**client_options(bootstrap), **ADMIN, **QUIET}
    options["error_cb"] = lambda error: _note_refusal(bootstrap, error)
    return AdminClient(options)


def _note_refusal(bootstrap: str, error: KafkaError) -> None:
    """Remember why a broker refuses a client: the call that fails later only reports a timeout."""
    if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
        _refusals[bootstrap] = error.str()


def cluster_id(bootstrap: str, timeout: float = TIMEOUT) -> str:
    """Return the id of the cluster that answers."""
    try:
        return str(admin(bootstrap).list_topics(timeout=timeout).cluster_id)
    except KafkaException as error:
        raise translate_error(error, "reading the metadata", bootstrap) from error


def ensure_topic(bootstrap: str, name: str, partitions: int, *, may_create: bool = True) -> None:
    """Create the topic unless it exists: log-append timestamps, no retention limit. An existing one is not changed.

    Returns when every partition answers. Raises TopicMissing for a missing one that this may not create.
    """
    if may_create:
        _create_topic(bootstrap, name, partitions)
    else:
        describe_topic(bootstrap, name)
    wait_until_usable(bootstrap, name)


def _create_topic(bootstrap: str, name: str, partitions: int) -> None:
    topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(UNLIMITED_RETENTION))
    future = admin(bootstrap).create_topics([topic], operation_timeout=TIMEOUT, request_timeout=TIMEOUT)[name]
    try:
        result_of(future, f"creating topic {name}", bootstrap, TIMEOUT)
    except KafkaRefused as error:
        if error.answer != "TOPIC_ALREADY_EXISTS":
            raise


def wait_until_usable(bootstrap: str, topic: str, timeout: float = TIMEOUT) -> None:
    """Return when every partition of the topic answers. Raises the broker's last error after `timeout`."""
    end = time.monotonic() + timeout
    while True:
        try:
            log_end_offsets(bootstrap, topic, timeout)
            return
        except (TopicMissing, PartitionsNotReady):
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


def describe_topic(bootstrap: str, topic: str, timeout: float = TIMEOUT) -> TopicDescription:
    """Return the broker's description of a topic. Raises TopicMissing."""
    futures = admin(bootstrap).describe_topics(TopicCollection([topic]), request_timeout=timeout)
    found: TopicDescription = result_of(futures[topic], f"describing topic {topic}", bootstrap, timeout, topic)
    return found


def topic_id(bootstrap: str, topic: str) -> str:
    """Return Kafka's id of the topic, which changes when it is deleted and created again. Raises TopicMissing."""
    return str(describe_topic(bootstrap, topic).topic_id)


def is_compacted(bootstrap: str, topic: str) -> bool:
    """Return whether Kafka may remove single records (`cleanup.policy` has `compact`). Raises TopicMissing."""
    return "compact" in str(_topic_settings(bootstrap, topic)["cleanup.policy"].value)


def _topic_settings(bootstrap: str, topic: str) -> Mapping[str, Any]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    future = admin(bootstrap).describe_configs([resource], request_timeout=TIMEOUT)[resource]
    found: Mapping[str, Any] = result_of(future, f"settings of topic {topic}", bootstrap, TIMEOUT, topic)
    return found


def topic_concerns(bootstrap: str, topic: str) -> list[str]:
    """Return what the settings of a topic mean for its records, in words; nothing when they are as Headrace sets them.

    Raises TopicMissing.
    """
    found = _topic_settings(bootstrap, topic)
    copies = min(len(part.replicas) for part in describe_topic(bootstrap, topic).partitions)
    concerns = []
    if (kept := int(found["retention.ms"].value)) >= 0:
        hours = kept / 3_600_000
        concerns.append(
            f"retention.ms is {kept} ({hours:,.0f} h): records that the stream has not read by then are lost"
        )
    if (size := int(found["retention.bytes"].value)) >= 0:
        concerns.append(
            f"retention.bytes is {size:,} a partition: records that the stream has not read when it is larger are lost"
        )
    if found["message.timestamp.type"].value != "LogAppendTime":
        concerns.append(
            "message.timestamp.type is CreateTime: producers choose the times that replays select by, and a time"
            " outside the years 1 to 9999 is a rejection (kafka_timestamp)"
        )
    if "compact" in str(found["cleanup.policy"].value):
        concerns.append(
            "cleanup.policy has compact: Kafka removes a key's older records, also ones that the stream has not read by"
            " then; a full audit shows those in bronze as surplus"
        )
    if copies < LEAST_COPIES:
        concerns.append(f"a partition has {copies} replica: the loss of one broker loses its records")
    return concerns


def partition_ids(bootstrap: str, topic: str, timeout: float = TIMEOUT) -> list[int]:
    """Return the topic's partition numbers, ascending. Raises TopicMissing."""
    return sorted(part.id for part in describe_topic(bootstrap, topic, timeout).partitions)


def log_end_offsets(bootstrap: str, topic: str, timeout: float = TIMEOUT) -> dict[int, int]:
    """Return each partition's exclusive end: the next offset, open transactions included. Raises TopicMissing."""
    return offsets(bootstrap, topic, OffsetSpec.latest(), timeout)  # type: ignore[no-untyped-call]


def log_start_offsets(bootstrap: str, topic: str, timeout: float = TIMEOUT) -> dict[int, int]:
    """Return each partition's first offset that Kafka still has. Raises TopicMissing."""
    return offsets(bootstrap, topic, OffsetSpec.earliest(), timeout)  # type: ignore[no-untyped-call]


def readable_end_offsets(bootstrap: str, topic: str, timeout: float = TIMEOUT) -> dict[int, int]:
    """Per partition the exclusive end before the first open transaction (last stable offset), ascending. TopicMissing.

    It counts offsets without a record too: transaction markers, aborted records, what compaction removed.
    """
    return offsets(bootstrap, topic, OffsetSpec.latest(), timeout, IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]


def offsets(
    bootstrap: str,
    topic: str,
    which: OffsetSpec,
    timeout: float = TIMEOUT,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[int, int]:
    """Return each partition's offset that `which` names, ascending by partition."""
    requested = {TopicPartition(topic, part): which for part in partition_ids(bootstrap, topic, timeout)}
    futures = admin(bootstrap).list_offsets(requested, isolation_level=isolation, request_timeout=timeout)
    return {
        part.partition: int(result_of(future, f"offsets of {topic}", bootstrap, timeout, topic).offset)
        for part, future in futures.items()
    }


def delete_records_before(bootstrap: str, topic: str, ends: Mapping[int, int]) -> None:
    """Delete the records below an offset of each partition, as retention does; irreversible. Raises TopicMissing."""
    requested = [TopicPartition(topic, part, end) for part, end in ends.items()]
    for future in admin(bootstrap).delete_records(requested, request_timeout=TIMEOUT).values():
        result_of(future, f"deleting records of {topic}", bootstrap, TIMEOUT, topic)


def result_of(future: Future[Result], doing: str, bootstrap: str, timeout: float, topic: str = "") -> Result:
    """Return the future's result. Raises Kafka's errors as ours."""
    try:
        return future.result(timeout + 1)
    except KafkaException as error:
        raise translate_error(error, doing, bootstrap, topic) from error
    except TimeoutError as error:
        raise _no_answer(bootstrap, f"{doing}: no answer in {timeout:.0f} s") from error


def _no_answer(bootstrap: str, why: str) -> Terminal | Transient:
    admin(bootstrap).poll(0)
    if not (refusal := _refusals.pop(bootstrap, "")):
        return BrokerUnreachable(bootstrap, why)
    return Terminal(
        f"the Kafka at {bootstrap} refuses this client: {refusal}; nothing was read or written",
        "correct HEADRACE_KAFKA_SECURITY, _MECHANISM, _USER, _PASSWORD_FILE or _CA_FILE   (headrace settings)",
        code="login-refused",
    )


def translate_error(error: KafkaException, doing: str, bootstrap: str, topic: str = "") -> Terminal | Transient:
    """Return our error for librdkafka's: topic missing, partition without leader, refused, or broker unreachable."""
    cause: KafkaError = error.args[0]
    if cause.code() in UNKNOWN and topic:
        return TopicMissing(topic, bootstrap)
    if cause.code() in SETTLING:
        return PartitionsNotReady(doing, bootstrap, cause.str())
    if cause.code() < 0 or cause.retriable():
        return _no_answer(bootstrap, f"{doing}: {cause.str()}")
    return KafkaRefused(doing, bootstrap, cause.name(), cause.str())


@dataclass(frozen=True)
class KafkaRecord:
    """One record: offset, timestamp in UTC milliseconds, key and value."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


RecordReader = Callable[[int, int, int], list[KafkaRecord]]
"""(partition, start, end) → the committed records that Kafka has in [start, end)."""


@contextmanager
def record_reader(bootstrap: str, topic: str, timeout: float = TIMEOUT) -> Iterator[RecordReader]:
    """Yield a reader of short ranges. It raises BrokerUnreachable after `timeout` seconds without an answer.

    Offsets without a record (transaction markers, aborted or compacted records) are left out.
    """
    consumer = Consumer(
        {
            **client_options(bootstrap),
            # The client requires a group id; it never subscribes or commits with it.
            "group.id": "headrace-records",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 16 * 1024,
            **QUIET,
        }
    )
    try:
        yield lambda partition, start, end: _read(consumer, TopicPartition(topic, partition, start), end, timeout)
    except KafkaException as error:
        raise translate_error(error, f"reading records of {topic}", bootstrap, topic) from error
    except TimeoutError as error:
        raise BrokerUnreachable(bootstrap, str(error)) from error
    finally:
        consumer.close()


def _read(consumer: Consumer, place: TopicPartition, end: int, timeout: float) -> list[KafkaRecord]:
    found: list[KafkaRecord] = []
    consumer.assign([place])
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None:
            continue
        record = _record(message)
        if record is None or record.offset >= end:
            return found
        found.append(record)
        if record.offset == end - 1:
            return found
    raise TimeoutError(f"no answer about offset {place.offset} of partition {place.partition} in {timeout:.0f} s")


def _record(message: Message) -> KafkaRecord | None:
    """Return the message's record, None at the end of what can be read. Raises KafkaException for an error."""
    error, offset = message.error(), message.offset()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    if error is not None or offset is None:
        return None
    return KafkaRecord(offset, message.timestamp()[1], message.key(), message.value())
