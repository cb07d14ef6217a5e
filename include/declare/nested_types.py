"""Types whose values have others inside, and the parts of a record that are kept as JSON.

A value comes from the readers of `column_type.py`, with what is inside of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from include.declare.column_type import ColumnType

if TYPE_CHECKING:
    from include.declare.contract import Column

OBJECT, ARRAY, ELEMENTS, VARIANT = "object", "array", "elements", "variant"
"""Kinds of a JSON value; ELEMENTS: an array or map with too many."""


@dataclass(frozen=True)
class VariantType(ColumnType):
    """Any JSON value but null, kept as its text."""

    shape: str = "variant"

    def of_json(self, F: Any, column: Column, value: Any) -> Any:
        return F.when(value.kind == VARIANT, value.text)

    def fault(self, F: Any, column: Column, value: Any) -> Any:
        return F.when(value.kind != VARIANT, "type")


@dataclass(frozen=True)
class ObjectType(ColumnType):
    """Objects with the column's fields; they may have others, which are not read."""

    shape: str = "object"
    is_nested: bool = True

    def spark_type(self, column: Column) -> Any:
        fields = [(each.name, each.kind.spark_type(each)) for each in column.fields]
        made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
        return {"type": "struct", "fields": made}

    def of_plain(self, F: Any, column: Column, value: Any) -> Any:
        made = [
            each.kind.of_plain(F, each, value[f"_{number}"]).alias(each.name)
            for number, each in enumerate(column.fields)
        ]
        return F.when(value.isNotNull(), F.struct(*made))

    def of_json(self, F: Any, column: Column, value: Any) -> Any:
        made = [
            each.kind.of_json(F, each, value.field(number)).alias(each.name)
            for number, each in enumerate(column.fields)
        ]
        return F.when(value.kind == OBJECT, F.struct(*made))

    def fault(self, F: Any, column: Column, value: Any) -> Any:
        return F.when(value.kind != OBJECT, "type")

    def shown(self, F: Any, value: Any) -> Any:
        return F.to_json(value)


@dataclass(frozen=True)
class ArrayType(ObjectType):
    """Arrays; each element is what the column's only field declares."""

    shape: str = "array"

    def spark_type(self, column: Column) -> Any:
        (item,) = column.fields
        return {"type": "array", "elementType": item.kind.spark_type(item), "containsNull": True}

    def of_plain(self, F: Any, column: Column, value: Any) -> Any:
        (item,) = column.fields
        return F.transform(value, lambda each: item.kind.of_plain(F, item, each))

    def of_json(self, F: Any, column: Column, value: Any) -> Any:
        (item,) = column.fields
        return F.when(value.kind == ARRAY, value.elements(lambda each: item.kind.of_json(F, item, each)))

    def fault(self, F: Any, column: Column, value: Any) -> Any:
        return F.when(value.kind == ELEMENTS, ELEMENTS).when(value.kind != ARRAY, "type")


@dataclass(frozen=True)
class MapType(ObjectType):
    """Objects with any keys; each value is what the column's only field declares."""

    shape: str = "map"

    def spark_type(self, column: Column) -> Any:
        (item,) = column.fields
        kinds = {"keyType": "string", "valueType": item.kind.spark_type(item)}
        return {"type": "map", **kinds, "valueContainsNull": True}

    def of_plain(self, F: Any, column: Column, value: Any) -> Any:
        (item,) = column.fields
        return F.transform_values(value, lambda _, each: item.kind.of_plain(F, item, each))

    def of_json(self, F: Any, column: Column, value: Any) -> Any:
        (item,) = column.fields
        return F.when(value.kind == OBJECT, value.entries(lambda each: item.kind.of_json(F, item, each)))

    def fault(self, F: Any, column: Column, value: Any) -> Any:
        return F.when(value.kind == ELEMENTS, ELEMENTS).when(value.kind != OBJECT, "type")
