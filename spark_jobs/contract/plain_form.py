r"""The plain form of a record, recognised and read in one pass over its bytes (adr-0004).

Plain means: the contract's fields in the contract's order, optional ones present or not, strings without escapes,
whole numbers with fewer digits than the greatest, decimals that fit, numbers without an exponent, UUIDs in lower case,
times as they are stored, at most one space after a separator; and so on inside of objects and arrays. Such a record
needs no JSON parser: its form proves its structure, its types, the required fields, enumerations, lengths of texts and
simple patterns.
Any other record takes the general path (json_record.py), with the same verdict at several times the cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column as Expression
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from include.declare.contract import Column, Contract, Limits
from spark_jobs.contract.java_function import java_function, new_instance

PLAIN_RECORD = Path(__file__).with_name("PlainRecord.java")
READ_AS: Mapping[str, DataType] = {
    "text": StringType(),
    "base64": BinaryType(),
    "integer": IntegerType(),
    "long": LongType(),
    "number": StringType(),
    "time": LongType(),
    "date": IntegerType(),
    "boolean": BooleanType(),
}
"""What Java's reader makes of a value, by how it reads it: of a number its text, of a time its microseconds."""
PLAIN_CHARACTER = r'[^"\\\x00-\x1f\x7f]'
# A pattern of these characters cannot match a quote or a control character, so it cannot exceed its string. A range
# such as `A-z` has the backslash in it, with which an escape begins: no plain text has one.
SIMPLE_PATTERN = re.compile(r"^\^(?:[A-Za-z0-9_/:,\-{}()|?+*]|\\d|\[[A-Za-z0-9_\-]+\])+\$$")
# One character, or a class of characters, in a number that is known.
POSITION = r"(\\d|\[[A-Za-z0-9_\-]+\]|[A-Za-z0-9_/:,\-])(?:\{(\d{1,3})\})?"
PLAIN_ASCII = [sign for sign in map(chr, range(128)) if re.fullmatch(PLAIN_CHARACTER, sign)]


def plain_values(record: Expression, contract: Contract) -> Expression:
    """Return the values of a plain record (binary) as a struct, for `plain_value`; null for any other record.

    The result must be a column: an expression written twice is evaluated twice. A record that is too large has no
    plain form, nor has a contract that begins with an optional field.
    """
    spark = SparkSession.active()
    function = new_instance(spark, PLAIN_RECORD)
    fields = _added(function, 0, contract.columns, contract.limits)
    known = F.octet_length(record) <= contract.limits.bytes if has_plain_form(contract) else F.lit(False)
    return java_function(spark, function, fields, F.when(known, record))


def has_plain_form(contract: Contract) -> bool:
    """Whether records may be in plain form: the first field is required, and no part of any form is kept."""
    return contract.columns[0].required and all(each.kind.shape != "variant" for each in contract.all_columns)


def _added(function: Any, parent: int, columns: Sequence[Column], limits: Limits) -> StructType:
    """Add what columns read below a part of the record; return what the function returns of them."""
    found = StructType()
    for number, column in enumerate(columns):
        kind, (values, pattern, positions) = column.kind, _accepted_texts(column)
        most = column.most_elements(limits) if kind.is_nested else column.max_length
        texts = (values, pattern, column.min_length, most, positions)
        reads = kind.shape if kind.is_nested else kind.reads
        place = function.add(parent, list(column.path), reads, column.required, *kind.digits(column), *texts)
        inside = _added(function, place, column.fields, limits)
        found.add(_field_name(number), INSIDE[kind.shape](inside) if kind.is_nested else READ_AS[kind.reads])
    return found


INSIDE: Mapping[str, Callable[[StructType], DataType]] = {
    "object": lambda fields: fields,
    "array": lambda fields: ArrayType(fields[0].dataType),
    "map": lambda fields: MapType(StringType(), fields[0].dataType),
}
"""What is returned of the inside of a value, by the form of its column's type."""


def plain_value(values: str, contract: Contract, number: int) -> Expression:
    """Return the typed value of a contract's column of this number, in a column of `plain_values`."""
    column, value = contract.columns[number], F.col(f"{values}.{_field_name(number)}")
    found: Expression = column.kind.of_plain(F, column, value)
    return found


def is_proven_by_plain_form(column: Column, rule: str) -> bool:
    """Whether a plain record satisfies the column's rule of this name by its form alone."""
    if rule in ("required", "missing_id", "enum", "elements"):
        return True
    if rule == "length":
        return column.kind.reads == "text"
    return rule == "pattern" and _is_simple(column)


def _field_name(number: int) -> str:
    return f"_{number}"


def _accepted_texts(column: Column) -> tuple[list[str] | None, str | None, str | None]:
    """Return what restricts a text of the column: its values, or a pattern, or the characters of each position."""
    if column.values:
        return [value for value in column.values if re.fullmatch(f"{PLAIN_CHARACTER}+", value)], None, None
    pattern = column.pattern if _is_simple(column) else column.kind.plain_pattern
    if not pattern:
        return None, None, None
    positions = _positions(pattern[1:-1])
    return None, None if positions else pattern, positions


def _positions(pattern: str) -> str | None:
    """Return the characters at each position of a text of known length, a line for each; None for another pattern."""
    if not re.fullmatch(f"(?:{POSITION})+", pattern):
        return None
    return "\n".join(
        "".join(sign for sign in PLAIN_ASCII if re.fullmatch(character, sign))
        for character, count in re.findall(POSITION, pattern)
        for _ in range(int(count or 1))
    )


def _is_simple(column: Column) -> bool:
    return bool(column.pattern and not column.values and SIMPLE_PATTERN.match(column.pattern))
