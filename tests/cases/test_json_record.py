"""Records that are not in plain form: what readers that disagree about them would make of their faults."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from include.declare.contract import Column, Contract
from spark_jobs.contract.validator import compiled_validator

ARRIVED = datetime(2026, 3, 1, 9, tzinfo=UTC)
AT = '"at":"2026-03-01T08:00:00Z"'
BRONZE = "topic string, partition int, offset long, timestamp timestamp, value binary, _batch_id long"
COLUMNS = (
    Column("id", "string", required=True),
    Column("at", "timestamp", required=True),
    Column("n", "integer"),
    Column("amount", "number", precision=18, scale=6),
    Column("big", "number", precision=38, scale=0),
    Column("ok", "boolean"),
)


def validated(spark: SparkSession, columns: Sequence[Column], records: Sequence[str]) -> list[Row]:
    contract = Contract("d", "1", tuple(columns), (), ("id",))
    rows = [("t", 0, place, ARRIVED, bytearray(record.encode()), 0) for place, record in enumerate(records)]
    found = compiled_validator(contract).validated(spark.createDataFrame(rows, BRONZE))
    # Python has no time of the year 0.
    return found.drop("at", "_timestamp").orderBy("_offset").collect()


def reasons(row: Row) -> list[tuple[str, str, str | None]]:
    return [tuple(reason) for reason in row["_reasons"]]


def nested(fields: str) -> str:
    return f'{{"id":"a",{AT},{fields}}}'


REPEATED = {
    '"n":"12","meta":{"x":1,"x":2}': "$.meta.x",
    '"n":99999999999,"tags":[{"x":1},{"x":1,"y":{},"x":2}]': "$.tags[1].x",
    '"meta":{"a":{"b":1,"\\u0062":2}}': "$.meta.a.b",
    '"amount":{"x":1,"x":2}': "$.amount.x",
    '"ok":null,"meta":{"":1,"":2}': "$.meta.",
    '"meta":{"' + "k" * 100 + '":1,"' + "k" * 100 + '":2}': "$.meta." + "k" * 57,
    '"n":1,"N":2': "$.N",
}


@pytest.fixture(scope="module")
def repeated(spark: SparkSession) -> dict[str, Row]:
    return dict(zip(REPEATED, validated(spark, COLUMNS, [nested(fields) for fields in REPEATED]), strict=True))


@pytest.mark.parametrize("fields", REPEATED)
def test_key_that_an_object_has_twice_is_named_by_its_path(fields: str, repeated: dict[str, Row]) -> None:
    assert reasons(repeated[fields]) == [("duplicate_key", "", REPEATED[fields])]


OTHER: dict[str, list[tuple[str, str, str | None]]] = {
    nested('"meta":{"x":1,"X":2}'): [],
    nested('"n":"12","meta":{"x":1,"X":2}'): [("type", "n", "12")],
    nested('"ok":"true"'): [("type", "ok", "true")],
    f'{{"id":{{"a":1}},{AT}}}': [("type", "id", '{"a":1}')],
    f'{{"id":[ "b" , {{ }} ],{AT}}}': [("type", "id", '["b",{}]')],
    nested('"n":n'): [("malformed", "", "$.n")],
    nested('"n":s'): [("malformed", "", "$.n")],
    '{id:"a"}': [("malformed", "", "$")],
    nested(f'"{"k" * 51_000}":1'): [],
    nested(f'"{"k" * 51_000}":1,"n":"x"'): [("type", "n", "x")],
    nested(f'"note":"{"v" * 900_000}"'): [],
    nested(f'"n":{"9" * 1_000}'): [("out_of_range", "n", "9" * 64)],
    nested(f'"n":{"9" * 1_001}'): [("malformed", "", "$.n")],
    nested(f'"amount":{"1" * 600}.{"1" * 600}'): [("out_of_range", "amount", "1" * 64)],
    nested(f'"note":{"1" * 600}.{"1" * 600}'): [],
    nested(f'"note":{"[" * 31}{"]" * 31}'): [],
    nested(f'"note":{"[" * 32}{"]" * 32}'): [("depth", "", ("$.note" + "[0]" * 31)[:64])],
    nested(f'"note":{"[" * 100_000}{"]" * 100_000}'): [("depth", "", ("$.note" + "[0]" * 31)[:64])],
    nested(f'"note":{"[" * 100_000}'): [("malformed", "", ("$.note" + "[0]" * 31)[:64])],
}


@pytest.fixture(scope="module")
def others(spark: SparkSession) -> dict[str, Row]:
    return dict(zip(OTHER, validated(spark, COLUMNS, list(OTHER)), strict=True))


@pytest.mark.parametrize("record", OTHER, ids=[record[-70:] for record in OTHER])
def test_only_the_limits_of_a_record_and_its_columns_reject_it(record: str, others: dict[str, Row]) -> None:
    assert reasons(others[record]) == OTHER[record]


NUMBERS: dict[tuple[str, str], Decimal | str] = {
    ("amount", "123456789012345678e-6"): Decimal("123456789012.345678"),
    ("amount", "1.000000000000000000000000000000000000000001"): "scale",
    ("amount", "1e-400"): "scale",
    ("amount", "-1e-99999999999999"): "scale",
    ("amount", "1e400"): "out_of_range",
    ("amount", "1e99999999999999"): "out_of_range",
    ("amount", "0e99999999999999"): Decimal(0),
    ("amount", "-0.0e-7"): Decimal(0),
    ("amount", "-0.10e+1"): Decimal(-1),
    ("amount", "1.5000000000000000000000000000000000000000000000"): Decimal("1.5"),
    ("amount", "999999999999.999999"): Decimal("999999999999.999999"),
    ("amount", "1000000000000"): "out_of_range",
    ("big", "1.23456789012345678901e20"): Decimal(123456789012345678901),
    ("big", "9" * 38): Decimal("9" * 38),
    ("big", "9" * 39): "out_of_range",
    ("big", "1" + "0" * 38 + "e-1"): Decimal(10**37),
    ("big", "5e-1"): "scale",
}


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> dict[tuple[str, str], Row]:
    records = [nested(f'"{name}":{text}') for name, text in NUMBERS]
    return dict(zip(NUMBERS, validated(spark, COLUMNS, records), strict=True))


@pytest.mark.parametrize("case", NUMBERS)
def test_decimal_is_exactly_the_number_that_is_written(
    case: tuple[str, str], numbers: dict[tuple[str, str], Row]
) -> None:
    name, row, expected = case[0], numbers[case], NUMBERS[case]
    found: Any = [reason["rule"] for reason in row["_reasons"]]
    assert found == ([expected] if isinstance(expected, str) else [])
    if not isinstance(expected, str):
        assert row[name] == expected


def test_bounds_of_times_hold_in_every_century(spark: SparkSession) -> None:
    """PySpark's literals of times before 1582-10-15 are of another calendar than the times of records."""
    low, high = datetime(1200, 1, 1, tzinfo=UTC), datetime(1582, 10, 14, 23, 59, 59, 999999, tzinfo=UTC)
    columns = (Column("id", "string", required=True), Column("at", "timestamp", minimum=low, maximum=high))
    times = {
        "1200-01-01T00:00:00Z": [],
        "1199-12-31T23:59:59.999999Z": ["range"],
        "1582-10-14T23:59:59.999999Z": [],
        "1582-10-15T00:00:00Z": ["range"],
        "0001-01-01T23:59:59.999999Z": ["out_of_range", "range"],
        "0001-01-02T00:00:00Z": ["range"],
    }
    for space in ("", "  "):
        rows = validated(spark, columns, [f'{{"id":"a",{space}"at":"{time}"}}' for time in times])
        assert [[reason["rule"] for reason in row["_reasons"]] for row in rows] == list(times.values())


def test_bounds_of_decimals_hold_to_the_last_digit(spark: SparkSession) -> None:
    """Spark compares two decimals as one type, which has no decimals beside 38 digits."""
    cases = {
        ("-0.5", "1E+37"): {"-1": ["range"], "0": [], "1" + "0" * 37: [], "1" + "0" * 36 + "1": ["range"]},
        ("0.5", "2.5"): {"0": ["range"], "1": [], "2": [], "3": ["range"]},
        ("-1E+60", "1E+60"): {"9" * 38: [], "-" + "9" * 38: []},
        ("1E+60", "2E+60"): {"9" * 38: ["range"]},
        ("-2E+60", "-1E+60"): {"-" + "9" * 38: ["range"], "null": []},
    }
    for (low, high), numbers in cases.items():
        big = Column("n", "number", precision=38, scale=0, minimum=Decimal(low), maximum=Decimal(high))
        columns = (Column("id", "string", required=True), big)
        for space in ("", "  "):
            rows = validated(spark, columns, [f'{{"id":"a",{space}"n":{number}}}' for number in numbers])
            assert [[reason["rule"] for reason in row["_reasons"]] for row in rows] == list(numbers.values())
