"""Injects faults into a feed by shares and a seed, so that results can be scored against the truth.

`inject_faults` is a pure function of (events, shares, seed); each kind of fault has a separate random stream, so
changing one share does not change the others. Every good event is still delivered:

- *late*: an event is delivered when the feed's event time is 1 to 48 h later (or at the end of the feed).
- *reorder*: an event is delivered up to 50 positions away from its order.
- *duplicate*: the same bytes again: at once (half of them), within 1,000 or within 50,000 records.
- *conflict*: one duplicate in ten has the same id but another payload (its time differs by one second); the first wins.
- *corrupt*: a bad record made from a real event is added near the good one. It never replaces it.

A copy always follows its original, and both have the same key and therefore the same partition: the copy is always
the one to be rejected.

Kinds of bad record, each made from a real event, with the rule that must reject it.

The reasons are those of the contract compiler: a record that is not a clean JSON object (`null_value`, `empty`,
`not_object`, `trailing_data`, `malformed`, `duplicate_key`, `bad_utf8`, `control_char`, `depth`, `size`,
`wire_format`), a value of the wrong type or form (`type`, `out_of_range`, `no_zone`, `bad_ts`, `future_ts`,
`missing_id`), or a value that the dataset's contract does not allow (`required`, `enum`, `range`, `pattern`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from include.ground.errors import Refused
from include.producers.feed import Feed

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


RowNumbers = NDArray[np.int64]
LATE_SECONDS = (3600, int(timedelta(hours=48).total_seconds()))
REORDER_PLACES = 50
CORRUPT_PLACES = 20
NEAR_PLACES = 1_000
FAR_PLACES = 50_000
CONFLICT_EVERY = 10
FAULT_COLUMNS = ("fault", "kind", "reason")
# Random streams; a fault must never change its number, or the same seed would inject other faults.
LATE, REORDER, DUPLICATE, CORRUPT = 1, 2, 3, 4


@dataclass(frozen=True)
class Shares:
    """Faults per event, each from 0 to 1. Raises Refused."""

    duplicates: float = 0.0
    late: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            share = getattr(self, field.name)
            if not (math.isfinite(share) and 0 <= share <= 1):
                what = f"--{field.name} {share} is not a share between 0 and 1 (0 % and 100 %); nothing was sent"
                remedy = f"headrace produce flights --{field.name} 0.5%"
                raise Refused(what, remedy, code="invalid-share", fault=field.name, share=share)

    def any(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


DEFAULT_SHARES = Shares(duplicates=0.005, late=0.01, reorder=0.01, corrupt=0.002)
DEFAULT_SEED = 2013
"""The faults of the demo and the benchmarks."""


def inject_faults(events: pl.DataFrame, feed: Feed, shares: Shares, seed: int) -> pl.DataFrame:
    """Return the deliveries in order: `key, value, event_id`, and `fault, kind, reason` of an injected fault.

    `value` is null for a tombstone. `reason` is the rule that must reject the record; null when none must (late,
    reorder). `fault`: duplicate, conflict, late, reorder, corrupt.
    """
    base = _base(events)
    if not shares.any() or not events.height:
        return base
    late, at = _late(events["occurred_at"], shares.late, seed)
    moved, at = _reordered(at, late, shares.reorder, seed)
    base = _marked(base, late, moved)
    copies, copies_at = _copies(events, feed, at, shares.duplicates, seed)
    bad, bad_at = _bad(events, feed, at, shares.corrupt, seed)
    order = np.argsort(np.concatenate([at, copies_at, bad_at]), kind="stable")
    return pl.concat([base, copies, bad])[order]


def _base(events: pl.DataFrame) -> pl.DataFrame:
    none = [pl.lit(None, pl.String).alias(name) for name in FAULT_COLUMNS]
    return events.select("key", "value", "event_id", *none)


def _chosen(count: int, share: float, rng: np.random.Generator) -> RowNumbers:
    """Return `share` of the row numbers below `count`, each at most once, ascending."""
    return np.sort(rng.choice(count, size=round(count * share), replace=False))


def _late(occurred_at: pl.Series, share: float, seed: int) -> tuple[RowNumbers, NDArray[np.float64]]:
    """Return the late events, and every event's position of delivery."""
    rng = np.random.default_rng([seed, LATE])
    chosen = _chosen(len(occurred_at), share, rng)
    seconds = occurred_at.dt.epoch("s").to_numpy()
    delivered = seconds[chosen] + rng.integers(*LATE_SECONDS, size=len(chosen))
    at = np.arange(len(seconds), dtype=np.float64)
    at[chosen] = np.searchsorted(seconds, delivered, side="right") - 0.5
    return chosen, _ranks(at)


def _reordered(
    at: NDArray[np.float64], late: RowNumbers, share: float, seed: int
) -> tuple[RowNumbers, NDArray[np.float64]]:
    """Return the reordered events (none of them late), and every event's position of delivery."""
    rng = np.random.default_rng([seed, REORDER])
    chosen = np.setdiff1d(_chosen(len(at), share, rng), late, assume_unique=True)
    at = at.copy()
    at[chosen] += rng.uniform(-REORDER_PLACES, REORDER_PLACES, size=len(chosen))
    return chosen, _ranks(at)


def _ranks(at: NDArray[np.float64]) -> NDArray[np.float64]:
    ranks = np.empty(len(at), dtype=np.float64)
    ranks[np.argsort(at, kind="stable")] = np.arange(len(at), dtype=np.float64)
    return ranks


def _marked(base: pl.DataFrame, late: RowNumbers, moved: RowNumbers) -> pl.DataFrame:
    is_late, is_moved = np.zeros(base.height, dtype=bool), np.zeros(base.height, dtype=bool)
    is_late[late], is_moved[moved] = True, True
    fault = pl.when(pl.lit(pl.Series(is_late))).then(pl.lit("late")).when(pl.lit(pl.Series(is_moved)))
    marks = fault.then(pl.lit("reorder"))
    return base.with_columns(fault=marks, kind=marks)


def _copies(
    events: pl.DataFrame, feed: Feed, at: NDArray[np.float64], share: float, seed: int
) -> tuple[pl.DataFrame, NDArray[np.float64]]:
    rng = np.random.default_rng([seed, DUPLICATE])
    chosen = _chosen(len(at), share, rng)
    distance, kinds = _distances(len(chosen), rng)
    conflicts = np.arange(len(chosen)) % CONFLICT_EVERY == CONFLICT_EVERY - 1
    copies = (
        events[chosen]
        .select("key", "value", "event_id")
        .with_columns(
            fault=pl.Series(np.where(conflicts, "conflict", "duplicate"), dtype=pl.String),
            kind=pl.Series(np.where(conflicts, "other_payload", kinds), dtype=pl.String),
            reason=pl.lit("duplicate"),
        )
    )
    values = copies["value"].to_list()
    for row in np.flatnonzero(conflicts):
        values[row] = _with_other_time(values[row].decode(), feed).encode()
    copies = copies.with_columns(pl.Series("value", values, dtype=pl.Binary))
    return copies, np.minimum(at[chosen] + distance, len(at) - 1) + 0.5


def _distances(count: int, rng: np.random.Generator) -> tuple[RowNumbers, NDArray[np.str_]]:
    kind = rng.choice(["immediate", "near", "far"], size=count, p=[0.5, 0.3, 0.2])
    near = rng.integers(1, NEAR_PLACES, size=count)
    far = rng.integers(NEAR_PLACES, FAR_PLACES, size=count)
    return np.select([kind == "near", kind == "far"], [near, far], 0), kind


def _with_other_time(text: str, feed: Feed) -> str:
    """Return a valid event with the id of `text` and a time that differs by one second."""
    time = field_text(text, feed.time_field)
    other = time.replace('0Z"', '1Z"') if time.endswith('0Z"') else time[:-3] + '0Z"'
    return with_field(text, feed.time_field, other)


def _bad(
    events: pl.DataFrame, feed: Feed, at: NDArray[np.float64], share: float, seed: int
) -> tuple[pl.DataFrame, NDArray[np.float64]]:
    rng = np.random.default_rng([seed, CORRUPT])
    chosen = _chosen(len(at), share, rng)
    kinds = _rotation(bad_records(feed), len(chosen), rng)
    good = events[chosen].select("key", "value", "event_id")
    values = [bad.make(value.decode()) for bad, value in zip(kinds, good["value"], strict=True)]
    records = good.with_columns(
        pl.Series("value", values, dtype=pl.Binary),
        fault=pl.lit("corrupt"),
        kind=pl.Series([bad.kind for bad in kinds], dtype=pl.String),
        reason=pl.Series([bad.reason for bad in kinds], dtype=pl.String),
    )
    near = rng.integers(-CORRUPT_PLACES, CORRUPT_PLACES, size=len(chosen))
    return records, np.clip(at[chosen] + near, -1, len(at) - 1) + 0.5


def _rotation(kinds: tuple[BadRecord, ...], count: int, rng: np.random.Generator) -> list[BadRecord]:
    """Return `count` kinds: all in turn, in an order drawn from the seed; the rare kind only in the first rounds."""
    order = [kinds[i] for i in rng.permutation(len(kinds))]
    cheap = [bad for bad in order if bad.kind != RARE_KIND]
    head = (order * RARE_ROUNDS)[:count]
    rest = count - len(head)
    return head + (cheap * (rest // len(cheap) + 1))[:rest]
