"""A record read once: its values as silver has them, or why it has none.

Most records are in plain form: the contract's fields in the contract's order, no others, texts without escapes, at
most one space after a separator; and so on inside of objects and arrays. One pass over their bytes reads them
(adr-0004). Any other record is walked by a JSON parser, at a few times the cost (adr-0005). Both give what they find
to the same code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from decimal import ROUND_FLOOR
from pathlib import Path
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, StringType, StructField, StructType

from include.declare.column_type import Value
from include.declare.contract import Column as Declared
from include.declare.contract import Contract, Limits
from spark_jobs.contract.java_function import java_function, new_instance

SOURCES = [
    Path(__file__).with_name(f"{name}.java")
    for name in ("RecordReader", "RecordField", "Place", "Reading", "PlainScan", "JsonWalk", "TypedValue")
]
MAX_DIGITS = 1_000
MOST_DIGITS = 2**31 - 1
ANY_TIME = 2**62
"""Microseconds between any two times."""
REASON = StructType([StructField(name, StringType()) for name in ("rule", "column", "detail")])
REASONS = ArrayType(REASON)
REFUSED, PROVEN = "_reasons", "_proven"
NO_VALUE = "null_value"
"""The fault of a record without a value."""
# One character, or a class of characters, in a number that is known.
POSITION = r"(\\d|\[[A-Za-z0-9_\-]+\]|[A-Za-z0-9_/:,\-])(?:\{(\d{1,3})\})?"


def record_values(record: Column, arrived: Column, contract: Contract) -> Column:
    """Return a struct of a record (binary): REFUSED, null or its reasons; PROVEN (`is_proven`); the contract's columns.

    A record has one reason, and no values, if its structure is wrong; else one reason for each value that is none of
    its column's type. `arrived`: its Kafka timestamp. Faults of the structure, of which the first counts: null_value,
    size, wire_format (a zero byte and a schema's id before the payload), malformed (UTF-16), bad_utf8, empty,
    malformed, depth, trailing_data, not_object, malformed (a number of more than MAX_DIGITS digits in a row),
    out_of_range (NaN, Infinity), duplicate_key (the record's own names must differ by more than case, as columns do),
    bad_utf8 (half a surrogate pair), control_char. The detail is the path of the place, if it is one place.
    The result must be a column: an expression written twice is evaluated twice.
    """
    return _read((record, F.unix_micros(arrived)), contract.columns, contract.limits, MAX_DIGITS)


def structure_faults(value: Column, limits: Limits) -> Column:
    """Return the reasons why a value (binary) is no record, whatever its members are."""
    return _read((value, F.lit(0).try_cast("long")), (), limits, MOST_DIGITS)[REFUSED]


def is_of_json(reasons: Column) -> Column:
    """Return whether what has these `structure_faults` is JSON of any kind; NaN counts, as in Python."""
    tolerated = ("not_object", "out_of_range", "duplicate_key", "bad_utf8", "control_char")
    return reasons.isNull() | reasons[0]["rule"].isin(*tolerated)


def is_json(text: Column) -> Column:
    """Return whether a text is JSON of any kind, within the default limits of records."""
    return is_of_json(structure_faults(F.encode(text, "UTF-8"), Limits()))


def is_proven(column: Declared, rule: str) -> bool:
    """Whether PROVEN says that each value of the column keeps the rule of this name."""
    if rule in ("required", "missing_id"):
        return column.required
    return rule != "range" or all(
        bound is None or _written(column, bound) is not None for bound in (column.minimum, column.maximum)
    )


def column_type(column: Declared) -> DataType:
    """Return the Spark type of a contract column."""
    named = {"name": column.name, "type": column.kind.spark_type(column), "nullable": True, "metadata": {}}
    return StructField.fromJson(named).dataType


def record_reader(spark: SparkSession, columns: Sequence[Declared], limits: Limits, digits: int = MAX_DIGITS) -> Any:
    """Return the function of Java that reads records of these columns."""
    function = new_instance(spark, *SOURCES)
    function.limit(limits.bytes, limits.depth, digits)
    _add(function.root(), columns, limits, "")
    return function


def _read(arguments: Sequence[Column], columns: Sequence[Declared], limits: Limits, digits: int) -> Column:
    spark = SparkSession.active()
    found = [StructField(REFUSED, REASONS), StructField(PROVEN, BooleanType())]
    found += [StructField(column.name, column_type(column)) for column in columns]
    return java_function(spark, record_reader(spark, columns, limits, digits), StructType(found), *arguments)


def _add(owner: Any, columns: Sequence[Declared], limits: Limits, dot: str) -> None:
    for column in columns:
        kind, name = column.kind, f"{dot}{column.name}" if column.name else ""
        added = owner.column(list(column.path), kind.reads, name, column.required, *kind.size(column))
        _restrict(added, column, limits)
        _add(added, column.fields, limits, ".")


def _restrict(added: Any, column: Declared, limits: Limits) -> None:
    added.lengths(column.min_length, column.kind.longest(column, limits))
    added.bounds(*(_written(column, bound) for bound in (column.minimum, column.maximum)))
    added.times(microseconds(column.future), ANY_TIME if column.past is None else microseconds(column.past))
    if column.values:
        added.values(list(column.values))
    if column.pattern is not None:
        positions = _positions(column.pattern)
        _ = added.positions(positions) if positions else added.pattern(java_pattern(column.pattern))


def _written(column: Declared, bound: Value | None) -> str | None:
    """Return a bound as JSON has it; None for one that no value of the column has."""
    if bound is None or column.kind.nearest(bound, column, ROUND_FLOOR) != bound:
        return None
    return column.kind.written(bound)


def microseconds(length: timedelta) -> int:
    """Return how many microseconds a length has."""
    return length // timedelta(microseconds=1)


def java_pattern(pattern: str) -> str:
    """Java's `$` also matches before a last line break; a contract's does not."""
    return f"{pattern[:-1]}\\z" if pattern.endswith("$") and not pattern.endswith(r"\$") else pattern


def _positions(pattern: str) -> str | None:
    """Return the characters at each position of a text of known length, a line for each; None for another pattern."""
    if not re.fullmatch(rf"\^(?:{POSITION})+\$", pattern):
        return None
    return "\n".join(
        "".join(sign for sign in map(chr, range(128)) if re.fullmatch(character, sign))
        for character, count in re.findall(POSITION, pattern[1:-1])
        for _ in range(int(count or 1))
    )
