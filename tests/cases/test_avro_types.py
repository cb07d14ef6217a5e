"""Avro's kinds of values in columns of the types that read them: as Spark decodes them, and as the audit does."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from avro_trades import encoded, schema_text
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.audit.silver import payload_member
from include.declare.avro_payloads import AvroFormat
from include.declare.contract import Column, Contract
from include.declare.contract_types import COLUMN_TYPES
from include.ground.schema_registry import AVRO as AVRO_TYPE
from include.ground.schema_registry import RegisteredSchema
from include.read.memory_database import memory_database
from spark_jobs.contract.payload_texts import PayloadTexts
from spark_jobs.contract.validator import compiled_validator

BRONZE = "topic string, partition int, offset long, timestamp timestamp, value binary, _batch_id long"
ARRIVED = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NUMBER = 7
IDENTIFIER = "123e4567-e89b-12d3-a456-426614174000"


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


@dataclass(frozen=True)
class Case:
    """A field's Avro type, the type of the column that reads it, and what the column has for written values.

    A text that begins with `!` is the rule by which the value is rejected.
    """

    avro: Any
    type: str
    values: Sequence[tuple[Any, Any]]


def single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


CASES: Mapping[str, Case] = {
    "bytes": Case("bytes", "binary", [(b"", b""), (b"\x00\xff\x80", b"\x00\xff\x80"), (b"ab", b"ab")]),
    "base64": Case("string", "binary", [("AP+A", b"\x00\xff\x80"), ("AP-A", "!format"), ("AB==", "!format")]),
    "bytes_as_text": Case("bytes", "string", [("é".encode(), "é"), (b"", "")]),
    "millis": Case(
        logical("int", "time-millis"),
        "time",
        [(time(0), "00:00:00"), (time(8, 30, 0, 500_000), "08:30:00.5"), (time(23, 59, 59, 999_000), "23:59:59.999")],
    ),
    "micros": Case(
        logical("long", "time-micros"),
        "time",
        [(time(8, 30), "08:30:00"), (time(0, 0, 0, 1), "00:00:00.000001"), (time(1, 2, 3, 40), "01:02:03.00004")],
    ),
    "time_of_text": Case("string", "time", [("08:30:00.500", "08:30:00.5"), ("24:00:00", "!format")]),
    "time_as_text": Case(logical("int", "time-millis"), "string", [(time(8, 30), "08:30:00.000000")]),
    "day": Case(
        logical("int", "date"),
        "date",
        [(date(1, 1, 1),) * 2, (date(1582, 10, 10),) * 2, (date(1969, 12, 31),) * 2, (date(9999, 12, 31),) * 2],
    ),
    "day_of_text": Case("string", "date", [("2012-02-29", date(2012, 2, 29)), ("2013-02-29", "!format")]),
    "uuid": Case(logical("string", "uuid"), "uuid", [(UUID(IDENTIFIER), IDENTIFIER)]),
    "uuid_of_text": Case("string", "uuid", [(IDENTIFIER.upper(), IDENTIFIER), ("x", "!format")]),
    "long": Case("long", "bigint", [(2**63 - 1,) * 2, (-(2**63),) * 2, (2**53 + 1,) * 2]),
    "int_of_long": Case("long", "integer", [(2**31 - 1,) * 2, (2**31, "!out_of_range")]),
    "small_of_int": Case("int", "smallint", [(-(2**15),) * 2, (2**15, "!out_of_range")]),
    "float": Case(
        "float",
        "float",
        [(0.1, single(0.1)), (16_777_217.0, 16_777_216.0), (1e-45, single(1e-45)), (3.4028235e38, single(3.4028235e38))]
        + [(-0.0, 0.0), (float("nan"), "!type"), (float("-inf"), "!type")],
    ),
    "double": Case("double", "double", [(0.1, 0.1), (5e-324, 5e-324), (1.7976931348623157e308,) * 2, (-0.0, 0.0)]),
    # JSON has the fewest digits that name the float, and a double is read from these.
    "double_of_float": Case("float", "double", [(0.1, 0.1), (0.5, 0.5)]),
    "float_of_double": Case("double", "float", [(0.1, single(0.1)), (1e39, "!out_of_range")]),
    "decimal_of_float": Case("float", "number", [(0.5, Decimal("0.500")), (1e-4, "!scale")]),
    "decimal": Case(
        logical("bytes", "decimal", precision=9, scale=3),
        "number",
        [(Decimal("-123456.789"),) * 2, (Decimal("0.001"),) * 2],
    ),
}
TOKENS = [(name, written, expected) for name, case in CASES.items() for written, expected in case.values]
CONTRACT = Contract(
    "d",
    "1",
    (
        Column("id", "string", required=True),
        *(Column(name, case.type, precision=9, scale=3) for name, case in CASES.items()),
    ),
    (),
    ("id",),
    payload=AvroFormat(),
)
SCHEMA = {
    "type": "record",
    "name": "Readings",
    "fields": [
        {"name": "id", "type": "string"},
        *({"name": name, "type": ["null", case.avro], "default": None} for name, case in CASES.items()),
    ],
}
WRITTEN = RegisteredSchema(NUMBER, AVRO_TYPE, schema_text(SCHEMA))
PAYLOADS = [encoded(SCHEMA, {"id": "x", name: written}, NUMBER) for name, written, _ in TOKENS]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> list[dict[str, Any]]:
    """What the data plane makes of the records, in their order."""
    columns = ("topic", "partition", "offset", "timestamp", "value", "_batch_id")
    records = [
        dict(zip(columns, ("t", 0, n, ARRIVED + timedelta(seconds=n), value, 0), strict=True))
        for n, value in enumerate(PAYLOADS)
    ]
    bronze = spark.createDataFrame(pa.Table.from_pylist(records)).to(StructType.fromDDL(BRONZE))
    texts = PayloadTexts(CONTRACT, (WRITTEN,)).of(bronze)
    found: list[dict[str, Any]] = compiled_validator(CONTRACT).validated(texts).orderBy("_offset").toArrow().to_pylist()
    return found


@pytest.mark.parametrize("name", CASES)
def test_avro_value_is_the_columns_value_or_is_rejected(name: str, rows: list[dict[str, Any]]) -> None:
    found = []
    for (field, _, _), row in zip(TOKENS, rows, strict=True):
        if field == name:
            found.append(f"!{row['_reasons'][0]['rule']}" if row["_reasons"] else row[name])
    expected = [value for _, value in CASES[name].values]
    assert found == expected
    assert list(map(str, found)) == list(map(str, expected))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not COLUMN_TYPES[case.type].no_key])
def test_audit_decodes_the_same_value(name: str) -> None:
    column = next(column for column in CONTRACT.columns if column.name == name)
    accepted = [
        (payload, expected)
        for (field, _, expected), payload in zip(TOKENS, PAYLOADS, strict=True)
        if field == name and not str(expected).startswith("!")
    ]
    with memory_database() as database:
        AvroFormat().define_texts(database, {NUMBER: WRITTEN}, CONTRACT.columns)
        sql = column.kind.duckdb_value(payload_member(name), column.kind.duckdb_type(column))
        database.register("records", pa.table({"value": [payload for payload, _ in accepted]}))
        found = database.sql(f"select {sql} from (select payload_text(value) as payload from records)").fetchall()
    assert [value for (value,) in found] == [value for _, value in accepted]
