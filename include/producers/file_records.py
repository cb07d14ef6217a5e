"""Records of a user's own file, one per line, for any topic: no feed, no faults, unchanged bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from include.producers.kafka_producer import AT_ONCE, Pace, SendProgress, produce

CHUNK_LINES = 20_000
Encode = Callable[[int, bytes], bytes]
"""The number of a line and the line → the record's value."""


@dataclass(frozen=True)
class FileSent:
    """What was sent of a file: `sent` of `total` records in `seconds`."""

    sent: int
    total: int
    seconds: float

    @property
    def finished(self) -> bool:
        """Whether the whole file is in the topic."""
        return self.sent == self.total


def send_file(
    path: Path,
    bootstrap: str,
    topic: str,
    *,
    key: str | None = None,
    encoded: Encode | None = None,
    pace: Pace = AT_ONCE,
) -> FileSent:
    """Send each line that is not empty as a record to a topic, which must exist, in order of the file.

    `key` is the field of the JSON object whose value becomes the Kafka key, so that equal keys stay in order; a line
    without it, or without `key`, has none. `encoded` makes a record of a line and its number, before the first is sent,
    and again when it is sent. Raises DeliveryFailed, and what `encoded` raises.
    """
    total = sum(1 for _ in _records(path, encoded))
    sent, seconds = 0, 0.0
    for chunk in _chunks(path, key, encoded):
        before, began = sent, seconds

        def shift(at: SendProgress, before: int = before, began: float = began) -> None:
            pace.on_progress(SendProgress(0, before + at.sent, total, began + at.seconds, at.behind))

        done = produce(bootstrap, topic, chunk, replace(pace, on_progress=shift))
        sent, seconds = sent + done.sent, seconds + done.seconds
        if done.next_row < chunk.height:
            break
    return FileSent(sent, total, seconds)


def _records(path: Path, encoded: Encode | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield each line that is not empty, and its record."""
    with path.open("rb") as file:
        for number, read in enumerate(file, 1):
            if read.strip():
                line = read.rstrip(b"\r\n")
                yield line, line if encoded is None else encoded(number, line)


def _chunks(path: Path, key: str | None, encoded: Encode | None) -> Iterator[pl.DataFrame]:
    """Yield the file's records as the producer takes them: columns `key`, `value` and `fault`."""
    records = _records(path, encoded)
    while chunk := list(islice(records, CHUNK_LINES)):
        keys = [None if key is None else record_key(line, key) for line, _ in chunk]
        values = [value for _, value in chunk]
        schema = {"key": pl.Binary, "value": pl.Binary, "fault": pl.String}
        yield pl.DataFrame({"key": keys, "value": values, "fault": [None] * len(values)}, schema)


def record_key(record: bytes, field: str) -> bytes | None:
    """Return the value of a record's field as a Kafka key: a text as it is, anything else as JSON; None without it."""
    try:
        value: Any = json.loads(record)
    except (ValueError, RecursionError):
        return None
    found = value.get(field) if isinstance(value, dict) else None
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else json.dumps(found, separators=(",", ":")).encode()
