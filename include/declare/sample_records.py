"""A sample of a dataset's records, from a file of JSON lines or from the beginning of a topic.

The records of a sample that are like nearly all others: a topic may hold faulty ones, which a contract rejects.

A record is unusual when it lacks a field that nearly all have, has a field that nearly none has, or has a value of
another type, or a time of another form, than nearly all. A small sample has no unusual records.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from include.ground.errors import Terminal
from include.ground.kafka import log_start_offsets, readable_end_offsets, record_reader

ZONED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
LOCAL = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?( ?(Z|UTC|[+-]\d\d:?\d\d))?")
DAY = re.compile(r"\d{4}-\d\d-\d\d")


def is_zoned(text: str) -> bool:
    """Whether it is a time that exists, in ISO 8601 with a zone."""
    return ZONED.fullmatch(text) is not None and _exists(text)


def is_local(text: str) -> bool:
    """Whether it is a date and time, with or without a zone."""
    return LOCAL.fullmatch(text) is not None


def is_day(text: str) -> bool:
    """Whether it is a date."""
    return DAY.fullmatch(text) is not None


def moment(text: str) -> datetime:
    """Return a time with a zone; of more than six digits of a second, the first six."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))


def _exists(text: str) -> bool:
    try:
        moment(text)
    except ValueError:
        return False
    return True


NEARLY_ALL = 0.99
LEAST_RECORDS = 200
MOST_UNUSUAL = 0.05
"""When more records are unusual, the sample has no usual form, and all of them count."""
FORMS = {"a time with a zone": is_zoned, "a time": is_local, "a date": is_day}


@dataclass
class FieldTraits:
    """What the values of a field are, counted."""

    present: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)


def split_usual(records: Sequence[Mapping[str, Any]]) -> tuple[list[int], Counter[str]]:
    """Return the numbers of the usual records, and for the others how many have which fault."""
    if len(records) < LEAST_RECORDS:
        return list(range(len(records))), Counter()
    traits = _traits(records)
    faults = [_fault(record, traits, len(records)) for record in records]
    usual = [number for number, fault in enumerate(faults) if not fault]
    if len(records) - len(usual) > MOST_UNUSUAL * len(records):
        return list(range(len(records))), Counter()
    return usual, Counter(fault for fault in faults if fault)


def _traits(records: Sequence[Mapping[str, Any]]) -> dict[str, FieldTraits]:
    found: dict[str, FieldTraits] = defaultdict(FieldTraits)
    for record in records:
        for member, value in record.items():
            if value is not None:
                traits = found[member]
                traits.present += 1
                traits.kinds[_kind(value)] += 1
                traits.forms.update([_form(value)])
    return found


def _fault(record: Mapping[str, Any], traits: Mapping[str, FieldTraits], records: int) -> str:
    """Return how a record differs from nearly all others; "" when it does not."""
    for member, each in traits.items():
        value = record.get(member)
        if value is None:
            if each.present >= NEARLY_ALL * records:
                return f"{member} is missing"
            continue
        if each.present <= (1 - NEARLY_ALL) * records:
            return f"{member} is in few others"
        kind, form = _most(each.kinds), _most(each.forms)
        if kind and _kind(value) != kind:
            return f"{member} is of another type than {kind}"
        if form and _form(value) != form:
            return f"{member} is not {form}"
    return ""


def _most(counts: Counter[str]) -> str:
    """Return what nearly all are, "" when there is no such thing."""
    ((name, count),) = counts.most_common(1)
    return name if count >= NEARLY_ALL * counts.total() else ""


def _kind(value: Any) -> str:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def _form(value: Any) -> str:
    return next((name for name, matches in FORMS.items() if isinstance(value, str) and matches(value)), "")


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
