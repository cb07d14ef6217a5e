"""Any record, walked once: why it is not a flat, strict JSON object, and its values exactly as they are written.

One reader decides structure, types and values (adr-0005): readers that disagree about a record make values of faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from include.declare.contract import Contract
from spark_jobs.contract.java_function import java_function, new_instance

JSON_RECORD = Path(__file__).with_name("JsonRecord.java")
MAX_BYTES = 1_048_576
MAX_DEPTH = 32
MAX_DIGITS = 1_000
MOST_DIGITS = 2**31 - 1
NULL = "null"
FAULT, DETAIL = "fault", "detail"


@dataclass(frozen=True)
class JsonValue:
    """The value of one field of a record, as it is written.

    `kind`: text, number, boolean, NULL, object or array; null if the field is absent. `text`: of a string its
    characters, of an object or array the beginning, of anything else its token. `exact`: of a number the same number
    without exponent and needless zeros; one that no decimal can hold as another one that none can hold either.
    """

    kind: Column
    text: Column
    exact: Column

    @property
    def is_given(self) -> Column:
        """Whether the record has the field, and not as null. Never null."""
        return F.coalesce(self.kind != NULL, F.lit(False))


def json_values(record: Column, contract: Contract) -> Column:
    """Return a struct of a record (binary): FAULT and DETAIL, null where the structure is right; and its values.

    Faults, of which the first counts: null_value, size, wire_format (a zero byte and a schema's id before the payload),
    malformed (UTF-16), bad_utf8, empty, malformed, depth, trailing_data, not_object, malformed (a number of more than
    MAX_DIGITS digits in a row), out_of_range (NaN, Infinity), duplicate_key (its path is the detail; the record's own
    names must differ by more than case, as columns do), bad_utf8 (half a surrogate pair), control_char. Objects
    and arrays are read whole: `validator.py` rejects a column that gets one.
    """
    return _read(record, [column.member for column in contract.columns], MAX_DIGITS)


def json_value(values: str, number: int) -> JsonValue:
    """Return the value of a contract's column of this number, in a column of `json_values`."""
    return JsonValue(*(F.col(f"{values}.{name}") for name in _names(number)))


def is_json(text: Column) -> Column:
    """Return whether a text is JSON of any kind, of at most MAX_BYTES and MAX_DEPTH; NaN counts, as in Python."""
    fault = _read(F.encode(text, "UTF-8"), (), MOST_DIGITS)[FAULT]
    return fault.isNull() | fault.isin("not_object", "out_of_range", "duplicate_key", "bad_utf8", "control_char")


def _read(record: Column, members: Sequence[str], digits: int) -> Column:
    spark = SparkSession.active()
    function = new_instance(spark, JSON_RECORD)
    function.limit(MAX_BYTES, MAX_DEPTH, digits)
    for member in members:
        function.add(member)
    names = [FAULT, DETAIL, *(name for n in range(len(members)) for name in _names(n))]
    return java_function(spark, function, StructType([StructField(name, StringType()) for name in names]), record)


def _names(number: int) -> tuple[str, str, str]:
    return f"kind_{number}", f"text_{number}", f"exact_{number}"
