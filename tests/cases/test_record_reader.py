"""Records by both passes, over their bytes and by a parser: which are proven, and which values are read of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.declare.contract import Column, Contract, Limits
from spark_jobs.contract.record_reader import PROVEN, record_values

AT = datetime(2026, 3, 1, tzinfo=UTC)


def read(spark: SparkSession, columns: Sequence[Column], records: Sequence[bytes]) -> list[Any]:
    """Return the values of each record as a tuple, None for one that breaks its contract.

    Both passes give the same: a space before the record makes it one that is walked.
    """
    contract = Contract("d", "1", tuple(columns), (), ())
    both = [*records, *(b" " + value for value in records)]
    frame = spark.createDataFrame([(number, value) for number, value in enumerate(both)], "n int, value binary")
    values = record_values(F.col("value"), F.lit(AT), contract).alias("read")
    typed = [F.col(f"read.{name}") for name in (PROVEN, *(column.name for column in columns))]
    rows = frame.repartition(2).select("n", values).select("n", *typed).orderBy("n").collect()
    found = [tuple(row)[2:] if row[PROVEN] else None for row in rows]
    count = len(records)
    assert found[:count] == found[count:]
    return found[:count]


def proven_texts(spark: SparkSession, column: Column, texts: Sequence[str]) -> list[str]:
    """Return those of the texts that are values of the column."""
    found = read(spark, [column], [f'{{"{column.member}":{text}}}'.encode() for text in texts])
    return [text for text, values in zip(texts, found, strict=True) if values is not None]


@pytest.mark.parametrize(
    ("precision", "scale", "accepted", "other"),
    [
        (3, 0, ["0", "-7", "999", "1.0", "9e2"], ["1000", "1.5", "01", "-", ""]),
        (3, 3, ["0", "0.1", "-0.999"], ["1", "0.1234", "1.5", "0."]),
        (3, 2, ["9", "9.99", "0.5"], ["10", "9.999", ".5"]),
        (38, 0, ["9" * 38], ["9" * 39]),
    ],
)
def test_decimals_of_any_precision_and_scale(
    spark: SparkSession, precision: int, scale: int, accepted: list[str], other: list[str]
) -> None:
    column = Column("n", "number", required=True, precision=precision, scale=scale)
    assert proven_texts(spark, column, [*accepted, *other]) == accepted


def test_field_is_matched_by_its_name_in_the_records(spark: SparkSession) -> None:
    column = Column("client_ip", "string", required=True, physical_name="clientIp")
    assert read(spark, [column], [b'{"clientIp":"::1"}', b'{"client_ip":"::1"}']) == [("::1",), None]


@pytest.mark.parametrize(
    ("column", "accepted", "other"),
    [
        (Column("s", "string", True), ['""', '"a b"', '"\u00e9\U0001f6eb\u0080"', '"\\n"'], ['"\x1f"', '"\x7f"', "1"]),
        (
            Column("s", "string", True, pattern="^[A-F]{2}-\\d$"),
            ['"AF-0"'],
            ['"AF-"', '"AF-00"', '"AG-0"', '"\u00c1-0"'],
        ),
        (Column("s", "string", True, pattern="^a(/[bc]{1,2})?$"), ['"a"', '"a/bc"'], ['"a/"', '"a/bcb"', '""']),
        (Column("s", "string", True, pattern="^[A-z]{2}$"), ['"Az"'], ['"\\n"', '"a\\"', '"\\\\"']),
        (Column("s", "string", True, values=("a b", "\u00e9", 'q"')), ['"a b"', '"\u00e9"', '"q\\""'], ['"a"', '""']),
        (Column("s", "string", True, values=('q"',)), ['"q\\""'], ['""', '"q""']),
        (
            Column("n", "integer", True),
            ["0", "-0", "999999999", "-2147483648"],
            ["2147483648", "00", "1e1", "1.0", '"1"', "+1"],
        ),
        (Column("b", "boolean", True), ["true", "false"], ["True", "truex", "null", "tru"]),
    ],
)
def test_values_that_a_column_accepts(
    spark: SparkSession, column: Column, accepted: list[str], other: list[str]
) -> None:
    assert proven_texts(spark, column, [*accepted, *other]) == accepted


def test_record_that_is_too_large_is_refused(spark: SparkSession) -> None:
    largest = Limits().bytes - len('{"s":""}')
    records = [f'{{"s":"{"x" * size}"}}'.encode() for size in (largest - 1, largest + 1)]
    column = Column("s", "string", True, max_length=largest + 1)
    assert [values is not None for values in read(spark, [column], records)] == [True, False]


def test_text_that_is_too_short_or_too_long_is_refused(spark: SparkSession) -> None:
    column = Column("s", "string", True, min_length=2, max_length=3)
    assert proven_texts(spark, column, ['"a"', '"ab"', '"\u00e9"', '"abc"', '"ab\u00e9"']) == [
        '"ab"',
        '"\u00e9"',
        '"abc"',
    ]


def test_times_are_read_to_the_microsecond(spark: SparkSession) -> None:
    column = Column("at", "timestamp", True, future=timedelta(days=3_000_000))
    texts = ["2012-02-29T23:59:59Z", "1969-12-31T23:59:59.9Z", "1700-01-02T00:00:00.1234567Z", "9999-12-29T23:00:00Z"]
    expected = [datetime.fromisoformat(text[:26].removesuffix("Z")).replace(tzinfo=UTC) for text in texts]
    found = read(spark, [column], [f'{{"at": "{text}"}}'.encode() for text in texts])
    assert [at.replace(tzinfo=UTC) for (at,) in found] == expected


def test_days_that_do_not_exist_and_other_forms_of_times_are_refused(spark: SparkSession) -> None:
    days = [
        "2013-02-29",
        "1900-02-29",
        "2013-04-31",
        "2013-13-01",
        "2013-00-10",
        "2013-01-00",
        "13-01-01",
        "x013-01-01",
    ]
    times = [f"{day}T00:00:00Z" for day in days]
    clocks = ["24:00:00Z", "00:60:00Z", "00:00:60Z", "00:00:00", "00:00:00.Z", "00:00:00.1234567890Z", "00:00Z"]
    times += [f"2013-01-01T{clock}" for clock in clocks]
    assert proven_texts(spark, Column("at", "timestamp", True), [f'"{time}"' for time in times]) == []


OPTIONAL = [Column("a", "string", True), Column("b", "string"), Column("c", "integer"), Column("d", "string", True)]


def test_optional_fields_may_be_null_or_absent(spark: SparkSession) -> None:
    records = {
        '{"a":"1","b":"2","c":3,"d":"4"}': ("1", "2", 3, "4"),
        '{ "a": "1", "b": null, "c": null, "d": "4"}': ("1", None, None, "4"),
        '{"a":"","d":""}': ("", None, None, ""),
        '{"a":"1","c":7,"d":"4"}': ("1", None, 7, "4"),
        '{"a":"1","b":"","d":"4"}': ("1", "", None, "4"),
        '{"a":"1","c":7,"b":"2","d":"4"}': ("1", "2", 7, "4"),
        '{"a":null,"d":"4"}': None,
        '{"a":"1"}': None,
        '{"a":"1","d":"4","e":5}': ("1", None, None, "4"),
        '{"a":"1",  "d":"4"}': ("1", None, None, "4"),
        '{"a":"1","d":"4"} ': ("1", None, None, "4"),
        '{"a":"1","d":"4"}}': None,
        '{"a":"1","a":"2","d":"4"}': None,
        '{"a":"1","b":"2","b":"3","d":"4"}': None,
        '{"a":"1","b":null,"b":"3","d":"4"}': None,
        '{"a":"1","c":3,"c":null,"d":"4"}': None,
        '{"a":"1","b":"2","c":3,"b":"2","d":"4"}': None,
    }
    assert read(spark, OPTIONAL, [record.encode() for record in records]) == list(records.values())


def test_every_cut_record_and_every_changed_byte_is_read_as_json_or_not_at_all(spark: SparkSession) -> None:
    whole = '{"a": "x y","b":"\u00e9","c":-12,"d":"4"}'.encode()
    records = [whole[:length] for length in range(len(whole))]
    records += [whole[:at] + bytes([new]) + whole[at + 1 :] for at in range(len(whole)) for new in b'"\\},: 0n\x00\xe9']
    for record, values in zip(records, read(spark, OPTIONAL, records), strict=True):
        if values is not None:
            parsed = json.loads(record)
            assert values == tuple(parsed.get(name) for name in "abcd")


def test_text_that_is_no_utf8_and_no_record_are_refused(spark: SparkSession) -> None:
    column = Column("s", "string", True)
    assert read(spark, [column], [b'{"s":"\xe9"}', b'{"s":"\xed\xa0\x80"}', b"", b"{", b"{}"]) == [None] * 5


def test_contract_may_begin_with_an_optional_field(spark: SparkSession) -> None:
    assert read(spark, [Column("s", "string")], [b'{"s":"x"}', b"{}", b"{ }"]) == [("x",), (None,), (None,)]
