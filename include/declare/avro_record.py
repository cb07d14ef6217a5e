"""Avro schemas of records: which kind of value each field has, and what lies inside of it.

A kind is an AvroKind, or words for a type that no column reads. A union of null and one type counts as this type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from include.declare.column_type import AvroKind

KINDS = {
    ("string", None): AvroKind.text,
    ("enum", None): AvroKind.text,
    ("bytes", None): AvroKind.bytes,
    ("fixed", None): AvroKind.bytes,
    ("record", None): AvroKind.record,
    ("error", None): AvroKind.record,
    ("array", None): AvroKind.array,
    ("map", None): AvroKind.map,
    ("boolean", None): AvroKind.boolean,
    ("int", None): AvroKind.integer,
    ("long", None): AvroKind.integer,
    ("float", None): AvroKind.float,
    ("double", None): AvroKind.float,
    ("bytes", "decimal"): AvroKind.decimal,
    ("fixed", "decimal"): AvroKind.decimal,
    ("fixed", "uuid"): AvroKind.text,
    ("int", "date"): AvroKind.date,
    ("int", "time-millis"): AvroKind.time,
    ("long", "time-micros"): AvroKind.time,
    ("long", "timestamp-millis"): AvroKind.timestamp,
    ("long", "timestamp-micros"): AvroKind.timestamp,
    ("long", "local-timestamp-millis"): "local timestamp",
    ("long", "local-timestamp-micros"): "local timestamp",
}
"""By type and logical type. Avro says to ignore a logical type that a reader does not know."""


class SchemaUnusable(ValueError):
    """A text is not a schema of a record that can be read; the message says why."""


@dataclass(frozen=True)
class AvroType:
    """A type as fastavro has parsed it: `schema` is its full name, its definition, or the types of a union.

    `known`: the definitions of the named types, by full name.
    """

    schema: Any
    known: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def branches(self) -> tuple[AvroType, ...]:
        """The types of a union; of another type only itself."""
        return tuple(map(self._inner, self.schema)) if isinstance(self.schema, list) else (self,)

    @cached_property
    def value(self) -> AvroType:
        """The definition of a named type; of a union of null and one type this type; of another type itself."""
        if isinstance(self.schema, list):
            values = [each.value for each in self.branches if each.value.schema != "null"]
            return values[0] if len(values) == 1 else self
        return self._inner(self.known.get(self.schema, self.schema)) if isinstance(self.schema, str) else self

    @cached_property
    def kind(self) -> str:
        found = self.value.schema
        if isinstance(found, list):
            return f"union of {', '.join(self.kinds) or 'nothing'}"
        name, logical = (found, None) if isinstance(found, str) else (found["type"], found.get("logicalType"))
        return str(KINDS.get((name, logical)) or KINDS.get((name, None)) or name)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its values except null; several only of a union of several types."""
        return tuple(each.kind for each in self.value.branches if each.kind != "null")

    @cached_property
    def fields(self) -> Mapping[str, AvroType]:
        """The fields of a record by name; none of another type."""
        found = self.value.schema if self.value.kind == AvroKind.record else {"fields": ()}
        return {each["name"]: self._inner(each["type"]) for each in found["fields"]}

    @cached_property
    def element(self) -> AvroType | None:
        """What each element of an array or map is; None of another type."""
        found, keys = self.value, {str(AvroKind.array): "items", str(AvroKind.map): "values"}
        return found._inner(found.schema[keys[found.kind]]) if found.kind in keys else None

    def inner(self) -> Iterator[AvroType]:
        found = self.value
        yield from found.branches if isinstance(found.schema, list) else found.fields.values()
        if found.element is not None:
            yield found.element

    @property
    def is_empty(self) -> bool:
        """Whether a value of it is written as no bytes at all."""
        found = self.value
        if isinstance(self.schema, list):
            return False
        if found.kind == AvroKind.record:
            return all(each.is_empty for each in found.fields.values())
        return found.schema == "null" or (isinstance(found.schema, dict) and found.schema.get("size") == 0)

    @property
    def is_recursive(self) -> bool:
        """Whether a value may lie in one of its own type, at any depth."""
        return _is_recursive(self, set(), set())

    def _inner(self, schema: Any) -> AvroType:
        return AvroType(schema, self.known)


@lru_cache(maxsize=64)
def avro_record(text: str) -> AvroType:
    """Return the record that a schema describes. Raises SchemaUnusable.

    It is parsed by fastavro, with which an audit reads records: the data plane refuses what fastavro does.
    """
    import fastavro

    known: dict[str, Any] = {}
    try:
        schemas = schemas_in(text)
    except ValueError as error:
        raise SchemaUnusable(f"is not JSON ({error})") from error
    try:
        *_, last = [fastavro.parse_schema(_unwrapped(schema), known) for schema in schemas]
        found = AvroType(last, known)
        if isinstance(found.schema, list) or found.kind != AvroKind.record:
            raise SchemaUnusable("describes no record")
        _check(found, set())
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise SchemaUnusable(f"is refused by fastavro: {error}") from error
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaUnusable(f"is not an Avro schema ({type(error).__name__}: {error})") from error
    return found


def schemas_in(text: str) -> list[Any]:
    """Return a schema as parsed from JSON, after those that it refers to. Raises ValueError."""
    found = json.loads(text)
    refers = isinstance(found, dict) and found.keys() == {"references", "schema"}
    return [*found["references"], found["schema"]] if refers else [found]


def _unwrapped(schema: Any) -> Any:
    """Return a schema without types that only have a type, which fastavro does not know. Raises KeyError.

    A record needs fields, which fastavro does not require.
    """
    if isinstance(schema, list):
        return [_unwrapped(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "name" not in schema and isinstance(schema.get("type"), dict | list):
        return _unwrapped(schema["type"])
    needed = {"type", "fields"} if schema["type"] in ("record", "error") else {"type"}
    inside = needed | ({"items", "values", "fields"} & schema.keys())
    return {**schema, **{key: _unwrapped(schema[key]) for key in inside}}


def _check(found: AvroType, seen: set[int]) -> None:
    """Raise SchemaUnusable for items of no bytes: a record of ten bytes could claim to have 2^62 of them."""
    if id(found.value.schema) in seen:
        return
    seen.add(id(found.value.schema))
    if found.element is not None and found.element.is_empty:
        raise SchemaUnusable("has an array or map of empty items")
    for each in found.inner():
        _check(each, seen)


def _is_recursive(found: AvroType, around: set[int], seen: set[int]) -> bool:
    mark = id(found.value.schema)
    if mark in seen:
        return mark in around
    seen.add(mark)
    around.add(mark)
    found_again = any(_is_recursive(each, around, seen) for each in found.inner())
    around.discard(mark)
    return found_again
