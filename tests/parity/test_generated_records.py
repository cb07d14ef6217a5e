"""Generated records in every path: the verdict and the values of each are those that plain Python finds.

Streams, backfills, replays, fixes and the deep audit validate by the same columns (`validator.py`): what holds for one
of them holds for all. HEADRACE_RECORDS=200000 generates more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deliveries import parity_seed
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from json_reading import Reading, Token, decimal_of, document, reading
from json_records import ARRIVED, COLUMNS, record
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.audit.silver import exact_number
from include.declare.contract import Contract
from include.declare.payload_format import JsonSchemaFormat
from spark_jobs.backends.local.prepared_query import row_projection
from spark_jobs.backends.local.validation import RECORD
from spark_jobs.contract.payload_texts import PayloadTexts
from spark_jobs.contract.record_reader import REASONS
from spark_jobs.contract.validator import compiled_validator

RECORDS = int(os.environ.get("HEADRACE_RECORDS", "0"))
FEW, AT_A_TIME = 300, 10_000
CONTRACT = Contract("generated", "1", COLUMNS, (), ("id",))
HEADER = b"\x00\x00\x00\x00\x07"


def hypothetical(count: int, number: int) -> list[bytes]:
    found: list[bytes] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def collect(rng: random.Random) -> None:
        found.append(record(rng))

    collect()
    return found


def random_records(first: int, count: int) -> list[bytes]:
    return [record(random.Random(number)) for number in range(first, first + count)]


def generated() -> Iterator[list[bytes]]:
    """Yield batches of records: few by Hypothesis, which likes extremes; many by random numbers, which are faster."""
    number = parity_seed()
    if not RECORDS:
        yield hypothetical(FEW, number) + random_records(number, 6 * FEW)
    for first in range(0, RECORDS, AT_A_TIME):
        yield random_records(number * 1_000_003 + first, AT_A_TIME)


def bronze(records: Sequence[bytes]) -> pa.Table:
    """Return records as the columns that bronze has without its own."""
    count = len(records)
    values: Mapping[str, Any] = {
        "topic": ["t"] * count,
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([ARRIVED] * count, pa.timestamp("us", "UTC")),
        "value": pa.array(records, pa.binary()),
        "_batch_id": pa.array([0] * count, pa.int64()),
    }
    kinds = {field.name: field.dataType for field in RECORD.fields}
    missing = {name: pa.nulls(count, ARROW[kinds[name].typeName()]) for name in kinds if name not in values}
    return pa.table({**values, **missing})


ARROW: Mapping[str, pa.DataType] = {
    "integer": pa.int32(),
    "binary": pa.binary(),
    "array": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def read(columns: DataFrame) -> DataFrame:
    """Return the values of validated records in forms that Python has for all of them: times as microseconds."""
    values = [F.unix_micros(c.name).alias(c.name) if c.type == "timestamp" else c.name for c in COLUMNS]
    return columns.select("_offset", *values, "_reasons")


@dataclass(frozen=True)
class Paths:
    """The ways of a record to its verdict."""

    spark: SparkSession

    def tasks(self, records: Sequence[bytes]) -> pa.Table:
        rows = self.spark.createDataFrame(bronze(records))
        return read(compiled_validator(CONTRACT).validated(rows)).toArrow()

    def general(self, records: Sequence[bytes]) -> pa.Table:
        """A space before a record keeps it from being plain, and is no part of it."""
        return self.tasks([b" " + value if value[:1] == b"{" else value for value in records])

    def few(self, records: Sequence[bytes]) -> pa.Table:
        projection = row_projection(self.spark, RECORD, self._validated)
        assert projection is not None
        return projection.of(bronze(records))

    def _validated(self, rows: DataFrame) -> DataFrame:
        return read(compiled_validator(CONTRACT).validated(rows))

    def framed(self, records: Sequence[bytes]) -> pa.Table:
        """JSON in the wire format of a schema registry."""
        contract = replace(CONTRACT, payload=JsonSchemaFormat())
        rows = self.spark.createDataFrame(bronze([HEADER + value for value in records]))
        return read(compiled_validator(contract).validated(PayloadTexts(contract).of(rows))).toArrow()

    def gate(self, records: Sequence[bytes]) -> pa.Table:
        rows = self.spark.createDataFrame(bronze(records))
        accepted = compiled_validator(CONTRACT).accepted(rows)
        return read(accepted.withColumn("_reasons", F.array().cast(REASONS))).toArrow()


PATHS: Mapping[str, Callable[[Paths, Sequence[bytes]], pa.Table]] = {
    "tasks": Paths.tasks,
    "general": Paths.general,
    "few": Paths.few,
    "framed": Paths.framed,
    "gate": Paths.gate,
}


@pytest.fixture(scope="module")
def paths(spark: SparkSession) -> Paths:
    return Paths(spark)


@pytest.mark.extended
def test_every_path_finds_what_plain_python_finds(paths: Paths) -> None:
    seen: dict[str, int] = {}
    for records in generated():
        expected = [reading(value) for value in records]
        for name, path in PATHS.items():
            found = path(paths, records).to_pylist()
            wrong = list(differences(records, expected, found, is_complete=name != "gate"))
            assert wrong == [], f"{name}: {len(wrong)} of {len(records)} records"
            seen[name] = seen.get(name, 0) + len(found)
        for each in expected:
            for rule in {rule for rule, _ in each.reasons} or {"accepted"}:
                seen[rule] = seen.get(rule, 0) + 1
        print(seen, flush=True)
    assert seen.keys() >= RULES
    assert seen["gate"] == seen["accepted"] > 5


RULES = {"accepted", "malformed", "duplicate_key", "type", "scale", "out_of_range", "bad_ts", "no_zone", "range"}
RULES |= {"future_ts", "past_ts", "length", "pattern", "enum", "missing_id", "bad_utf8", "control_char", "depth"}


def differences(
    records: Sequence[bytes], expected: Sequence[Reading], found: Sequence[Mapping[str, Any]], *, is_complete: bool
) -> Iterator[str]:
    rows = {row["_offset"]: row for row in found}
    if is_complete and rows.keys() != set(range(len(records))):
        yield f"rows of {len(rows)} records of {len(records)}"
    for offset, row in rows.items():
        why = difference(expected[offset], row)
        if why:
            yield f"{records[offset][:1500]!r}: {why}"


def difference(expected: Reading, row: Mapping[str, Any]) -> str:
    reasons = [(reason["rule"], reason["column"]) for reason in row["_reasons"]]
    if reasons != expected.reasons:
        return f"is {reasons}, should be {expected.reasons}"
    details = zip((reason["detail"] for reason in row["_reasons"]), expected.details, strict=True)
    if wrong := [(detail, right) for detail, right in details if right is not None and detail != right]:
        return f"details (found, right) {wrong}"
    if reasons:
        return ""
    values = {name: (row[name], right) for name, right in expected.values.items() if not is_same(row[name], right)}
    return f"values (found, right) {values}" if values else ""


def is_same(found: Any, right: Any) -> bool:
    if isinstance(found, Decimal) and isinstance(right, Decimal):
        return found == right
    return type(found) is type(right) and bool(found == right)


def test_audit_reads_the_numbers_that_plain_python_finds() -> None:
    """By code of its own: it must not share an error with the columns that it checks."""
    compared = 0
    for value in random_records(parity_seed(), FEW):
        found = document(value)
        for name, token in found if isinstance(found, list) else ():
            column = NUMBERS.get(name)
            if column is not None and isinstance(token, Token):
                right = decimal_of(token, 38, column.scale)
                exact = exact_number(value.decode(), name, column.scale)
                is_right = exact is None if right == "scale" else exact is not None and Decimal(exact) == right
                # The audit has no precision: silver's type has it.
                assert right == "out_of_range" or is_right, (token, exact, right)
                compared += 1
    assert compared > FEW


NUMBERS = {column.member: column for column in COLUMNS if column.type == "number"}
