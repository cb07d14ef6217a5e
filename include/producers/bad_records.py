"""Kinds of bad record, each made from a real event, with the rule that must refuse it.

The reasons are those of the contract compiler: a record that is no clean JSON object (`null_value`, `empty`,
`not_object`, `trailing_data`, `malformed`, `duplicate_key`, `bad_utf8`, `control_char`, `depth`, `size`,
`wire_format`), a value that cannot be what it should (`type`, `out_of_range`, `no_zone`, `bad_ts`, `future_ts`,
`missing_id`), or one that the dataset's contract does not allow (`required`, `enum`, `range`, `pattern`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from include.producers.event_feed import Feed

# More than 1 MB in either sense (10^6 and 2^20 bytes), less than the 1.2 MB that a topic must take.
OVERSIZE_BYTES = 1_100_000
NESTED_LEVELS = 40
CONFLUENT_HEADER = b"\x00\x00\x00\x00\x07"
# Costly in bytes, so only the first rounds of a run have one each.
RARE_KIND = "oversize"
RARE_ROUNDS = 2


@dataclass(frozen=True)
class BadRecord:
    """A kind of bad record: `make` turns a good value (JSON text) into the bad one (None: a tombstone)."""

    kind: str
    reason: str
    make: Callable[[str], bytes | None]


def bad_records(feed: Feed) -> tuple[BadRecord, ...]:
    """Return every kind of bad record that the feed's events can be turned into."""
    return (*_shapes(), *_texts(feed), *_identities(feed), *_times(feed), *_values(feed))


def with_field(text: str, field: str, literal: str) -> str:
    """Return flat JSON `text` with the JSON text `literal` as the value of `field`, which is added if absent."""
    changed, count = _member(field).subn(lambda m: m[1] + literal, text, count=1)
    return changed if count else _with_more(text, f'"{field}":{literal}')


def field_text(text: str, field: str) -> str:
    """Return the JSON text of the value of `field`; '' when it is absent."""
    match = _member(field).search(text)
    return match[2] if match else ""


def _member(field: str) -> re.Pattern[str]:
    return re.compile(rf'("{field}":)("[^"]*"|[^,}}]*)')


def _with_more(text: str, member: str) -> str:
    return f"{text[:-1]},{member}}}"


def _without(text: str, field: str) -> str:
    return re.sub(rf'(?<=\{{)"{field}":"[^"]*",|,"{field}":"[^"]*"', "", text, count=1)


def _said(kind: str, reason: str, make: Callable[[str], str]) -> BadRecord:
    return BadRecord(kind, reason, lambda text: make(text).encode())


def _shapes() -> tuple[BadRecord, ...]:
    """Not one JSON object."""
    return (
        BadRecord("tombstone", "null_value", lambda _: None),
        BadRecord("empty_value", "empty", lambda _: b""),
        BadRecord("blank_value", "empty", lambda _: b" \n\t "),
        BadRecord("json_null", "not_object", lambda _: b"null"),
        _said("in_array", "not_object", lambda text: f"[{text}]"),
        _said("two_objects", "trailing_data", lambda text: text + text),
        _said("trailing_text", "trailing_data", lambda text: f"{text} xyz"),
        _said("truncated_json", "malformed", lambda text: text[: len(text) * 2 // 3]),
        _said("single_quotes", "malformed", lambda text: text.replace('"', "'")),
        _said("byte_order_mark", "malformed", lambda text: "\ufeff" + text),
        _said("comment", "malformed", lambda text: "/* sent */ " + text),
        BadRecord("wire_format", "wire_format", lambda text: CONFLUENT_HEADER + text.encode()),
    )


def _texts(feed: Feed) -> tuple[BadRecord, ...]:
    """An object, but not a clean one."""
    key = feed.id_field
    levels = "[" * NESTED_LEVELS + "]" * NESTED_LEVELS
    start = f'"{key}":"'

    def oversize(text: str) -> str:
        return _with_more(text, f'"remark":"{"x" * OVERSIZE_BYTES}"')

    return (
        _said("repeated_key", "duplicate_key", lambda text: _with_more(text, f'"{key}":"again"')),
        _said("key_in_capitals", "duplicate_key", lambda text: _with_more(text, f'"{key.upper()}":"again"')),
        _said("raw_newline", "malformed", lambda text: text.replace(start, start + "\n", 1)),
        BadRecord(
            "invalid_utf8", "bad_utf8", lambda t: t.encode().replace(start.encode(), start.encode() + b"\xff", 1)
        ),
        _said("lone_surrogate", "bad_utf8", lambda text: text.replace(start, start + r"\ud800", 1)),
        _said("nul_in_id", "control_char", lambda text: text.replace(start, start + r"\u0000", 1)),
        _said("deep_nesting", "depth", lambda text: _with_more(text, f'"remark":{levels}')),
        _said(RARE_KIND, "size", oversize),
    )


def _identities(feed: Feed) -> tuple[BadRecord, ...]:
    """Nobody can say which event this is."""
    key = feed.id_field
    return (
        BadRecord("empty_object", "missing_id", lambda _: b"{}"),
        _said("absent_id", "missing_id", lambda text: _without(text, key)),
        _said("null_id", "missing_id", lambda text: with_field(text, key, "null")),
    )


def _times(feed: Feed) -> tuple[BadRecord, ...]:
    """The event's own time is none, or cannot be."""
    time = feed.time_field

    def retimed(kind: str, reason: str, literal: str) -> BadRecord:
        return _said(kind, reason, lambda text: with_field(text, time, literal))

    def without_zone(text: str) -> str:
        return with_field(text, time, field_text(text, time).replace("Z", ""))

    return (
        _said("absent_time", "required", lambda text: _without(text, time)),
        _said("time_without_zone", "no_zone", without_zone),
        _said("date_only", "bad_ts", lambda text: with_field(text, time, field_text(text, time)[:11] + '"')),
        retimed("epoch_seconds", "type", "1370088000"),
        retimed("february_30", "bad_ts", '"2013-02-30T12:00:00Z"'),
        retimed("leap_second", "bad_ts", '"2013-06-30T23:59:60Z"'),
        retimed("yesterday", "bad_ts", '"yesterday"'),
        retimed("year_10000", "out_of_range", '"10000-01-01T00:00:00Z"'),
        retimed("year_2099", "future_ts", '"2099-01-01T00:00:00Z"'),
    )


def _values(feed: Feed) -> tuple[BadRecord, ...]:
    """What only this feed's contract can know."""
    return tuple(
        _said(wrong.kind, wrong.reason, lambda text, wrong=wrong: with_field(text, wrong.field, wrong.literal))  # type: ignore[misc]
        for wrong in feed.wrong_values
    )
