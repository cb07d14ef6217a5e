"""Names in `silver.py` that may be columns: what messages list, and what an expression may name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from include.declare.dataset_checks import dataset_problems
from include.declare.silver_columns import names_in_code, names_in_text
from include.ground.settings import Settings

CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: trips
name: trips
version: 1.0.0
status: active
schema:
  - name: trips
    logicalType: object
    properties:
      - {name: trip_id, logicalType: string, required: true, primaryKey: true}
      - {name: at, logicalType: timestamp, required: true}
      - {name: fare, logicalType: string}
"""
PIPELINE = """\
topic: trips
partitions: 1
event_time: at
lateness: 1 day
identity: {columns: [trip_id], horizon: 3 days}
gold:
  trip_days:
    kind: additive
    window: {column: at, size: 1 day, as: day}
    measures: {total: {sum: "%s"}}
"""
SILVER = '''\
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

DETAILS = "struct<place:string,stops:array<long>>"


def silver(accepted: DataFrame) -> DataFrame:
    """Adds int, decimal and string columns."""
    rows = accepted.withColumn("amount", F.col("fare").cast("decimal(9,2)"))
    rows = rows.withColumn("details", F.from_json("fare", DETAILS)).select("*", "details.place")
    rows = rows.withColumn("whole", F.expr("try_cast(fare as int) as whole"))
    return rows.withColumn("long", F.col("fare").cast(dataType="long"))
'''


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder = tmp_path / "datasets" / "trips"
    folder.mkdir(parents=True)
    (folder / "contract.yaml").write_text(CONTRACT, "utf-8")
    (folder / "silver.py").write_text(SILVER, "utf-8")
    return Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")


def problems(settings: Settings, expression: str) -> list[str]:
    (settings.datasets / "trips" / "pipeline.yaml").write_text(PIPELINE % expression, "utf-8")
    return [found.why for found in dataset_problems(settings, "trips")]


def test_message_lists_columns_and_no_names_of_types(settings: Settings) -> None:
    (why,) = problems(settings, "amounts")
    assert why == (
        "'amounts' is not a column; columns: _batch_id, _offset, _partition, _timestamp, _topic, amount, at, details, "
        "fare, long, trip_id, whole"
    )


@pytest.mark.parametrize("name", ["amount", "details", "place", "whole", "long"])
def test_column_that_silver_may_have_can_be_named(settings: Settings, name: str) -> None:
    assert problems(settings, name) == []


@pytest.mark.parametrize("name", ["decimal", "int", "string", "array", "struct"])
def test_name_of_a_type_is_no_column(settings: Settings, name: str) -> None:
    assert any(f"'{name}' is not a column" in why for why in problems(settings, name))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fare", {"fare"}),
        ("date", {"date"}),
        ("decimal(9,2)", set()),
        ("array<struct<a:int,b:map<string,long>>>", {"a", "b"}),
        ("a int, b array<string>", {"a", "b"}),
        ("cast(x as decimal(9,2)) as y", {"x", "y"}),
        ("transform(xs, x -> cast(x as int))", {"xs", "x", "transform"}),
        ("int_count + cast(y as int)", {"int_count", "y"}),
        ("yyyy-MM-dd", {"yyyy", "MM", "dd"}),
        ("not ( sql at all", {"not", "sql", "at", "all"}),
        ("", set()),
    ],
)
def test_names_in_a_text(text: str, names: set[str]) -> None:
    assert names_in_text(text) >= names
    assert not names_in_text(text) & {"int", "decimal", "array", "struct", "string", "long", "map"}


def test_types_of_casts_and_docstrings_are_no_names() -> None:
    casts = 'x.cast("date").astype("long").try_cast(dataType="int").alias("y")'
    code = f'def f(x):\n    """the string"""\n    return {casts}\n'
    assert names_in_code(ast.parse(code)) == {"y", "dataType"}
