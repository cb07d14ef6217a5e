"""What bronze's commits say of Kafka's offsets: which batch holds which of them, and how many rows that makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from include.clients.delta_log import commits


@dataclass(frozen=True)
class BatchOffsets:
    """What one batch's commit says of one partition: offsets [start, end), the rows in them, and the topic's id."""

    batch: int
    partition: int
    start: int
    end: int
    rows: int
    topic_id: str


def batch_offsets(bronze: Path, batch: int) -> list[BatchOffsets]:
    """Return the tiles of all batches up to `batch` of a bronze table, in the order of its commits."""
    named = (commit.metadata for commit in commits(bronze) if commit.metadata and "offsets" in commit.metadata)
    return [tile for said in named for tile in _tiles(said) if tile.batch <= batch]


def first_batch_since(bronze: Path, since: datetime) -> int | None:
    """Return the first batch that has a record of Kafka time `since` or later; None when there is none."""
    since_ms = int(since.timestamp() * 1000)
    named = (commit.metadata for commit in commits(bronze) if commit.metadata and "offsets" in commit.metadata)
    return next((int(s["batches"][0]) for s in named if s["timestamps"] and s["timestamps"][1] >= since_ms), None)


def _tiles(said: Mapping[str, Any]) -> Iterator[BatchOffsets]:
    counted, batch = said["rows_by_partition"], int(said["batches"][0])
    for partition, (start, end) in said["offsets"].items():
        yield BatchOffsets(
            batch, int(partition), int(start), int(end), int(counted.get(partition, 0)), str(said["topic_id"])
        )
