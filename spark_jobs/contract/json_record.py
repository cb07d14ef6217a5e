"""Any record, walked once: why it is no strict JSON object, and its values exactly as they are written.

One reader decides structure, types and values (adr-0005): readers that disagree about a record make values of faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from include.declare.contract import Column as Declared
from include.declare.contract import Contract, Limits
from spark_jobs.contract.java_function import java_function, new_instance

JSON_RECORD = Path(__file__).with_name("JsonRecord.java")
MAX_DIGITS = 1_000
MOST_DIGITS = 2**31 - 1
NULL = "null"
FAULT, DETAIL = "fault", "detail"
NO_VALUE = "null_value"
"""The fault of a record without a value."""


@dataclass(frozen=True)
class JsonValue:
    """The value of a column in a record, as it is written.

    `kind`: text, number, boolean, NULL, object, array; `variant` of a column that takes any; `elements` of an array or
    map that has too many; `outer` of a value that is no object, though the column's path leads into it; null if the
    record has no such member. `text`: of a string its characters, of a variant its JSON, of an object or array that the
    column cannot be the beginning, of anything else its token. `exact`: of a number the same number without exponent
    and needless zeros; one that no decimal can hold as another one that none can hold either. `inner`: of an object
    what its fields are read of, of an array or map a list of that.
    """

    kind: Column
    text: Column
    exact: Column
    inner: Column

    @staticmethod
    def of(row: Column, number: int = 0) -> JsonValue:
        """Return what a row has of the field of this number."""
        return JsonValue(*(row[name] for name in _names(number)))

    @property
    def is_given(self) -> Column:
        """Whether the record has the value, and not as null. Never null."""
        return F.coalesce(self.kind != NULL, F.lit(False))

    def field(self, number: int) -> JsonValue:
        """Return the value of an object's field."""
        return JsonValue.of(self.inner, number)

    def elements(self, made: Callable[[JsonValue], Column]) -> Column:
        """Return what is made of each element of an array, as an array."""
        return F.transform(self.inner, lambda each: made(JsonValue.of(each)))

    def entries(self, made: Callable[[JsonValue], Column]) -> Column:
        """Return what is made of each value of a map, as a map."""
        entry = F.transform(self.inner, lambda each: F.struct(each[KEY], made(JsonValue.of(each)).alias("value")))
        return F.map_from_entries(entry)


def json_values(record: Column, contract: Contract) -> Column:
    """Return a struct of a record (binary): FAULT and DETAIL, null where the structure is right; and its values.

    Faults, of which the first counts: null_value, size, wire_format (a zero byte and a schema's id before the payload),
    malformed (UTF-16), bad_utf8, empty, malformed, depth, trailing_data, not_object, malformed (a number of more than
    MAX_DIGITS digits in a row), out_of_range (NaN, Infinity), duplicate_key (the record's own names must differ by more
    than case, as columns do), bad_utf8 (half a surrogate pair), control_char. The detail is the path of the place, if
    it is one place. What is inside of objects and arrays is read where a column has it.
    """
    return _read(record, contract.columns, contract.limits, MAX_DIGITS)


def json_value(values: str, number: int) -> JsonValue:
    """Return the value of a contract's column of this number, in a column of `json_values`."""
    return JsonValue.of(F.col(values), number)


def is_json(text: Column) -> Column:
    """Return whether a text is JSON of any kind, within the default limits of records; NaN counts, as in Python."""
    fault = _read(F.encode(text, "UTF-8"), (), Limits(), MOST_DIGITS)[FAULT]
    return fault.isNull() | fault.isin("not_object", "out_of_range", "duplicate_key", "bad_utf8", "control_char")


def _read(record: Column, columns: Sequence[Declared], limits: Limits, digits: int) -> Column:
    spark = SparkSession.active()
    function = new_instance(spark, JSON_RECORD)
    function.limit(limits.bytes, limits.depth, digits)
    fields = _added(function, 0, columns, limits)
    faults = [StructField(name, StringType()) for name in (FAULT, DETAIL)]
    return java_function(spark, function, StructType([*faults, *fields]), record)


def _added(function: Any, parent: int, columns: Sequence[Declared], limits: Limits) -> list[StructField]:
    """Add what columns read below a part of the record; return what the function returns of them."""
    found = []
    for number, column in enumerate(columns):
        kind = column.kind
        place = function.add(parent, list(column.path), kind.shape, column.most_elements(limits))
        inside = StructType(_added(function, place, column.fields, limits))
        *names, inner = _names(number)
        found += [StructField(name, StringType()) for name in names]
        found += [StructField(inner, INSIDE[kind.shape](inside))] if kind.shape in INSIDE else []
    return found


KEY = "key"
INSIDE: Mapping[str, Callable[[StructType], DataType]] = {
    "object": lambda fields: fields,
    "array": ArrayType,
    "map": lambda value: ArrayType(StructType([StructField(KEY, StringType()), *value.fields])),
}
"""What is returned of the inside of a value, by the form of its column's type."""


def _names(number: int) -> tuple[str, str, str, str]:
    return f"kind_{number}", f"text_{number}", f"exact_{number}", f"inner_{number}"
