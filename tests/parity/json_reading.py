"""What a record of `json_records.py` is, by plain Python: it shares no code with the product."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from json_records import ARRIVED, COLUMNS

from include.declare.contract import Column


class Token(str):
    """A number as it is written."""


class Object(list[tuple[str, Any]]):
    """An object's members, repeated ones included."""


@dataclass
class Reading:
    """What a record is: reasons (rule, column) in order, the detail of each where it is known, and its values."""

    reasons: list[tuple[str, str]]
    details: list[str | None] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


def reading(raw: bytes, columns: Sequence[Column] = COLUMNS) -> Reading:
    """Return what a contract says about a record."""
    found = document(raw)
    if isinstance(found, Reading):
        return found
    given = {name: value for name, value in found if value is not None}
    typed = {column.name: type_of(column, given[column.member]) for column in columns if column.member in given}
    faults = [(c, typed[c.name]) for c in columns if isinstance(typed.get(c.name), Fault)]
    if faults:
        texts = [shown(given[column.member]) for column, _ in faults]
        return Reading([(str(fault), column.name) for column, fault in faults], texts)
    broken = [(rule, column.name) for column in columns for rule in broken_rules(column, typed.get(column.name))]
    return Reading(broken, [None] * len(broken), {column.name: typed.get(column.name) for column in columns})


class Fault(str):
    """Why a value is none of its column's type."""


def shown(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if isinstance(value, list) else str(value)[:64]


def document(raw: bytes) -> Object | Reading:
    """Return the record's members; the reading of a record that is no flat, strict object."""
    if raw[:1] == b"\0" and raw[5:6] == b"{":
        return fault("wire_format")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return fault("malformed")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return fault("bad_utf8")
    start = len(text) - len(text.lstrip(" \t\n\r"))
    if start == len(text):
        return fault("empty")
    decoder = json.JSONDecoder(object_pairs_hook=Object, parse_float=Token, parse_int=Token, parse_constant=Token)
    try:
        value, end = decoder.raw_decode(text, start)
    except json.JSONDecodeError:
        return fault("malformed")
    if depth_of(value) > 32:
        return fault("depth")
    if text[end:].strip(" \t\n\r"):
        return fault("trailing_data" if isinstance(value, Object) else "malformed")
    return structure_reading(value, text) or value


def fault(rule: str, detail: str | None = None) -> Reading:
    return Reading([(rule, "")], [detail])


def structure_reading(value: Any, text: str) -> Reading | None:
    if not isinstance(value, Object):
        return fault("not_object")
    scalars = list(scalars_of(value))
    numbers = [token for token in scalars if isinstance(token, Token)]
    strings = [string for string in scalars if not isinstance(string, Token)]
    if any(re.search("[0-9]{1001}", token) for token in numbers):
        return fault("malformed")
    if any(token.lstrip("-")[0] in "NI" for token in numbers):
        return fault("out_of_range")
    if (path := repeated_path(value)) is not None:
        return fault("duplicate_key", path[:64])
    if any("\ud800" <= sign <= "\udfff" for string in strings for sign in string):
        return fault("bad_utf8")
    if any(sign < " " and sign not in "\t\n\r" or sign == "\x7f" for string in strings for sign in string):
        return fault("control_char")
    return None


def depth_of(value: Any) -> int:
    if isinstance(value, Object):
        return 1 + max((depth_of(inner) for _, inner in value), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def scalars_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Object):
        for name, inner in value:
            yield name
            yield from scalars_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from scalars_of(inner)


def repeated_path(value: Any, path: str = "$") -> str | None:
    """Return the path of the first key, in the order of the text, that its object has twice."""
    known = set[Any]()
    inside = value if isinstance(value, Object) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in inside:
        here = f"{path}.{name}" if isinstance(value, Object) else f"{path}[{name}]"
        key = name.lower() if path == "$" and isinstance(name, str) else name
        if isinstance(value, Object) and key in known:
            return here
        known.add(key)
        if (found := repeated_path(inner, here)) is not None:
            return found
    return None


def type_of(column: Column, value: Any) -> Any:
    kind = str if type(value) is str else type(value)
    if column.type == "string":
        return value if kind is str else Fault("type")
    if column.type == "boolean":
        return value if kind is bool else Fault("type")
    if column.type == "timestamp":
        return time_of(value)
    if kind is not Token:
        return Fault("type")
    if column.type == "number":
        return decimal_of(value, column.precision, column.scale)
    if not re.fullmatch("-?[0-9]+", value):
        return Fault("type")
    return int(value) if len(value) < 20 and -(2**31) <= int(value) < 2**31 else Fault("out_of_range")


def decimal(token: str) -> Decimal:
    """Return a number exactly; an exponent that a decimal cannot have as one beyond every column."""
    significand, _, exponent = token.lower().partition("e")
    return Decimal(f"{significand}e{max(-(10**9), min(10**9, int(exponent or 0)))}")


def decimal_of(token: str, precision: int, scale: int) -> Any:
    sign, numerals, exponent = decimal(token).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, numerals)).lstrip("0")
    significant = text.rstrip("0")
    exponent += len(text) - len(significant)
    if not significant:
        return Decimal(0)
    if len(significant) + exponent > precision - scale:
        return Fault("out_of_range")
    if exponent < -scale:
        # Rounded to the scale it must fit, or the number is greater than the greatest one.
        near = len(significant) + exponent >= precision - scale and exponent > -2000
        size = Fraction(int(significant), 10**-exponent) if near else Fraction(0)
        limit = Fraction(10) ** (precision - scale) - Fraction(1, 2 * 10**scale)
        return Fault("out_of_range" if size >= limit else "scale")
    return Decimal((sign, tuple(map(int, significant)), exponent))


EPOCH = date(1970, 1, 1).toordinal()
TIME = re.compile(
    r"([0-9]{4,6})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)


def time_of(value: Any) -> Any:
    """Return microseconds since 1970."""
    if isinstance(value, Token):
        return Fault("out_of_range" if decimal(value).copy_abs() >= 10**11 else "type")
    if type(value) is not str:
        return Fault("type")
    match = TIME.fullmatch(value)
    if not match or not match[8]:
        return Fault("no_zone" if match else "bad_ts")
    if len(match[1]) > 4:
        return Fault("out_of_range")
    year, month, day, hour, minute, second = (int(match[n]) for n in range(1, 7))
    zone_hour, zone_minute = (0, 0) if match[8] == "Z" else (int(match[8][1:3]), int(match[8][4:]))
    offset = 60 * zone_hour + zone_minute
    # Of year 0 Python has no date: 400 years later the calendar is the same.
    shift = 400 if year == 0 else 0
    try:
        days = date(year + shift, month, day).toordinal() - EPOCH - (146_097 if shift else 0)
    except ValueError:
        return Fault("bad_ts")
    if hour > 23 or minute > 59 or second > 59 or zone_minute > 59 or offset > 18 * 60:
        return Fault("bad_ts")
    minutes = 1440 * days + 60 * hour + minute - (-offset if match[8][0] == "-" else offset)
    return 1_000_000 * (60 * minutes + second) + int(((match[7] or "") + "000000")[:6])


def micros(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def broken_rules(column: Column, value: Any) -> Iterator[str]:
    if value is None:
        if column.required:
            yield "missing_id" if column.name == "id" else "required"
        return
    if column.type == "timestamp":
        first, last = (micros(datetime(*day, tzinfo=UTC)) for day in ((1, 1, 2), (9999, 12, 30)))
        ahead = value - micros(ARRIVED)
        if not first <= value <= last:
            yield "out_of_range"
        if value <= last and ahead > column.future // timedelta(microseconds=1):
            yield "future_ts"
        if column.past and value >= first and -ahead > column.past // timedelta(microseconds=1):
            yield "past_ts"
    if column.type == "string":
        if not column.min_length <= len(value.encode("utf-8", "surrogatepass")) <= column.max_length:
            yield "length"
        # A text that is too long is not matched: a pattern may take long.
        is_matched = column.pattern and len(value.encode("utf-8", "surrogatepass")) <= column.max_length
        if column.pattern and is_matched and not re.search(column.pattern.replace("$", r"\Z"), value):
            yield "pattern"
        if column.values and value not in column.values:
            yield "enum"
    low, high = (micros(b) if isinstance(b, datetime) else b for b in (column.minimum, column.maximum))
    if low is not None and value < low:
        yield "range"
    if high is not None and value > high:
        yield "range"
