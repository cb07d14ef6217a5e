"""Kafka offsets by batch, from the metadata of bronze's commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from include.ground.delta_log import commits


@dataclass(frozen=True)
class BatchOffsets:
    """One batch's offsets [start, end) of one partition, its rows, and the topic's id.

    `latest_ms`: the Kafka time of the batch's latest record, None when it has none.
    """

    batch: int
    partition: int
    start: int
    end: int
    rows: int
    topic_id: str
    latest_ms: int | None = None


def batch_offsets(bronze: Path, batch: int) -> list[BatchOffsets]:
    """Return the offset ranges of all batches up to `batch` of a bronze table, in the order of its commits."""
    return [each for metadata in _batch_metadata(bronze) for each in commit_ranges(metadata) if each.batch <= batch]


def first_batch_since(bronze: Path, since: datetime) -> int | None:
    """Return the first batch that has a record of Kafka time `since` or later; None when there is none."""
    since_ms = int(since.timestamp() * 1000)
    later = (m for m in _batch_metadata(bronze) if m["timestamps"] and m["timestamps"][1] >= since_ms)
    return next((int(metadata["batches"][0]) for metadata in later), None)


def _batch_metadata(bronze: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the metadata of bronze's commits that added a batch."""
    return (commit.metadata for commit in commits(bronze) if commit.metadata and "offsets" in commit.metadata)


def commit_ranges(metadata: Mapping[str, Any]) -> Iterator[BatchOffsets]:
    """Yield the offsets that the metadata of one commit names, by partition."""
    counted, batch = metadata["rows_by_partition"], int(metadata["batches"][0])
    topic, latest = str(metadata["topic_id"]), (metadata.get("timestamps") or (None, None))[1]
    for partition, (start, end) in metadata["offsets"].items():
        rows = int(counted.get(partition, 0))
        yield BatchOffsets(batch, int(partition), int(start), int(end), rows, topic, latest)
