"""Gold over columns of every type: DuckDB in the driver and Spark give equal rows, and the audit recomputes them."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pytest
from declared_gold import audited
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release

from include.ground.settings import Settings
from spark_jobs.backends.local.backend import adopted

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DECLARED = {
    "tiny": "logicalType: integer, physicalType: tinyint",
    "small": "logicalType: integer, physicalType: smallint",
    "big": "logicalType: integer, physicalType: bigint",
    "day": "logicalType: date",
    "clock": "logicalType: time",
    "uid": "logicalType: string, physicalType: uuid",
    "amount": "logicalType: number, physicalType: 'decimal(18,4)'",
    "is_open": "logicalType: boolean",
    "single": "logicalType: number, physicalType: float",
    "double": "logicalType: number, physicalType: double",
    "raw": "logicalType: string, physicalType: binary",
}
VALUES: dict[str, list[Any]] = {
    "tiny": [-128, 0, 127],
    "small": [-(2**15), -1, 2**15 - 1],
    "big": [-(2**63), -1, 2**53 + 1, 2**53 + 2, 2**63 - 1],
    "day": ["0001-01-01", "1582-10-10", "1969-12-31", "2012-02-29", "9999-12-31"],
    "clock": ["00:00:00", "08:30:00", "08:30:00.5", "08:30:00.000001", "23:59:59.999999"],
    "uid": [str(UUID(int=number)) for number in (0, 9, 10, 2**127, 2**128 - 1)],
    "amount": [-12_345_678_901_234, 0.0001, 0.1, 1],
    "is_open": [True, False],
    "single": [-3.4028235e38, -0.0, 0.1, 1e-45, 16777217],
    "double": [-1.7976931348623157e308, -0.0, 0.1, 5e-324, 9007199254740993],
    "raw": [base64.b64encode(value).decode() for value in (b"", b"\x00", b"\x7f", b"\x80", b"\xff\x00")],
}
EMBEDDED = [name for name in DECLARED if name not in ("single", "double", "raw")]
CONTRACT = """apiVersion: v3.1.0
kind: DataContract
id: kinds
name: kinds
version: 1.0.0
status: active
schema:
  - name: kinds
    physicalType: topic
    logicalType: object
    properties:
      - {name: id, logicalType: string, required: true, unique: true, primaryKey: true}
      - {name: at, logicalType: timestamp, required: true}
      - {name: station, logicalType: string, required: true}
"""
PIPELINE = """topic: kinds
partitions: 2
event_time: at
lateness: 2 days
identity: {columns: [id], horizon: 3 days}
gold:
"""
SILVER = """def silver(accepted):
    return accepted
"""


def carried(name: str) -> Iterator[str]:
    """Yield the measures that only pass values on."""
    yield f"{name}_first: {{first: {name}}}"
    yield f"{name}_last: {{last: {name}}}"
    yield f"{name}_of_most: {{max_by: {{value: {name}, by: at}}}}"
    yield f"{name}_of_least: {{min_by: {{value: {name}, by: big}}}}"


def ordered(name: str) -> Iterator[str]:
    """Yield the measures that compare values."""
    yield f"{name}_min: {{min: {name}}}"
    yield f"{name}_max: {{max: {name}}}"


def counted(name: str) -> Iterator[str]:
    """Yield the measures that compare values and may have a state."""
    yield f"{name}_count: {{count_distinct: {name}}}"
    yield f"{name}_top: {{top_k: {{value: {name}, k: 2}}}}"
    yield f"{name}_least: {{min_by: {{value: id, by: {name}}}}}"
    yield f"{name}_most: {{max_by: {{value: id, by: {name}}}}}"


def additive(table: str, measures: Iterator[str], key: str = "station") -> str:
    made = "".join(f"      {each}\n" for each in measures)
    window = "window: {column: at, size: 1 day, as: since}"
    return f"  {table}:\n    kind: additive\n    {window}\n    keys: [{key}]\n    measures:\n{made}"


def latest(table: str, key: str, columns: list[str]) -> str:
    chosen = ", ".join(f"{name}_now: {name}" for name in columns)
    return f"  {table}:\n    kind: latest\n    keys: [{key}]\n    order_by: [at]\n    columns: {{{chosen}}}\n"


KEYED = {"by_whole": "tiny, small", "by_day": "big, day", "by_text": "clock, uid, is_open"}
IN_DUCKDB = {
    "kinds_carried": additive("kinds_carried", (each for name in DECLARED for each in carried(name))),
    "kinds_ordered": additive(
        "kinds_ordered", (each for name in DECLARED if name not in ("raw", "is_open") for each in ordered(name))
    ),
    "kinds_counted": additive("kinds_counted", (each for name in EMBEDDED for each in counted(name))),
    **{table: additive(table, iter(["n: {count: '*'}"]), keys) for table, keys in KEYED.items()},
    "kinds_now": latest("kinds_now", "station", list(DECLARED)),
}
IN_SPARK = {
    "kinds_raw": additive("kinds_raw", ordered("raw")),
    "kinds_other": additive("kinds_other", (e for name in ("single", "double", "raw") for e in counted(name))),
}


def batches() -> list[list[Record]]:
    numbers, found = random.Random(11), list[Record]()
    for number in range(240):
        event: dict[str, Any] = {
            "id": f"k{number}",
            "at": f"{NOON + timedelta(minutes=37 * numbers.randrange(80)):%Y-%m-%dT%H:%M:%SZ}",
            "station": numbers.choice("abc"),
        }
        event |= {name: numbers.choice([None, *values]) for name, values in VALUES.items()}
        found.append(Record(json.dumps(event).encode(), partition=number % 2))
    return [found[:100], found[100:]]


def released(spark: SparkSession, folder: Path, *, by_spark: bool) -> SmallRelease:
    declared = folder / "declared" / "kinds"
    declared.mkdir(parents=True)
    columns = "".join(f"      - {{name: {name}, {kind}}}\n" for name, kind in DECLARED.items())
    tables = IN_DUCKDB if by_spark else IN_DUCKDB | IN_SPARK
    (declared / "contract.yaml").write_text(CONTRACT + columns)
    (declared / "pipeline.yaml").write_text(PIPELINE + "".join(tables.values()))
    (declared / "silver.py").write_text(SILVER)
    release = small_release(spark, Settings(state=folder / "state"), "kinds", declared)
    assert set(adopted(release.release.writer).merges) == set(IN_DUCKDB)
    if by_spark:
        release.release = replace(release.release, writer=replace(adopted(release.release.writer), merges={}))
    for batch in batches():
        release.take(batch)
    assert release.rejected().height == 0
    return release


@pytest.fixture(scope="module")
def embedded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    return released(spark, tmp_path_factory.mktemp("embedded"), by_spark=False)


@pytest.fixture(scope="module")
def merged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    return released(spark, tmp_path_factory.mktemp("merged"), by_spark=True)


def rows(release: SmallRelease, table: str) -> pl.DataFrame:
    found = release.read(f"gold.{table}")
    return found.sort([name for name in found.columns if name in ("since", "station", *DECLARED)])


@pytest.mark.extended
@pytest.mark.parametrize("table", IN_DUCKDB)
def test_duckdb_and_spark_give_equal_rows(embedded: SmallRelease, merged: SmallRelease, table: str) -> None:
    found, expected = rows(embedded, table), rows(merged, table)
    assert found.height > 1
    assert found.schema == expected.schema
    assert found.equals(expected)


@pytest.mark.extended
@pytest.mark.parametrize("table", [*IN_DUCKDB, *IN_SPARK])
def test_audit_recomputes_the_same_rows(embedded: SmallRelease, table: str) -> None:
    assert audited(embedded, table) == []


def python_value(name: str, value: Any) -> Any:
    if name == "single":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if name == "double":
        return float(value)
    if name == "raw":
        return base64.b64decode(value)
    return date.fromisoformat(value) if name == "day" else value


@pytest.mark.parametrize("name", [name for name in DECLARED if name not in ("amount", "is_open")])
def test_extremes_and_counts_are_those_of_python(embedded: SmallRelease, name: str) -> None:
    events = [json.loads(record.value or b"") for batch in batches() for record in batch]
    known = [python_value(name, event[name]) for event in events if event[name] is not None]
    ordered_by = rows(embedded, "kinds_raw" if name == "raw" else "kinds_ordered")
    counted_by = rows(embedded, "kinds_counted" if name in EMBEDDED else "kinds_other")
    assert min(ordered_by[f"{name}_min"]) == min(known)
    assert max(ordered_by[f"{name}_max"]) == max(known)
    cells = {(event["at"][:10], event["station"], event[name]) for event in events if event[name] is not None}
    assert sum(counted_by[f"{name}_count"]) == len(cells)
