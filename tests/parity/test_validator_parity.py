"""Both passes over records agree: on a record in plain form, and on the same JSON written in other ways.

Each record is validated as it is, by the plain-form gate where it can, and rewritten: other white space, other order
of the keys, escaped characters. All forms are the same JSON value, so the contract must treat them alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from deliveries import parity_seed
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from include.declare.contract import Contract
from include.declare.dataset import declared_dataset
from include.ground.settings import Settings
from include.producers.command import find_feed
from include.producers.faults import bad_records
from spark_jobs.contract.record_reader import record_reader
from spark_jobs.contract.validator import compiled_validator

ARRIVED = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
REAL_EVENTS = 60
# JSON literals around every limit of a rule, a type or the gate; each is tried in every field.
LITERALS = [
    *[
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "-1",
        "9",
        "10",
        "1440",
        "-1440",
        "-1441",
        "2880",
        "2881",
        "9999",
        "10000",
    ],
    *["12000", "12001", "999999999", "1000000000", "2147483647", "2147483648", "-2147483648", "-2147483649"],
    *["99999", "100000", "0.0", "-0.0", "1.0", "1.5", "1.25", "1.20", "1.250", "1.005", "99999.99", "99999.999"],
    *["-80.00", "-80.01", "140.00", "140.01", "1e2", "1E2", "1e-2", "1.5e1", "1e400", "12345678901234567890"],
    *["0.123456789012345678901234567890", "[]", "{}", "[1]", '{"a":"b"}', '""', '" "', '"x"', '"EWR"', '"ewr"', '"UA"'],
    *['"U"', '"UAL"', '"U$"', '"scheduled"', '"departed"', '"7"', '"1.25"', '"N14228"', '"x/y"', '"null"', '"é"'],
    *['"\U0001f6eb"', '"a\\u00e9"', '"e\\u0301"', '"\\u2028"', '"\\u007f"', '"\x7f"', '"\u0080"', '"\\t"', '"\\\\"'],
    *['"\\""', '"\\u0000"', '"\\ud83d\\udeeb"', '"\\ud83d"', '"{}"', '"\\/"', '"a,b"', '"a:b"', '"N1\\u0001"'],
    *[json.dumps("x" * length) for length in (10, 11, 64, 65, 256, 257, 300)],
    *[json.dumps("é" * length) for length in (5, 6, 128, 129)],
    *['"2013-01-01T10:15Z/UA1545/EWR"', '"2013-01-01T10:15Z/UA1545/EWR/IAH"', '"2013-01-01T10:15Z/UA15455/EWR"'],
]
TIMES = [
    *["2013-01-01T10:17:00Z", "2012-02-29T00:00:00Z", "2013-02-28T23:59:59Z", "2013-02-29T00:00:00Z"],
    *["2013-04-30T10:17:00Z", "2013-04-31T10:17:00Z", "2013-12-31T23:59:59.999999999Z", "2013-12-31T23:59:60Z"],
    *["2013-01-01T24:00:00Z", "2013-01-01T10:60:00Z", "2013-13-01T10:17:00Z", "2013-00-01T10:17:00Z"],
    *["2013-01-00T10:17:00Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-02T00:00:00Z"],
    *["1969-12-31T23:59:59Z", "1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00Z", "9999-12-30T00:00:00Z"],
    *["9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "2013-01-01T10:17:00", "2013-01-01T10:17:00+00:00"],
    *["2013-01-01T10:17:00-05:00", "2013-01-01T10:17:00z", "2013-01-01t10:17:00Z", "2013-01-01 10:17:00Z"],
    *["2013-01-01T10:17Z", "2013-01-01T10:17:00.Z", "2013-01-01T10:17:00.1Z", "2013-01-01T10:17:00.123456Z"],
    *["2013-01-01T10:17:00.1234567890Z", "2013-01-01", "+2013-01-01T10:17:00Z", "-2013-01-01T10:17:00Z"],
    *["2013-1-1T10:17:00Z", "2026-11-21T12:10:00Z", "2026-11-21T12:10:00.000001Z", "2027-11-22T12:00:00Z"],
    *["2027-11-22T12:00:00.000001Z", "2013-03-10T02:30:00Z", "2013-01-01T10:17:00Z ", "٢٠١٣-01-01T10:17:00Z"],
]
Rewrite = Callable[[str, random.Random], str]


class Number(float):
    """A number with its original text: a contract distinguishes 1.0, 1 and 1e0."""

    def __new__(cls, text: str) -> Number:
        number = super().__new__(cls)
        number.text = text  # type: ignore[attr-defined]
        return number

    def __repr__(self) -> str:
        return str(self.text)  # type: ignore[attr-defined]


def parsed(text: str) -> dict[str, Any]:
    found = json.loads(text, parse_float=Number, parse_int=Number)
    assert isinstance(found, dict)
    return found


def written(
    fields: Iterable[tuple[str, Any]], space: Callable[[], str], string: Callable[[str], str], after: str = ""
) -> str:
    """Write a JSON object with white space from `space`, strings from `string`, and `after` behind each separator."""

    def value(item: Any) -> str:
        if isinstance(item, Number):
            return repr(item)
        if isinstance(item, str):
            return string(item)
        if isinstance(item, dict):
            return written(item.items(), space, string, after)
        if isinstance(item, list):
            return "[" + f",{after}".join(space() + value(inner) + space() for inner in item) + "]"
        return json.dumps(item)

    members = [f"{space()}{string(name)}{space()}:{after}{space()}{value(item)}{space()}" for name, item in fields]
    return f"{space()}{{{f',{after}'.join(members)}}}{space()}"


def plainly(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def spaced(text: str, rng: random.Random) -> str:
    return written(parsed(text).items(), lambda: rng.choice(["", "", " ", "\n", "\t", "\r\n", "  "]), plainly)


def shuffled_keys(text: str, rng: random.Random) -> str:
    fields = list(parsed(text).items())
    rng.shuffle(fields)
    return written(fields, str, plainly)


def escaped(text: str, rng: random.Random) -> str:
    def string(item: str) -> str:
        return '"' + "".join(character(c) for c in item) + '"'

    def character(item: str) -> str:
        if rng.random() < 0.3 or item in '"\\' or item < " ":
            units = item.encode("utf-16-be", "surrogatepass")
            form = rng.choice(["{:04x}", "{:04X}"])
            return "".join("\\u" + form.format(units[i] << 8 | units[i + 1]) for i in range(0, len(units), 2))
        return item

    return written(parsed(text).items(), str, string)


def one_space_after_separators(text: str, rng: random.Random) -> str:
    """As Python's json.dumps writes it; the gate accepts this form too."""
    return written(parsed(text).items(), str, plainly, after=" ")


REWRITES: dict[str, Rewrite] = {
    "spaced": spaced,
    "other order": shuffled_keys,
    "escaped": escaped,
    "json.dumps": one_space_after_separators,
}


def records(name: str, rng: random.Random) -> Iterator[str]:
    """Real events, every kind of bad record made from them, and every limit value in every field; all are objects."""
    feed = find_feed(name)
    values = [
        value.decode() for value in feed.frame(timedelta(0))["value"].sample(REAL_EVENTS, seed=rng.randrange(2**31))
    ]
    yield from values
    for bad in bad_records(feed):
        made = bad.make(rng.choice(values))
        if made is not None and is_object(made):
            yield made.decode()
    for column in declared_dataset(Settings(), name).contract.columns:
        for literal in [*LITERALS, *(json.dumps(time, ensure_ascii=False) for time in TIMES)]:
            yield with_literal(rng.choice(values), column.name, literal)


def with_literal(text: str, field: str, literal: str) -> str:
    """Put `literal` at the field's position in the contract's order, as the gate expects."""
    members = {name: json.dumps(value, ensure_ascii=False) for name, value in json.loads(text).items()}
    return "{" + ",".join(f'"{name}":{value}' for name, value in (members | {field: literal}).items()) + "}"


def is_object(value: bytes) -> bool:
    """Whether it is strict JSON of one object without a repeated key: only then can it be rewritten."""
    if len(value) > 100_000:
        return False
    try:
        pairs = json.loads(value.decode(), object_pairs_hook=list, parse_constant=refused)
        return isinstance(pairs, list) and len({name.lower() for name, _ in pairs}) == len(pairs)
    except (ValueError, TypeError):
        return False


def refused(constant: str) -> None:
    raise ValueError(constant)


@pytest.fixture(scope="module", params=["flights", "weather"])
def verdicts(request: pytest.FixtureRequest, spark: SparkSession) -> dict[str, list[Row]]:
    """Validate every record as it is (`plain`) and in every other form, in one query; row i is of record i."""
    rng = random.Random(parity_seed())
    texts = list(records(str(request.param), rng))
    forms = {"plain": texts} | {name: [rewrite(text, rng) for text in texts] for name, rewrite in REWRITES.items()}
    contract = declared_dataset(Settings(), str(request.param)).contract
    rows = validated_rows(spark, contract, [text for form in forms.values() for text in form])
    return {name: rows[place * len(texts) : (place + 1) * len(texts)] for place, name in enumerate(forms)}


def validated_rows(spark: SparkSession, contract: Contract, texts: list[str]) -> list[Row]:
    rows = [("t", 0, place, ARRIVED, text.encode("utf-8", "surrogatepass"), 0) for place, text in enumerate(texts)]
    schema = "topic string, partition int, offset long, timestamp timestamp, value binary, _batch_id long"
    frame = pl.DataFrame(rows, schema=["topic", "partition", "offset", "timestamp", "value", "_batch_id"], orient="row")
    bronze = spark.createDataFrame(frame.to_arrow()).to(spark.createDataFrame([], schema).schema)
    values = F.struct([F.col(column.name).cast("string").alias(column.name) for column in contract.columns])
    validator = compiled_validator(contract)
    by_gate = validator.accepted(bronze).select("_offset", values.alias("by_gate_values"))
    validated = validator.validated(bronze).select("_offset", values.alias("values"), "_reasons")
    validated = validated.join(by_gate, "_offset", "left")
    sent = bronze.select(F.col("offset").alias("_offset"), "value")
    return validated.join(sent, "_offset").orderBy("_offset").collect()


@pytest.mark.parametrize("name", ["flights", "weather"])
def test_real_events_are_in_plain_form(name: str, spark: SparkSession) -> None:
    """As the feed and json.dumps write them, with no other white space or order of keys."""
    rng, contract = random.Random(parity_seed()), declared_dataset(Settings(), name).contract
    texts = list(records(name, rng))[:REAL_EVENTS]
    reader = record_reader(spark, contract.columns, contract.limits)
    forms = {"plain": texts} | {form: [rewrite(text, rng) for text in texts] for form, rewrite in REWRITES.items()}
    for form, found in forms.items():
        plain = {reader.isPlain(bytearray(text.encode("utf-8", "surrogatepass"))) for text in found}
        assert plain == {form in ("plain", "json.dumps")}, form


@pytest.mark.parametrize("form", REWRITES)
def test_every_form_has_same_reasons(form: str, verdicts: dict[str, list[Row]]) -> None:
    wrong = [
        difference(one, two, "_reasons") for one, two in pairs(verdicts, form) if one["_reasons"] != two["_reasons"]
    ]
    assert wrong == []


@pytest.mark.parametrize("form", REWRITES)
def test_every_form_has_same_accepted_values(form: str, verdicts: dict[str, list[Row]]) -> None:
    wrong = [
        difference(one, two, "values")
        for one, two in pairs(verdicts, form)
        if not one["_reasons"] and not two["_reasons"] and one["values"] != two["values"]
    ]
    assert wrong == []


def test_gate_accepts_exactly_the_valid_records_with_same_values(verdicts: dict[str, list[Row]]) -> None:
    wrong = [
        (bytes(row["value"])[:400], row["_reasons"], row["values"], row["by_gate_values"])
        for rows in verdicts.values()
        for row in rows
        if row["by_gate_values"] != (None if row["_reasons"] else row["values"])
    ]
    assert wrong == []
    for rows in verdicts.values():
        assert REAL_EVENTS < sum(row["by_gate_values"] is not None for row in rows) < len(rows)


def test_records_cover_the_rules_and_valid_values(verdicts: dict[str, list[Row]]) -> None:
    rules = {reason["rule"] for row in verdicts["plain"] for reason in row["_reasons"]}
    assert rules >= {"type", "out_of_range", "bad_ts", "no_zone", "future_ts", "required", "enum", "range", "length"}
    assert sum(not row["_reasons"] for row in verdicts["plain"]) > 2 * REAL_EVENTS


def pairs(verdicts: dict[str, list[Row]], form: str) -> Iterator[tuple[Row, Row]]:
    return zip(verdicts["plain"], verdicts[form], strict=True)


def difference(one: Row, two: Row, column: str) -> str:
    return f"{bytes(one['value'])[:400]!r}: {one[column]}, but {bytes(two['value'])[:400]!r}: {two[column]}"
