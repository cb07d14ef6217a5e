"""The columns of a Kafka record: its content in bronze; its coordinates in silver and rejected.

Its position is partition and offset. A record of a file has them too (spark_jobs/layers/adr-0020): the partition is its
set of files, the offset its file's number in the set and its row there, the topic its file's address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

CONTENT = ("key", "value", "timestamp", "timestamp_type", "headers")
"""What a record of Kafka consists of besides its coordinates, as columns of bronze."""
POSITION = ("_partition", "_offset")
RECORD = ("_topic", *POSITION)
RANK = ("_batch_id", *POSITION)
"""The earliest of several records with one identity is the event (spark_jobs/layers/adr-0001)."""
COORDINATES = (*RECORD, "_timestamp", "_batch_id")


FIRST_FILE_SET = 30_000
"""Partitions from here on are sets of files: more than any topic has, and few enough for 16 bits (`PARTITIONS`)."""
ROW_BITS = 32
"""Of an offset in a set of files; the bits above it are the number of the file."""


def is_file_set(partition: int) -> bool:
    """Whether a partition is a set of files, and not one of a topic."""
    return partition >= FIRST_FILE_SET


def offset_in_set(file: int, row: int = 0) -> int:
    """Return the offset of a row of a file of a set; both are counted from 0."""
    return file << ROW_BITS | row


def place_in_set(offset: int) -> tuple[int, int]:
    """Return the file's number and the row of an offset in a set of files."""
    return offset >> ROW_BITS, offset & ((1 << ROW_BITS) - 1)


LOADED = -1
"""The type of the time of a record that no Kafka had: Kafka's own are 0 and 1."""


def kafka_ends(offsets: Mapping[str, Sequence[int]]) -> dict[int, int]:
    """Return where each partition of the topic ends, of the ranges that a commit of bronze names."""
    ends = {int(partition): int(span[1]) for partition, span in offsets.items()}
    return {partition: end for partition, end in ends.items() if not is_file_set(partition)}


FIRST_MS, LAST_MS = -62_135_510_400_000, 253_402_128_000_000
"""0001-01-02 and 9999-12-30: every reader has these times, in every time zone."""
BEFORE, AFTER = FIRST_MS * 1000 - 1, LAST_MS * 1000 + 1
"""What bronze has instead of an earlier and of a later time, in microseconds."""
HEADER = "headrace.kafka_timestamp"
"""The name of the added header; its value is the number as text."""
FIRST_ARRIVAL_MS = 946_684_800_000
"""2000-01-01: no record arrived in a Kafka before."""
FIRST_DATE, LAST_DATE = date(1999, 12, 31), date(2100, 1, 1)
"""Records of earlier and of later days are with these: producers' times of any year must not make a file each."""


def is_replaced(micros: int) -> bool:
    """Whether the column has a replacement, and not Kafka's own time.

    Earlier versions stored times before FIRST_MS and after LAST_MS as they are, if the column could hold them.
    """
    return micros in (BEFORE, AFTER)


def kafka_time(micros: int, headers: Sequence[Mapping[str, Any]] | None) -> int:
    """Return Kafka's time of a record, in milliseconds, from its columns in bronze."""
    return int(headers[-1]["value"]) if is_replaced(micros) and headers else micros // 1000


def is_arrival(time_ms: int, now_ms: float) -> bool:
    """Whether a record can have arrived at its Kafka time: not before Kafka existed, and not after now."""
    return FIRST_ARRIVAL_MS <= time_ms <= now_ms


def arrivals(times: Sequence[int], committed_ms: int, now_ms: float) -> tuple[int, int]:
    """Return when the first and the last record of a batch arrived, by their Kafka times and the commit of the batch.

    A time that cannot be an arrival says nothing: the commit's counts.
    """
    found = [each if is_arrival(each, now_ms) else committed_ms for each in times]
    return min(found), max(found)
