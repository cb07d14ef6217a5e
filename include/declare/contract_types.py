"""The types that a column of a contract may have: one entry each, with all that is declared, read and compared of it.

A type is declared by `logicalType`, and `physicalType` or `logicalTypeOptions.format` where a logical type has several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from include.declare.column_type import (
    CLOCK,
    UUID,
    Ability,
    AvroKind,
    BinaryType,
    BooleanType,
    ColumnType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    Profile,
    TimestampType,
    TimeType,
    UuidType,
)
from include.declare.yaml_declarations import InvalidValue, shown

if TYPE_CHECKING:
    from include.declare.contract import Column, Limits

DECIMAL = re.compile(r"(?:decimal|numeric)\(\s*([0-9]{1,2})\s*(?:,\s*([0-9]{1,2})\s*)?\)")
_COMPARED = frozenset({Ability.ordered, Ability.measured, Ability.equal})
_FORMED = frozenset({Ability.ordered, Ability.counted, Ability.equal, Ability.text})
NESTED = "it has several values; declare a column of its own with the path to one, as physicalName: customer.id"
_NUMBERS = (AvroKind.integer, AvroKind.float, AvroKind.decimal)
INTEGERS = {
    "integer": (32, "integer", ("int", "integer", "int32")),
    "bigint": (64, "long", ("bigint", "long", "int64")),
    "smallint": (16, "short", ("smallint", "short", "int16")),
    "tinyint": (8, "byte", ("tinyint", "byte", "int8")),
}
"""By name the bits, the type in Spark, and how it is declared."""


def _integers() -> Iterator[IntegerType]:
    for name, (bits, spark, physical) in INTEGERS.items():
        facts = (name, "integer", physical, name.upper(), "long" if bits > 32 else "int", (AvroKind.integer,))
        wider = tuple(other for other, (more, *_) in INTEGERS.items() if more > bits)
        yield IntegerType(*facts, formats=(f"i{bits}",), wider=wider, bits=bits, spark=spark)


@dataclass(frozen=True)
class VariantType(ColumnType):
    """Any JSON value but null, kept as its text."""

    reads: str = "variant"
    inside: str = "variant"
    is_custom: bool = True
    keeps_all: bool = True

    def shares(self, other: ColumnType) -> bool:
        return True


@dataclass(frozen=True)
class ObjectType(ColumnType):
    """Objects with the column's fields; they may have others, which are not read."""

    reads: str = "object"
    is_nested: bool = True
    inside: str = "properties"
    has_members: bool = True

    def shares(self, other: ColumnType) -> bool:
        return other.keeps_all or (self.has_members and other.has_members)

    def declared_inside(self, found: Any) -> Iterator[tuple[tuple[str | int, ...], str, Any]]:
        for number, each in enumerate(found.properties):
            yield ("properties", number), f".{each.name}", each

    def spark_type(self, column: Column) -> Any:
        fields = [(each.name, each.kind.spark_type(each)) for each in column.fields]
        made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
        return {"type": "struct", "fields": made}

    def rules_inside(self, F: Any, rules: Any, column: Column, place: Any) -> Iterator[Any]:
        for each in column.fields:
            yield from rules.of(each, place.field(each.name))

    def shown(self, F: Any, value: Any) -> Any:
        return F.to_json(value)


@dataclass(frozen=True)
class ArrayType(ObjectType):
    """Arrays; each element is what the column's only field declares."""

    reads: str = "array"
    inside: str = "items"
    element_key: tuple[str | int, ...] = ("items",)
    has_members: bool = False
    lengths: tuple[str, str] = ("minItems", "maxItems")
    length_rule: str = "elements"

    def declared_inside(self, found: Any) -> Iterator[tuple[tuple[str | int, ...], str, Any]]:
        if (element := self.element(found)) is not None:
            yield self.element_key, "[]", element

    def element(self, found: Any) -> Any:
        """Return what each element is by a contract's entry; None if it does not say."""
        return found.items

    def length(self, F: Any, value: Any) -> Any:
        return F.size(value)

    def rules_inside(self, F: Any, rules: Any, column: Column, place: Any) -> Iterator[Any]:
        return rules.of_elements(column, place, place.value, place.element)  # type: ignore[no-any-return]

    def longest(self, column: Column, limits: Limits) -> int:
        return min(column.max_length, limits.elements)

    def spark_type(self, column: Column) -> Any:
        (item,) = column.fields
        return {"type": "array", "elementType": item.kind.spark_type(item), "containsNull": True}


@dataclass(frozen=True)
class MapType(ArrayType):
    """Objects with any keys; each value is what the column's only field declares."""

    reads: str = "map"
    inside: str = "additionalProperties"
    is_custom: bool = True
    element_key: tuple[str | int, ...] = ("customProperties", 0, "value")
    lengths: tuple[str, str] = ("minProperties", "maxProperties")

    def element(self, found: Any) -> Any:
        return found.map_value

    def rules_inside(self, F: Any, rules: Any, column: Column, place: Any) -> Iterator[Any]:
        def at(entry: Any, index: Any) -> Any:
            return place.element(entry["value"], entry["key"])

        return rules.of_elements(column, place, F.map_entries(place.value), at)  # type: ignore[no-any-return]

    def spark_type(self, column: Column) -> Any:
        (item,) = column.fields
        kinds = {"keyType": "string", "valueType": item.kind.spark_type(item)}
        return {"type": "map", **kinds, "valueContainsNull": True}


COLUMN_TYPES: Mapping[str, ColumnType] = {
    each.name: each
    for each in (
        ColumnType(
            "string",
            "string",
            ("string", "text", "varchar"),
            "VARCHAR",
            "string",
            (AvroKind.text, AvroKind.bytes, AvroKind.date, AvroKind.time, AvroKind.timestamp),
            yaml=(str,),
            options=("minLength", "maxLength", "pattern", "validValues"),
            abilities=_FORMED,
            profile=Profile.values,
        ),
        UuidType(
            "uuid",
            "string",
            ("uuid",),
            "VARCHAR",
            {"type": "string", "logicalType": "uuid"},
            (AvroKind.text,),
            formats=("uuid",),
            abilities=_FORMED,
            profile=Profile.values,
            form=UUID,
            example="a UUID in lower case, like 123e4567-e89b-12d3-a456-426614174000",
        ),
        BinaryType(
            "binary",
            "string",
            ("binary", "bytes"),
            "BLOB",
            "bytes",
            (AvroKind.bytes, AvroKind.text),
            formats=("byte", "binary"),
            options=("minLength", "maxLength"),
            is_base64=True,
            no_key="statistics of files cannot hold its bytes; declare a string, which has the base64 text",
        ),
        *_integers(),
        DecimalType(
            "number",
            "number",
            ("decimal(p,s)", "numeric(p,s)"),
            "DECIMAL",
            {"type": "bytes", "logicalType": "decimal"},
            _NUMBERS,
        ),
        FloatType(
            "float",
            "number",
            ("float", "real", "float32"),
            "FLOAT",
            "float",
            _NUMBERS,
            formats=("f32",),
            wider=("double",),
        ),
        DoubleType("double", "number", ("double", "float64"), "DOUBLE", "double", _NUMBERS, formats=("f64",)),
        TimestampType(
            "timestamp",
            "timestamp",
            ("timestamp", "timestamptz"),
            "TIMESTAMP WITH TIME ZONE",
            {"type": "long", "logicalType": "timestamp-micros"},
            (AvroKind.timestamp, AvroKind.text),
            options=("minimum", "maximum", "future", "past"),
            abilities=_COMPARED,
        ),
        DateType(
            "date",
            "date",
            ("date",),
            "DATE",
            {"type": "int", "logicalType": "date"},
            (AvroKind.date, AvroKind.text),
            formats=("yyyy-MM-dd",),
            options=("minimum", "maximum"),
            # Great Expectations compares no date with == in a row_condition.
            abilities=_COMPARED - {Ability.equal},
        ),
        TimeType(
            "time",
            "time",
            ("time",),
            "VARCHAR",
            {"type": "long", "logicalType": "time-micros"},
            (AvroKind.time, AvroKind.text),
            options=("minimum", "maximum"),
            abilities=_FORMED,
            form=CLOCK,
            example="a time in quotes without zeros at the end of its fraction, like '08:30:00' or '08:30:00.5'",
        ),
        BooleanType("boolean", "boolean", ("boolean", "bool"), "BOOLEAN", "boolean", (AvroKind.boolean,)),
        ObjectType(
            "object", "object", ("object", "struct"), "STRUCT", None, (AvroKind.record, AvroKind.map), no_key=NESTED
        ),
        MapType(
            "map",
            "object",
            ("map",),
            "MAP",
            {"type": "map", "values": None},
            (AvroKind.map, AvroKind.record),
            options=("minProperties", "maxProperties"),
            no_key=NESTED,
        ),
        VariantType(
            "variant",
            "object",
            ("variant", "json"),
            "VARCHAR",
            None,
            (),
            options=("maxLength",),
            no_key="two texts of one JSON value may differ; read what it has inside by a path",
        ),
        ArrayType(
            "array",
            "array",
            ("array",),
            "ARRAY",
            {"type": "array", "items": None},
            (AvroKind.array,),
            options=("minItems", "maxItems"),
            no_key=NESTED,
        ),
    )
}
"""By name. The first entry of a logical type that needs no `physicalType` is its default."""
LOGICAL = tuple(dict.fromkeys(each.logical for each in COLUMN_TYPES.values()))


def declared_type(logical: str, physical: str, form: str | None) -> tuple[ColumnType, dict[str, int]]:
    """Return the type that a contract declares, and a decimal's digits; raises InvalidValue with what is accepted."""
    entries = [each for each in COLUMN_TYPES.values() if each.logical == logical]
    chosen = {each.name: each for each in entries if _names(each, physical) and form in (None, *each.formats)}
    if form is not None and not any(form in each.formats for each in entries):
        known = ", ".join(name for each in entries for name in each.formats) or "none: leave it out"
        raise InvalidValue(f"is not read of {logical}: {shown(form)}; formats: {known}", "logicalTypeOptions", "format")
    if physical and not any(_names(each, physical) for each in entries):
        known = ", ".join(name for each in entries for name in each.physical)
        raise InvalidValue(f"must be a type of logicalType {logical} ({known}), is {shown(physical)}", "physicalType")
    if not chosen:
        raise InvalidValue(f"{shown(physical)} is not of the format {shown(form)}", "physicalType")
    found = next(iter(chosen.values()))
    digits = DECIMAL.fullmatch(physical.lower()) if isinstance(found, DecimalType) else None
    return found, {"precision": int(digits[1]), "scale": int(digits[2] or 0)} if digits else {}


def default_type(logical: str) -> ColumnType:
    """Return the type of a column that declares none of its own but the logical one."""
    return next(each for each in COLUMN_TYPES.values() if each.logical == logical)


def _names(kind: ColumnType, physical: str) -> bool:
    if isinstance(kind, DecimalType) and physical:
        return DECIMAL.fullmatch(physical.lower()) is not None
    return not physical or physical.lower() in kind.physical
