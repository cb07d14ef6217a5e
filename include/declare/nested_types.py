"""Types whose values have others inside, and the parts of a record that are kept as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from include.declare.column_type import ColumnType

if TYPE_CHECKING:
    from include.declare.contract import Column, Limits


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
