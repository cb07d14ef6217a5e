"""Kinds of bad record, each made from a real event, with the rule that must reject it.

The reasons are those of the contract compiler: a record that is not a clean JSON object (`null_value`, `empty`,
`not_object`, `trailing_data`, `malformed`, `duplicate_key`, `bad_utf8`, `control_char`, `depth`, `size`,
`wire_format`), a value of the wrong type or form (`type`, `out_of_range`, `no_zone`, `bad_ts`, `future_ts`,
`missing_id`), or a value that the dataset's contract does not allow (`required`, `enum`, `range`, `pattern`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from include.producers.event_feed import Feed

# More than 1 MB by either definition (10^6 and 2^20 bytes), less than the 1.2 MB that a topic must take.
OVERSIZE_BYTES = 1_100_000
NESTED_LEVELS = 40
CONFLUENT_HEADER = b"\x00\x00\x00\x00\x07"
# Large, so that only the first rounds of a run include one.
RARE_KIND = "oversize"
RARE_ROUNDS = 2


@dataclass(frozen=True)
class BadRecord:
    """A kind of bad record: `make` turns a good value (JSON text) into the bad one (None: a tombstone)."""

    kind: str
    reason: str
    make: Callable[[str], bytes | None]


def bad_records(feed: Feed) -> tuple[BadRecord, ...]:
    """Return every kind of bad record that can be made from the feed's events."""
    return (*_shapes(), *_texts(feed), *_identities(feed), *_times(feed), *_values(feed))


def with_field(text: str, field: str, literal: str) -> str:
    """Return flat JSON `text` with the JSON text `literal` as the value of `field`, which is added if absent."""
    changed, count = _member(field).subn(lambda m: m[1] + literal, text, count=1)
    return changed if count else _append_member(text, f'"{field}":{literal}')


def field_text(text: str, field: str) -> str:
    """Return the JSON text of the value of `field`; '' when it is absent."""
    match = _member(field).search(text)
    return match[2] if match else ""


def _member(field: str) -> re.Pattern[str]:
    return re.compile(rf'("{field}":)("[^"]*"|[^,}}]*)')


def _append_member(text: str, member: str) -> str:
    return f"{text[:-1]},{member}}}"


def _remove_field(text: str, field: str) -> str:
    return re.sub(rf'(?<=\{{)"{field}":"[^"]*",|,"{field}":"[^"]*"', "", text, count=1)


def _text_record(kind: str, reason: str, make: Callable[[str], str]) -> BadRecord:
    return BadRecord(kind, reason, lambda text: make(text).encode())


def _shapes() -> tuple[BadRecord, ...]:
    """Values that are not exactly one JSON object."""
    return (
        BadRecord("tombstone", "null_value", lambda _: None),
        BadRecord("empty_value", "empty", lambda _: b""),
        BadRecord("blank_value", "empty", lambda _: b" \n\t "),
        BadRecord("json_null", "not_object", lambda _: b"null"),
        _text_record("in_array", "not_object", lambda text: f"[{text}]"),
        _text_record("two_objects", "trailing_data", lambda text: text + text),
        _text_record("trailing_text", "trailing_data", lambda text: f"{text} xyz"),
        _text_record("truncated_json", "malformed", lambda text: text[: len(text) * 2 // 3]),
        _text_record("single_quotes", "malformed", lambda text: text.replace('"', "'")),
        _text_record("byte_order_mark", "malformed", lambda text: "\ufeff" + text),
        _text_record("comment", "malformed", lambda text: "/* sent */ " + text),
        BadRecord("wire_format", "wire_format", lambda text: CONFLUENT_HEADER + text.encode()),
    )


def _texts(feed: Feed) -> tuple[BadRecord, ...]:
    """Objects that are not valid JSON text."""
    key = feed.id_field
    levels = "[" * NESTED_LEVELS + "]" * NESTED_LEVELS
    start = f'"{key}":"'

    def oversize(text: str) -> str:
        return _append_member(text, f'"remark":"{"x" * OVERSIZE_BYTES}"')

    return (
        _text_record("repeated_key", "duplicate_key", lambda text: _append_member(text, f'"{key}":"again"')),
        _text_record("key_in_capitals", "duplicate_key", lambda text: _append_member(text, f'"{key.upper()}":"again"')),
        _text_record("raw_newline", "malformed", lambda text: text.replace(start, start + "\n", 1)),
        BadRecord(
            "invalid_utf8", "bad_utf8", lambda t: t.encode().replace(start.encode(), start.encode() + b"\xff", 1)
        ),
        _text_record("lone_surrogate", "bad_utf8", lambda text: text.replace(start, start + r"\ud800", 1)),
        _text_record("nul_in_id", "control_char", lambda text: text.replace(start, start + r"\u0000", 1)),
        _text_record("deep_nesting", "depth", lambda text: _append_member(text, f'"remark":{levels}')),
        _text_record(RARE_KIND, "size", oversize),
    )


def _identities(feed: Feed) -> tuple[BadRecord, ...]:
    """Objects without an identity."""
    key = feed.id_field
    return (
        BadRecord("empty_object", "missing_id", lambda _: b"{}"),
        _text_record("absent_id", "missing_id", lambda text: _remove_field(text, key)),
        _text_record("null_id", "missing_id", lambda text: with_field(text, key, "null")),
    )


def _times(feed: Feed) -> tuple[BadRecord, ...]:
    """Objects with a missing or impossible event time."""
    time = feed.time_field

    def retimed(kind: str, reason: str, literal: str) -> BadRecord:
        return _text_record(kind, reason, lambda text: with_field(text, time, literal))

    def without_zone(text: str) -> str:
        return with_field(text, time, field_text(text, time).replace("Z", ""))

    return (
        _text_record("absent_time", "required", lambda text: _remove_field(text, time)),
        _text_record("time_without_zone", "no_zone", without_zone),
        _text_record("date_only", "bad_ts", lambda text: with_field(text, time, field_text(text, time)[:11] + '"')),
        retimed("epoch_seconds", "type", "1370088000"),
        retimed("february_30", "bad_ts", '"2013-02-30T12:00:00Z"'),
        retimed("leap_second", "bad_ts", '"2013-06-30T23:59:60Z"'),
        retimed("yesterday", "bad_ts", '"yesterday"'),
        retimed("year_10000", "out_of_range", '"10000-01-01T00:00:00Z"'),
        retimed("year_2099", "future_ts", '"2099-01-01T00:00:00Z"'),
    )


def _values(feed: Feed) -> tuple[BadRecord, ...]:
    """Values that only this feed's contract rejects."""
    return tuple(
        _text_record(wrong.kind, wrong.reason, lambda text, wrong=wrong: with_field(text, wrong.field, wrong.literal))  # type: ignore[misc]
        for wrong in feed.wrong_values
    )
