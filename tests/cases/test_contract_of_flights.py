"""Golden cases of the contract: what each kind of bad record gets (the outcome, not the way there)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from include.declare.contract import Contract
from include.declare.dataset import declared_dataset
from include.ground.settings import Settings
from spark_jobs.contract.validator import compiled_validator

ARRIVED = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DEPARTED: dict[str, Any] = {
    "event_id": "2013-01-01T10:15Z/UA1545/EWR/departed",
    "kind": "departed",
    "flight_id": "2013-01-01T10:15Z/UA1545/EWR",
    "occurred_at": "2013-01-01T10:17:00Z",
    "scheduled_departure": "2013-01-01T10:15:00Z",
    "carrier": "UA",
    "flight": 1545,
    "origin": "EWR",
    "dest": "IAH",
    "tailnum": "N14228",
    "distance": 1400,
    "departure_delay": 2,
}
PLAIN = json.dumps(DEPARTED, separators=(",", ":"))
SPACED = json.dumps(DEPARTED)
REORDERED = json.dumps(dict(reversed(DEPARTED.items())))


def with_field(name: str, literal: str) -> bytes:
    """The good record with the JSON literal of one field replaced."""
    old = json.dumps({name: DEPARTED[name]}, separators=(",", ":"))[1:-1]
    assert old in PLAIN
    return PLAIN.replace(old, f'"{name}":{literal}').encode()


def nested(levels: int) -> bytes:
    return (PLAIN[:-1] + ',"extra":' + "[" * levels + "]" * levels + "}").encode()


def padded(size: int) -> bytes:
    return (PLAIN[:-1] + ',"extra":"' + "x" * size + '"}').encode()


def without(name: str) -> bytes:
    return json.dumps({k: v for k, v in DEPARTED.items() if k != name}, separators=(",", ":")).encode()


ACCEPTED = {
    "plain": PLAIN.encode(),
    "spaced": SPACED.encode(),
    "keys in another order": REORDERED.encode(),
    "white space around": f" \n{PLAIN}\t\r\n".encode(),
    "34 unknown field": (PLAIN[:-1] + ',"gate":"B22"}').encode(),
    "34 unknown nested field": (PLAIN[:-1] + ',"crew":{"captain":["a",{"b":null}]}}').encode(),
    "30 depth 31 is fine": nested(31),
    "35 minus zero": with_field("departure_delay", "-0"),
    "23 nanoseconds": with_field("occurred_at", '"2013-01-01T10:17:00.123456789Z"'),
    "22 long ago": with_field("occurred_at", '"1970-01-01T00:00:00Z"'),
    "an offset instead of Z": with_field("occurred_at", '"2013-01-01T05:17:00-05:00"'),
    "escaped plain letters": with_field("carrier", '"\\u0055A"'),
    "tail number null": with_field("tailnum", "null"),
    "tail number absent": without("tailnum"),
    "38 quote and percent and emoji in the id": with_field("event_id", '"it\'s 100% \U0001f6eb"'),
    "27 a whole surrogate pair": with_field("event_id", '"\\ud83d\\udeeb"'),
    "27 an escaped backslash before u": with_field("event_id", '"a\\\\ud800"'),
    "a long id": with_field("event_id", json.dumps("x" * 256)),
}

REJECTED: dict[str, tuple[bytes | None, list[tuple[str, str]]]] = {
    "1 null value": (None, [("null_value", "")]),
    "2 empty": (b"", [("empty", "")]),
    "2 white space": (b" \n\t", [("empty", "")]),
    "3 null": (b"null", [("not_object", "")]),
    "3 string": (b'"x"', [("not_object", "")]),
    "3 number": (b" 17 ", [("not_object", "")]),
    "3 empty array": (b"[]", [("not_object", "")]),
    "3 array of an object": (f"[{PLAIN}]".encode(), [("not_object", "")]),
    "4 two objects": (f"{PLAIN}{PLAIN}".encode(), [("trailing_data", "")]),
    "5 trailing text": (f"{PLAIN} xyz".encode(), [("trailing_data", "")]),
    "5 trailing brace": (f"{PLAIN}}}".encode(), [("trailing_data", "")]),
    "6 truncated": (PLAIN[:-20].encode(), [("malformed", "")]),
    "6 one brace": (b"{", [("malformed", "")]),
    "6 no value": (b'{"event_id":}', [("malformed", "")]),
    "6 comma at the end": ((PLAIN[:-1] + ",}").encode(), [("malformed", "")]),
    "7 duplicate key": ((PLAIN[:-1] + ',"kind":"departed"}').encode(), [("duplicate_key", "")]),
    "7 duplicate key, escaped": ((PLAIN[:-1] + ',"k\\u0069nd":"x"}').encode(), [("duplicate_key", "")]),
    "7 optional key twice in its place": (
        PLAIN.replace('"tailnum":"N14228"', '"tailnum":"N14228","tailnum":"N14228"').encode(),
        [("duplicate_key", "")],
    ),
    "7 optional key twice, apart": ((PLAIN[:-1] + ',"tailnum":"N14228"}').encode(), [("duplicate_key", "")]),
    "8 keys differing by case": ((PLAIN[:-1] + ',"Kind":"x"}').encode(), [("duplicate_key", "")]),
    "8 keys differing by case, not ASCII": ((PLAIN[:-1] + ',"É":1,"\\u00e9":2}').encode(), [("duplicate_key", "")]),
    "9 int too large": (with_field("flight", "2147483648"), [("out_of_range", "flight")]),
    "9 int of 25 digits": (with_field("flight", "1" * 25), [("out_of_range", "flight")]),
    "10 int with fraction": (with_field("flight", "1.0"), [("type", "flight")]),
    "10 int with exponent": (with_field("flight", "1e2"), [("type", "flight")]),
    "10 int as string": (with_field("flight", '"7"'), [("type", "flight")]),
    "10 int as true": (with_field("flight", "true"), [("type", "flight")]),
    "11 NaN": (with_field("departure_delay", "NaN"), [("out_of_range", "")]),
    "11 minus infinity": (with_field("departure_delay", "-Infinity"), [("out_of_range", "")]),
    "15 string given number": (with_field("carrier", "12"), [("type", "carrier")]),
    "15 string given object": (with_field("carrier", '{"x":1}'), [("type", "carrier")]),
    "15 string given array": (with_field("carrier", '["UA"]'), [("type", "carrier")]),
    "16 no zone": (with_field("occurred_at", '"2013-01-01T10:17:00"'), [("no_zone", "occurred_at")]),
    "17 epoch seconds": (with_field("occurred_at", "1357035420"), [("type", "occurred_at")]),
    "18 epoch millis": (with_field("occurred_at", "1357035420000"), [("out_of_range", "occurred_at")]),
    "19 year 10000": (with_field("occurred_at", '"10000-01-01T00:00:00Z"'), [("out_of_range", "occurred_at")]),
    "19 year 1": (
        with_field("occurred_at", '"0001-01-01T00:00:00Z"'),
        [("out_of_range", "occurred_at"), ("range", "occurred_at")],
    ),
    "20 February 30": (with_field("occurred_at", '"2013-02-30T10:17:00Z"'), [("bad_ts", "occurred_at")]),
    "20 hour 24": (with_field("occurred_at", '"2013-01-01T24:00:00Z"'), [("bad_ts", "occurred_at")]),
    "20 leap second": (with_field("occurred_at", '"2013-06-30T23:59:60Z"'), [("bad_ts", "occurred_at")]),
    "20 yesterday": (with_field("occurred_at", '"yesterday"'), [("bad_ts", "occurred_at")]),
    "21 in 2099": (with_field("occurred_at", '"2099-01-01T00:00:00Z"'), [("future_ts", "occurred_at")]),
    "21 eleven minutes ahead": (with_field("occurred_at", '"2026-11-21T12:11:00Z"'), [("future_ts", "occurred_at")]),
    "24 date only": (with_field("occurred_at", '"2013-01-01"'), [("bad_ts", "occurred_at")]),
    "25 byte order mark": (b"\xef\xbb\xbf" + PLAIN.encode(), [("malformed", "")]),
    "25 UTF-16 with mark": (PLAIN.encode("utf-16"), [("malformed", "")]),
    "25 UTF-16": (PLAIN.encode("utf-16-le"), [("malformed", "")]),
    "25 comment": (f"{PLAIN[:-1]}/* x */}}".encode(), [("malformed", "")]),
    "25 leading zero": (with_field("flight", "07"), [("malformed", "")]),
    "25 raw control character": (with_field("carrier", '"U\tA"'), [("malformed", "")]),
    "26 invalid UTF-8": (PLAIN.encode().replace(b"N14228", b"N\xff228"), [("bad_utf8", "")]),
    "26 overlong UTF-8": (PLAIN.encode().replace(b"N14228", b"N\xc0\xaf28"), [("bad_utf8", "")]),
    "27 lone high surrogate": (with_field("event_id", '"\\ud800"'), [("bad_utf8", "")]),
    "27 lone low surrogate": (with_field("event_id", '"\\udc00x"'), [("bad_utf8", "")]),
    "28 escaped NUL": (with_field("event_id", '"a\\u0000b"'), [("control_char", "")]),
    "29 single quotes": (PLAIN.replace('"', "'").encode(), [("malformed", "")]),
    "30 depth 32 below the object": (nested(32), [("depth", "")]),
    "30 depth 600": (nested(600), [("depth", "")]),
    "30 depth 1,100": (nested(1100), [("depth", "")]),
    "31 number of 1,200 digits": (with_field("flight", "1" * 1200), [("malformed", "")]),
    "32 5 MB": (padded(5_000_000), [("size", "")]),
    "32 21 MB": (padded(21_000_000), [("size", "")]),
    "33 nothing": (
        b"{}",
        [
            ("missing_id", "event_id"),
            *[("required", name) for name in ("kind", "flight_id", "occurred_at", "scheduled_departure", "carrier")],
            *[("required", name) for name in ("flight", "origin", "dest", "distance")],
        ],
    ),
    "33 no id": (without("event_id"), [("missing_id", "event_id")]),
    "33 id null": (with_field("event_id", "null"), [("missing_id", "event_id")]),
    "33 id empty": (with_field("event_id", '""'), [("length", "event_id")]),
    "36 Confluent's wire format": (b"\x00\x00\x00\x00\x07" + PLAIN.encode(), [("wire_format", "")]),
    "38 id of 64 KB": (with_field("event_id", json.dumps("x" * 65_536)), [("length", "event_id")]),
    "38 id of 257 bytes": (with_field("event_id", json.dumps("é" * 128 + "x")), [("length", "event_id")]),
    "required field null": (with_field("dest", "null"), [("required", "dest")]),
    "required field absent": (without("distance"), [("required", "distance")]),
    "departure without delay": (without("departure_delay"), [("required", "departure_delay")]),
    "no such kind": (
        with_field("kind", '"teleported"'),
        [("enum", "kind"), ("forbidden", "departure_delay")],
    ),
    "no such origin": (with_field("origin", '"LAX"'), [("enum", "origin")]),
    "delay out of range": (with_field("departure_delay", "99999"), [("range", "departure_delay")]),
    "negative distance": (with_field("distance", "-5"), [("range", "distance")]),
    "carrier with a sign": (with_field("carrier", '"U$"'), [("pattern", "carrier")]),
    "carrier with a line break": (with_field("carrier", '"UA\\n"'), [("pattern", "carrier")]),
    "two faults": (
        with_field("carrier", "12").replace(b'"flight":1545', b'"flight":"1545"'),
        [("type", "carrier"), ("type", "flight")],
    ),
}


@pytest.fixture(scope="module")
def contract() -> Contract:
    return declared_dataset(Settings(), "flights").contract


@pytest.fixture(scope="module")
def verdicts(spark: SparkSession, contract: Contract) -> list[Row]:
    """All cases validated in one batch, in order of the offset."""
    payloads = [*ACCEPTED.values(), *(value for value, _ in REJECTED.values())]
    rows = [("flights", 0, offset, ARRIVED, value, 7) for offset, value in enumerate(payloads)]
    schema = "topic string, partition int, offset long, timestamp timestamp, value binary, _batch_id long"
    validated = compiled_validator(contract).validated(spark.createDataFrame(rows, schema))
    # As text: a rejected time may lie where Python has no calendar.
    texts = [F.col(column.name).cast("string").alias(column.name) for column in contract.columns]
    columns = ["_topic", "_partition", "_offset", "_batch_id", "_reasons"]
    return validated.select(*columns, F.struct(texts).alias("values")).orderBy("_offset").collect()


@pytest.mark.parametrize("name", ACCEPTED)
def test_valid_record_is_accepted(name: str, verdicts: list[Row]) -> None:
    assert verdicts[list(ACCEPTED).index(name)]["_reasons"] == []


@pytest.mark.parametrize("name", REJECTED)
def test_invalid_record_is_rejected_with_its_reasons(name: str, verdicts: list[Row]) -> None:
    row = verdicts[len(ACCEPTED) + list(REJECTED).index(name)]
    assert [(reason.rule, reason.column) for reason in row["_reasons"]] == REJECTED[name][1]


def test_plain_and_general_forms_give_the_same_values(verdicts: list[Row]) -> None:
    plain, spaced, reordered = (row["values"] for row in verdicts[:3])
    assert plain == spaced == reordered
    assert (plain["departure_delay"], plain["occurred_at"]) == ("2", "2013-01-01 10:17:00")


def test_every_record_keeps_its_coordinates(verdicts: list[Row]) -> None:
    assert [row["_offset"] for row in verdicts] == list(range(len(ACCEPTED) + len(REJECTED)))
    assert {(row["_topic"], row["_partition"], row["_batch_id"]) for row in verdicts} == {("flights", 0, 7)}


def test_nanoseconds_are_truncated_to_microseconds(verdicts: list[Row]) -> None:
    row = verdicts[list(ACCEPTED).index("23 nanoseconds")]
    assert row["values"]["occurred_at"] == "2013-01-01 10:17:00.123456"
