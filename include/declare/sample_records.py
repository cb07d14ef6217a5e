"""A sample of a dataset's records, from a file of JSON lines or from the beginning of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from include.declare.usual_records import split_usual
from include.ground.errors import Terminal
from include.ground.kafka import log_start_offsets
from include.ground.kafka_record import record_reader
from include.ground.readable_offsets import readable_end_offsets

MOST_RECORDS = 10_000
SHARE_OF_OBJECTS = 0.5
"""A sample of which fewer records are JSON objects is refused."""

Fields = dict[str, Any]
"""One record as a flat JSON object; numbers with a fraction are decimals."""


class SampleUnusable(Terminal):
    """No dataset can be inferred from the sample; nothing was written."""

    def __init__(self, origin: str, why: str) -> None:
        super().__init__(
            f"{origin}: {why}; nothing was written", "a sample is one JSON object per line: headrace new --help"
        )
        self.origin, self.why = origin, why


@dataclass(frozen=True)
class RecordSample:
    """The first records of a dataset. `objects`: those that are JSON objects like nearly all others, copies left out;
    `fields`: of each. `unusual`: how many others have which fault."""

    origin: str
    records: int
    objects: tuple[bytes, ...]
    fields: tuple[Fields, ...]
    unusual: Mapping[str, int] = field(default_factory=dict)


def file_sample(path: Path) -> RecordSample:
    """Return the first MOST_RECORDS lines of a file. Raises SampleUnusable."""
    try:
        with path.open("rb") as lines:
            found = [line.rstrip(b"\r\n") for line in islice(lines, MOST_RECORDS)]
    except OSError as error:
        raise SampleUnusable(str(path), error.strerror or str(error)) from error
    return record_sample(str(path), [line for line in found if line.strip()])


def topic_sample(bootstrap: str, topic: str) -> RecordSample:
    """Return the first MOST_RECORDS records of a topic, evenly over its partitions.

    Raises SampleUnusable, TopicMissing, BrokerUnreachable.
    """
    starts, ends = log_start_offsets(bootstrap, topic), readable_end_offsets(bootstrap, topic)
    share = max(1, MOST_RECORDS // len(starts))
    found: list[bytes] = []
    with record_reader(bootstrap, topic) as read:
        for partition, start in starts.items():
            end = min(start + share, ends[partition])
            records = read(partition, start, end) if start < end else []
            found += [record.value for record in records if record.value is not None]
    return record_sample(f"topic {topic}", found)


def record_sample(origin: str, records: Iterable[bytes]) -> RecordSample:
    """Return records as a sample. Raises SampleUnusable when it is empty, or most are not JSON objects."""
    found = tuple(records)
    if not found:
        raise SampleUnusable(origin, "has no record")
    objects = dict(_objects(dict.fromkeys(found)))
    distinct = len(set(found))
    if len(objects) < SHARE_OF_OBJECTS * distinct:
        other = next(record for record in found if record not in objects)
        why = f"{distinct - len(objects):,} of {distinct:,} records are not JSON objects, the first is {other[:60]!r}"
        raise SampleUnusable(origin, why)
    payloads, fields = tuple(objects), tuple(objects.values())
    usual, unusual = split_usual(fields)
    return RecordSample(origin, len(found), tuple(payloads[n] for n in usual), tuple(fields[n] for n in usual), unusual)


def _objects(records: Iterable[bytes]) -> Iterator[tuple[bytes, Fields]]:
    for record in records:
        try:
            value = json.loads(record.decode("utf-8"), parse_float=Decimal)
            # JSON can name half a character, which is no text: UnicodeEncodeError is a ValueError.
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield record, value
