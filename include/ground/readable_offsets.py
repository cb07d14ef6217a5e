"""How far a `read_committed` consumer can read a topic: the end that the streams reach."""

from __future__ import annotations

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from include.ground.kafka import TIMEOUT, admin, partition_ids, result_of


def readable_end_offsets(bootstrap: str, topic: str, timeout: float = TIMEOUT) -> dict[int, int]:
    """Per partition the exclusive end before the first open transaction (last stable offset), ascending. TopicMissing.

    It counts offsets without a record too: transaction markers, aborted records, what compaction removed.
    """
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    requested = {TopicPartition(topic, part): latest for part in partition_ids(bootstrap, topic, timeout)}
    futures = admin(bootstrap).list_offsets(
        requested, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout
    )
    return {
        part.partition: int(result_of(future, f"offsets of {topic}", bootstrap, timeout, topic).offset)
        for part, future in futures.items()
    }
