"""Rows for queries: of numbers with a text, and of one value of every type."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

NUMBERS = StructType().add("n", "long").add("text", "string")
EVERY_TYPE: dict[str, Any] = {
    "boolean": True,
    "byte": -128,
    "short": -32_768,
    "int": 2**31 - 1,
    "long": -(2**63),
    "float": float("inf"),
    "double": -0.0,
    "decimal(9,2)": Decimal("-1234567.89"),
    "decimal(38,18)": Decimal("1.000000000000000001"),
    "string": "Zürich\x00\U0001f600",
    "binary": b"\x00\xff",
    "date": date(1969, 12, 31),
    "timestamp": datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    "array<struct<a:string,b:int>>": [{"a": None, "b": 1}],
    "map<string,long>": {"k": 1},
}


def rows_of(*numbers: int) -> pa.Table:
    texts = pa.array([f"text {n}" for n in numbers], pa.string())
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": texts})
