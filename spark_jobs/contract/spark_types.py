"""Spark's half of the types of `include/declare/contract_types.py`, by the same names: how a value is read and stored.

A value comes from `plain_form.py` (as READ_AS has it, by the entry's `code`) or from `json_record.py` (a JsonValue).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampType,
)

from include.declare.column_type import SECONDS, UUID
from include.declare.contract import Column
from spark_jobs.contract.json_record import BOOLEAN, NUMBER, TEXT, JsonValue

ISO_SECONDS = r"\d{4,6}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?"
ZONE = r"(?:Z|[+-]\d\d:\d\d)"
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
"""What the plain form makes of a value, by how it reads it: of a number its text, of a time its microseconds."""


@dataclass(frozen=True)
class SparkType:
    """One type; here a text.

    `code`: how the class reads it, one of READ_AS. `digits`: the most before and after the point of a plain
    number; none is larger than the type holds. `pattern`: of a plain text, if its type restricts it.
    """

    code: str = "text"
    stored: DataType = StringType()
    whole: int = 0
    pattern: str | None = None

    def data_type(self, column: Column) -> DataType:
        """Return the type of the column in silver."""
        return self.stored

    def digits(self, column: Column) -> tuple[int, int]:
        """Return the most digits of a plain number before and after the point."""
        return self.whole, 0

    def of_plain(self, column: Column, value: Expression) -> Expression:
        """Return the column's value of what it is in plain form."""
        return value

    def value(self, column: Column, value: JsonValue) -> Expression:
        """Return the column's value of a JSON value; null where it has none of its type."""
        return F.when(value.kind == TEXT, value.text)

    def fault(self, column: Column, value: JsonValue) -> Expression:
        """Return why a JSON value that is given is none of the column's type; null where it is one."""
        return F.when(value.kind != TEXT, "type")

    def shown(self, value: Expression) -> Expression:
        """Return a value as the text in a reason."""
        return value.cast("string")

    def name(self, column: Column) -> str:
        """Return the name that Spark has for the type."""
        return self.data_type(column).simpleString()


class _Boolean(SparkType):
    def value(self, column: Column, value: JsonValue) -> Expression:
        return F.when(value.kind == BOOLEAN, value.text.try_cast("boolean"))

    def fault(self, column: Column, value: JsonValue) -> Expression:
        return F.when(value.kind != BOOLEAN, "type")


class _Integer(SparkType):
    def of_plain(self, column: Column, value: Expression) -> Expression:
        return value if READ_AS[self.code] == self.stored else value.try_cast(self.name(column))

    def value(self, column: Column, value: JsonValue) -> Expression:
        return F.when(value.kind == NUMBER, value.text.try_cast(self.name(column)))

    def fault(self, column: Column, value: JsonValue) -> Expression:
        whole = (value.kind == NUMBER) & value.text.rlike(r"^-?\d+\z")
        return F.when(~whole, "type").when(value.text.try_cast(self.name(column)).isNull(), "out_of_range")


class _Decimal(SparkType):
    def data_type(self, column: Column) -> DataType:
        return DecimalType(column.precision, column.scale)

    def digits(self, column: Column) -> tuple[int, int]:
        return column.precision - column.scale, column.scale

    def of_plain(self, column: Column, value: Expression) -> Expression:
        return value.try_cast(self.name(column))

    def value(self, column: Column, value: JsonValue) -> Expression:
        return F.when(value.kind == NUMBER, value.exact.try_cast(self.name(column)))

    def fault(self, column: Column, value: JsonValue) -> Expression:
        decimals = F.length(F.regexp_extract(value.exact, r"\.(\d+)\z", 1))
        return (
            F.when(value.kind != NUMBER, "type")
            .when(value.exact.try_cast(self.name(column)).isNull(), "out_of_range")
            .when(decimals > column.scale, "scale")
        )


class _Double(SparkType):
    """The nearest number to the token. The addition makes 0 of -0: no two values are equal and print differently."""

    def digits(self, column: Column) -> tuple[int, int]:
        return self.whole, self.whole

    def of_plain(self, column: Column, value: Expression) -> Expression:
        return value.try_cast(self.stored) + F.lit(0).try_cast(self.stored)

    def value(self, column: Column, value: JsonValue) -> Expression:
        return F.when(value.kind == NUMBER, self.of_plain(column, value.text))

    def fault(self, column: Column, value: JsonValue) -> Expression:
        is_infinite = F.abs(value.text.try_cast(self.stored)) == F.lit("Infinity").try_cast(self.stored)
        return F.when(value.kind != NUMBER, "type").when(is_infinite, "out_of_range")


class _Timestamp(SparkType):
    def of_plain(self, column: Column, value: Expression) -> Expression:
        return F.timestamp_micros(value)

    def value(self, column: Column, value: JsonValue) -> Expression:
        is_time = (value.kind == TEXT) & value.text.rlike(f"^{ISO_SECONDS}{ZONE}\\z")
        return F.when(is_time, value.text.try_cast("timestamp"))

    def fault(self, column: Column, value: JsonValue) -> Expression:
        text = value.text
        # A number of 12 digits or more is a time in milliseconds: read as seconds it lies after the year 5000.
        is_millis = value.exact.rlike(r"^-?\d{12}|e")
        return (
            F.when(value.kind == NUMBER, F.when(is_millis, "out_of_range").otherwise("type"))
            .when(value.kind != TEXT, "type")
            .when(text.rlike(f"^{ISO_SECONDS}\\z"), "no_zone")
            .when(~text.rlike(f"^{ISO_SECONDS}{ZONE}\\z"), "bad_ts")
            .when(text.rlike(r"^\d{5,6}-"), "out_of_range")
            .when(text.try_cast("timestamp").isNull(), "bad_ts")
        )


class _Formed(SparkType):
    """A text of a form that `read` knows; null for any other text."""

    def read(self, text: Expression) -> Expression:
        raise NotImplementedError

    def value(self, column: Column, value: JsonValue) -> Expression:
        return F.when(value.kind == TEXT, self.read(value.text))

    def fault(self, column: Column, value: JsonValue) -> Expression:
        return F.when(value.kind != TEXT, "type").when(self.read(value.text).isNull(), "format")


class _Date(_Formed):
    def of_plain(self, column: Column, value: Expression) -> Expression:
        return F.date_from_unix_date(value)

    def read(self, text: Expression) -> Expression:
        # Python, Arrow and pandas have no year 0.
        return F.when(text.rlike(r"^\d{4}-\d\d-\d\d\z") & ~text.startswith("0000"), text.try_cast("date"))


class _Uuid(_Formed):
    def read(self, text: Expression) -> Expression:
        hexadecimal = "[0-9A-Fa-f]"
        form = "-".join(f"{hexadecimal}{{{count}}}" for count in (8, 4, 4, 4, 12))
        return F.when(text.rlike(f"^{form}\\z"), F.translate(text, "ABCDEF", "abcdef"))


class _Time(_Formed):
    def read(self, text: Expression) -> Expression:
        """Cut what follows microseconds, then the zeros at the end of the fraction."""
        short = F.when(F.length(text) > 8, F.regexp_replace(F.substring(text, 1, 15), r"\.?0*\z", "")).otherwise(text)
        return F.when(text.rlike(rf"^{SECONDS}(?:\.\d{{1,9}})?\z"), short)


class _Binary(_Formed):
    def read(self, text: Expression) -> Expression:
        value = F.try_to_binary(text, F.lit("base64"))
        return F.when(F.base64(value) == text, value)

    def shown(self, value: Expression) -> Expression:
        return F.base64(value)


SPARK_TYPES: Mapping[str, SparkType] = {
    "string": SparkType(),
    "uuid": _Uuid(pattern=f"^{UUID.pattern}$"),
    "binary": _Binary("base64", BinaryType()),
    "integer": _Integer("integer", IntegerType(), 9),
    "bigint": _Integer("long", LongType(), 18),
    "smallint": _Integer("integer", ShortType(), 4),
    "tinyint": _Integer("integer", ByteType(), 2),
    "number": _Decimal("number"),
    "float": _Double("number", FloatType(), 38),
    "double": _Double("number", DoubleType(), 38),
    "timestamp": _Timestamp("time", TimestampType()),
    "date": _Date("date", DateType()),
    "time": _Time(pattern=r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{0,5}[1-9])?$"),
    "boolean": _Boolean("boolean", BooleanType()),
}


def spark_type(column: Column) -> SparkType:
    """Return Spark's half of a column's type."""
    return SPARK_TYPES[column.type]
