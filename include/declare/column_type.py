"""What a type of a contract's column is: how it is declared, read and compared; `contract_types.py` has the types.

Methods with a parameter `F` build Spark columns and get the module `pyspark.sql.functions`: this package does not
import Spark. `reads` names how the reader of records (`spark_jobs/contract`) makes a value of what one has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal
from enum import StrEnum
from math import isfinite, isinf
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, Protocol

from include.declare.yaml_declarations import InvalidValue, shown, zoned_time

if TYPE_CHECKING:
    from include.declare.contract import Column, Limits

Value = str | int | float | Decimal | bool | date | datetime
"""A bound, or an argument of a rule."""
MAX_PRECISION = 38
EXACT = Context(prec=100)
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
SECONDS = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
CLOCK = re.compile(rf"{SECONDS}(?:\.[0-9]{{0,5}}[1-9])?")
NOT_EXACT = "two of its values that print alike may differ; declare decimal(p,s)"


class Digits(Protocol):
    """What a decimal's precision and scale are of."""

    @property
    def precision(self) -> int:
        """All digits."""

    @property
    def scale(self) -> int:
        """Those after the point."""


class Ability(StrEnum):
    """What rules may do with a column's values, apart from comparing them with null and those of an equal type."""

    ordered = "ordered"
    """One column's values may be greater than another's."""
    measured = "measured"
    """Compared with a bound: `expect_column_values_to_be_between`."""
    counted = "counted"
    """Compared with a set of values."""
    equal = "equal"
    """Compared with `==` and `!=` in a `row_condition`."""
    text = "text"
    """Compared with patterns and lengths."""


class AvroKind(StrEnum):
    """The kinds of values that fields of Avro records have."""

    text = "text"
    bytes = "bytes"
    boolean = "boolean"
    integer = "integer"
    float = "float"
    decimal = "decimal"
    date = "date"
    time = "time"
    timestamp = "timestamp"
    record = "record"
    array = "array"
    map = "map"


class Profile(StrEnum):
    """How drift describes a column's values."""

    range = "range"
    values = "values"
    none = "none"


@dataclass(frozen=True)
class ColumnType:
    """One type. The first of the `physical` names is how messages call it.

    `formats`: values of `logicalTypeOptions.format` that choose it. `options`: the other keys that it has there.
    `wider`: the types that hold each of its values. `duckdb`, `spark`: the type of silver's column in each engine.
    `reads`: how the reader of records reads it (its Java has them in a list).
    """

    name: str
    logical: str
    physical: tuple[str, ...]
    duckdb: str
    avro: Any
    avro_kinds: tuple[AvroKind, ...]
    yaml: tuple[type, ...] = ()
    formats: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    abilities: frozenset[Ability] = frozenset()
    wider: tuple[str, ...] = ()
    profile: Profile = Profile.none
    comparable: str = ""
    """Types with the same word are compared with each other; by default a type with itself."""
    is_base64: bool = False
    """Its values are bytes, which JSON has as base64."""
    no_key: str = ""
    """Why it can be neither an identity nor a key of gold; empty when it can."""
    spark: str = "string"
    reads: str = "text"
    is_nested: bool = False
    lengths: tuple[str, str] = ("minLength", "maxLength")
    """The options that limit the length of a value."""
    length_rule: str = "length"
    inside: str = ""
    """The key, or the custom property, that declares what its values have inside."""
    is_custom: bool = False
    """`inside` is a custom property."""
    element_key: tuple[str | int, ...] = ()
    """Where a contract declares what each element is."""
    has_members: bool = False
    """It is an object with the column's fields."""
    keeps_all: bool = False
    """It is kept as JSON, whatever it is."""

    def shares(self, other: ColumnType) -> bool:
        """Return whether a column of this type and one of another may read the same value."""
        return other.keeps_all or not (other.is_nested or other.is_base64 != self.is_base64)

    def spark_type(self, column: Column) -> Any:
        """Return the type of silver's column as Spark has it in JSON: a name unless it is nested."""
        return self.spark

    def size(self, column: Column) -> tuple[int, int]:
        """Return the bits of a whole number, or the digits of a decimal, all and those after the point."""
        return 0, 0

    def longest(self, column: Column, limits: Limits) -> int:
        return column.max_length

    def length(self, F: Any, value: Any) -> Any:
        """Return how many bytes, or elements, a value has."""
        return F.octet_length(value)

    def declared_inside(self, found: Any) -> Iterator[tuple[tuple[str | int, ...], str, Any]]:
        """Yield what a contract's entry declares inside: its key there, what follows the path, the declaration."""
        return iter(())

    def rules_inside(self, F: Any, rules: Any, column: Column, place: Any) -> Iterator[Any]:
        """Yield the rules of what is inside of a value, as `Rules` of spark_jobs/contract/validator.py makes them."""
        return iter(())

    def written(self, value: Value) -> str:
        """Return a value as JSON has it, without quotes."""
        return str(value)

    def shown(self, F: Any, value: Any) -> Any:
        """Return a value as the text in a reason."""
        return value.cast("string")

    def text(self, column: Digits) -> str:
        return self.physical[0]

    def duckdb_type(self, column: Column) -> str:
        """Return the name that DuckDB gives to the type of silver's column."""
        return self.duckdb

    def duckdb_value(self, text: str, kind: str) -> str:
        """Return SQL of DuckDB for the value in `text`, SQL for the text of a JSON value; `kind` is silver's type."""
        return f"try_cast({text} as {kind})"

    def avro_type(self, column: Column) -> Any:
        return self.avro

    def value(self, written: object, *key: str | int) -> Value:
        """Return a bound or an argument that YAML has, as the column holds it; raises InvalidValue when it is none."""
        if isinstance(written, float) and not isfinite(written):
            raise InvalidValue(f"must be a finite number, is {written}", *key)
        if not isinstance(written, self.yaml) or (isinstance(written, bool) and bool not in self.yaml):
            raise InvalidValue(f"must be of type {self.logical}, is {shown(written)}", *key)
        return self.typed(written, *key)

    def typed(self, written: Any, *key: str | int) -> Value:
        """Return a value of YAML's type as the column's; raises InvalidValue."""
        found: Value = written
        return found

    def nearest(self, bound: Any, column: Digits, rounding: str) -> Value | None:
        """Return the column's value nearest to a bound in a direction; None when all its values are on one side."""
        found: Value = bound
        return found

    def is_wider(self, old: Column, new: Column) -> bool:
        """Whether the column `new` has each value of `old`, which is of this type, and `new` is of another one."""
        return str(new.type) in self.wider

    def has(self, value: int) -> bool:
        """Whether a whole number is one of its values."""
        return False


@dataclass(frozen=True)
class BooleanType(ColumnType):
    """True and false."""

    yaml: tuple[type, ...] = (bool,)
    abilities: frozenset[Ability] = frozenset({Ability.equal})
    profile: Profile = Profile.values
    spark: str = "boolean"
    reads: str = "boolean"


@dataclass(frozen=True)
class IntegerType(ColumnType):
    """Whole numbers of `bits` bits, written as digits: 1.0 and 1e2 are none."""

    bits: int = 32
    yaml: tuple[type, ...] = (int,)
    options: tuple[str, ...] = ("minimum", "maximum")
    abilities: frozenset[Ability] = frozenset({Ability.ordered, Ability.measured, Ability.counted, Ability.equal})
    profile: Profile = Profile.range
    comparable: str = "integer"
    spark: str = "integer"
    reads: str = "whole"

    def size(self, column: Column) -> tuple[int, int]:
        return self.bits, 0

    def nearest(self, bound: Any, column: Digits, rounding: str) -> Value | None:
        found = int(Decimal(bound).to_integral_value(rounding))
        return found if self.has(found) else None

    def has(self, value: int) -> bool:
        least: int = -(2 ** (self.bits - 1))
        return least <= value < -least


@dataclass(frozen=True)
class DecimalType(ColumnType):
    """Decimals of `precision` digits, `scale` of them after the point."""

    yaml: tuple[type, ...] = (int, float)
    options: tuple[str, ...] = ("minimum", "maximum")
    abilities: frozenset[Ability] = frozenset({Ability.ordered, Ability.measured, Ability.counted, Ability.equal})
    profile: Profile = Profile.range
    reads: str = "decimal"

    def spark_type(self, column: Column) -> Any:
        return self.text(column)

    def size(self, column: Column) -> tuple[int, int]:
        return column.precision, column.scale

    def written(self, value: Value) -> str:
        return f"{value:f}"

    def text(self, column: Digits) -> str:
        return f"decimal({column.precision},{column.scale})"

    def duckdb_type(self, column: Column) -> str:
        return f"DECIMAL({column.precision},{column.scale})"

    def avro_type(self, column: Column) -> Any:
        return {**self.avro, "precision": column.precision, "scale": column.scale}

    def typed(self, written: Any, *key: str | int) -> Value:
        return Decimal(str(written))

    def nearest(self, bound: Any, column: Digits, rounding: str) -> Value | None:
        """Return a decimal of the column's scale; it may have all 38 digits."""
        end = Decimal(10) ** (MAX_PRECISION - column.scale)
        if not -end < bound < end:
            return None
        found = bound.quantize(Decimal(1).scaleb(-column.scale), rounding, EXACT)
        return found if -end < found < end else None

    def is_wider(self, old: Column, new: Column) -> bool:
        """Whether the new one has more digits before the point, and as many after it."""
        return new.type == self.name and new.scale == old.scale and new.precision > old.precision


@dataclass(frozen=True)
class DoubleType(ColumnType):
    """Numbers of 64 bits, the nearest to what is written. -0 is stored as 0; NaN and infinity are no values."""

    yaml: tuple[type, ...] = (int, float)
    options: tuple[str, ...] = ("minimum", "maximum")
    abilities: frozenset[Ability] = frozenset({Ability.ordered, Ability.measured})
    profile: Profile = Profile.range
    no_key: str = NOT_EXACT
    spark: str = "double"
    reads: str = "double"

    def typed(self, written: Any, *key: str | int) -> Value:
        return float(written)


@dataclass(frozen=True)
class FloatType(DoubleType):
    """Numbers of 32 bits."""

    spark: str = "float"
    reads: str = "float"

    def typed(self, written: Any, *key: str | int) -> Value:
        """Return the float: a bound that is no float's shortest text would be another bound than the one written."""
        nearest = rounded_to_float(float(written))
        if isinf(nearest) or float(shortest_float(nearest)) != float(written):
            raise InvalidValue(f"must be a number of a float's 24 bits, is {written}: write {shortest_float(nearest)}")
        return nearest


@dataclass(frozen=True)
class TimestampType(ColumnType):
    """Moments: ISO 8601 with a zone."""

    yaml: tuple[type, ...] = (str, datetime)
    spark: str = "timestamp"
    reads: str = "time"

    def written(self, value: Any) -> str:
        return str(value.isoformat())

    def typed(self, written: Any, *key: str | int) -> Value:
        return zoned_time(written, *key)


@dataclass(frozen=True)
class DateType(ColumnType):
    """Days, like 2013-01-31, of the years 1 to 9999."""

    yaml: tuple[type, ...] = (str, date)
    spark: str = "date"
    reads: str = "date"

    def typed(self, written: Any, *key: str | int) -> Value:
        if isinstance(written, date) and not isinstance(written, datetime):
            return written
        with suppress(ValueError):
            if DAY.fullmatch(str(written)):
                return date.fromisoformat(str(written))
        return _refused("a date like 2013-01-31", written, *key)


@dataclass(frozen=True)
class FormedText(ColumnType):
    """A text of one form, in which no two texts mean the same."""

    form: re.Pattern[str] = re.compile("")
    example: str = ""
    yaml: tuple[type, ...] = (str,)

    def duckdb_value(self, text: str, kind: str) -> str:
        return text

    def typed(self, written: Any, *key: str | int) -> Value:
        return str(written) if self.form.fullmatch(written) else _refused(self.example, written, *key)


@dataclass(frozen=True)
class UuidType(FormedText):
    """UUIDs, stored as text in lower case: Delta has no type for them."""

    reads: str = "uuid"

    def duckdb_value(self, text: str, kind: str) -> str:
        return f"lower({text})"


@dataclass(frozen=True)
class TimeType(FormedText):
    """Times of day, to the microsecond, stored as text that sorts by time: Delta has no type for them."""

    reads: str = "clock"

    def duckdb_value(self, text: str, kind: str) -> str:
        """Without what follows microseconds, and without the zeros at the end of a fraction."""
        fraction = f"rtrim(substr({text}, 10, 6), '0')"
        return f"left({text}, 8) || case when {fraction} = '' then '' else '.' || {fraction} end"


@dataclass(frozen=True)
class BinaryType(ColumnType):
    """Bytes, as base64 with padding (RFC 4648 §4), the only text of these bytes."""

    spark: str = "binary"
    reads: str = "base64"

    def shown(self, F: Any, value: Any) -> Any:
        return F.base64(value)

    def duckdb_value(self, text: str, kind: str) -> str:
        return f"try(from_base64({text}))"


def _refused(expected: str, written: object, *key: str | int) -> Value:
    raise InvalidValue(f"must be {expected}, is {shown(written)}", *key)


def rounded_to_float(value: float) -> float:
    """Return the nearest number of 32 bits; infinity beyond the greatest."""
    try:
        return float(unpack("<f", pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def shortest_float(value: float) -> str:
    """Return the shortest text that is nearest to a number of 32 bits."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next((text for text in texts if rounded_to_float(float(text)) == value), repr(value))
