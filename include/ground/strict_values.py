"""Values that people type, parsed strictly: every function returns the value or raises ValueError with the reason."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

# Kafka's own limits: an offset is a signed 64-bit number, a partition a signed 32-bit one.
MAX_OFFSET, MAX_PARTITION = 2**63 - 1, 2**31 - 1
LAG_SECONDS = 300.0
"""The lag that an alert reports, and the default of a stream's DAG."""
# A year of seconds: a greater limit of a lag is a mistake.
LONGEST_LAG = 366 * 86_400
BATCHES = re.compile(r"([0-9]{1,19})\.\.([0-9]{1,19})")
PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True)
class BatchRange:
    """Bronze batches, both ends included."""

    first: int
    last: int


def share(given: str | float) -> float:
    """Return the fraction that `0.005` or `0.5%` means, between 0 and 1."""
    # Typer also parses defaults, which are numbers.
    text = str(given).strip()
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a share; write a fraction like 0.005 or a percentage like 0.5%, between 0 and 1"
        ) from error
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is not a share between 0 and 1 (0% and 100%)")
    return value


def utc_time(text: str) -> datetime:
    """Return the time that `2013-03-01` or `2013-03-01T12:00Z` means, in UTC; a time without a zone is UTC."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a date or time; write 2013-03-01 or 2013-03-01T12:00Z") from error
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is outside the years 1 to 9999 in UTC") from error


def output_file(text: str) -> Path:
    """Return the path of a file to write, in an existing, writable folder."""
    path = Path(text)
    try:
        if not text.strip() or path.is_dir():
            raise ValueError(f"{text!r} is not the name of a file")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
            raise ValueError(
                f"{text!r} cannot be written: there is no folder {path.parent} that this user may write to"
            )
    except OSError as error:
        raise ValueError(f"{text[:80]!r} cannot be written: {error.strerror}") from error
    return path


def sample_file(given: str | Path) -> Path:
    """Return the path of a file that can be read and holds at least one byte."""
    path = Path(given)
    try:
        with path.open("rb") as file:
            first = file.read(1)
    except OSError as error:
        raise ValueError(f"{str(given)[:80]!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{str(given)[:80]!r} is not the name of a file") from error
    if not first:
        raise ValueError(f"{str(given)[:80]!r} is empty")
    return path


def batch_range(text: str) -> BatchRange:
    """Return the batches of `A..B`."""
    found = BATCHES.fullmatch(text)
    first, last = (int(found[1]), int(found[2])) if found else (1, 0)
    if not first <= last <= MAX_OFFSET:
        raise ValueError(f"{text!r} is not a range of batches like 3..7")
    return BatchRange(first, last)


def offset_ranges(text: str) -> dict[int, tuple[int, int]]:
    """Return the offsets [start, end) of each partition from a JSON object like `{"0": [100, 200]}`."""
    try:
        given = json.loads(text, object_pairs_hook=_unique)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f'{text[:80]!r} is not JSON; write {{"0": [100, 200]}}') from error
    if not isinstance(given, dict):
        raise ValueError(f'{text[:80]!r} is not a JSON object; write {{"0": [100, 200]}}')
    if not given:
        raise ValueError("it names no partition")
    return {partition_number(partition): offset_range(partition, span) for partition, span in given.items()}


def partition_number(text: str) -> int:
    """Return a partition's number from the key of a JSON object."""
    if not PARTITION.fullmatch(text) or int(text) > MAX_PARTITION:
        raise ValueError(f"{text!r} is not the number of a partition")
    return int(text)


def offset_range(partition: str, span: object) -> tuple[int, int]:
    """Return `span` as offsets [start, end) of a partition; it is not empty."""
    if not isinstance(span, Sequence) or isinstance(span, str) or len(span) != 2:
        raise ValueError(f"partition {partition}: {span!r} is not [start, end]")
    start, end = span
    if not all(type(each) is int and 0 <= each <= MAX_OFFSET for each in span):
        raise ValueError(f"partition {partition}: {list(span)} must be whole numbers from 0 to {MAX_OFFSET}")
    if start >= end:
        raise ValueError(f"partition {partition}: [{start}, {end}] is empty; start must be less than end")
    return start, end


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} occurs twice")
    return dict(pairs)
