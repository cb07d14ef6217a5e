"""The fields of an Avro record, by the kind of value that the contract's columns take from them.

A record of the contract is flat, so a field that is itself a record, an array, a map, or a union of several types has
no value for a column: its kind names what it is. Such fields that the contract does not have are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from include.declare.column_type import AvroKind

KINDS = {
    ("string", None): AvroKind.text,
    ("enum", None): AvroKind.text,
    ("bytes", None): AvroKind.bytes,
    ("boolean", None): AvroKind.boolean,
    ("int", None): AvroKind.integer,
    ("long", None): AvroKind.integer,
    ("float", None): AvroKind.float,
    ("double", None): AvroKind.float,
    ("bytes", "decimal"): AvroKind.decimal,
    ("fixed", "decimal"): AvroKind.decimal,
    ("int", "date"): AvroKind.date,
    ("int", "time-millis"): AvroKind.time,
    ("long", "time-micros"): AvroKind.time,
    ("long", "timestamp-millis"): AvroKind.timestamp,
    ("long", "timestamp-micros"): AvroKind.timestamp,
}
"""By type and logical type; a string is text, whatever its logical type."""
PRIMITIVE = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
MOST_DIGITS = 38


class SchemaUnusable(ValueError):
    """A text is not a schema of a record that can be read; the message says why."""


@dataclass(frozen=True)
class AvroField:
    """A field of a record. `type` is its Avro type with the named type in full, for a kind of KINDS."""

    name: str
    kind: str
    type: Any = None

    @property
    def is_readable(self) -> bool:
        """Whether its values are single values."""
        return self.type is not None


@dataclass(frozen=True)
class AvroRecord:
    """A record's full name, and its fields in order."""

    name: str
    fields: tuple[AvroField, ...]

    def reader(self, members: Iterable[str], base64: Collection[str] = ()) -> dict[str, Any]:
        """Return the schema of the same record with only the readable fields among `members`, in their order.

        Bytes are read as text, but for the members `base64`; a time of day as its number.
        """
        by_name, defined, fields = {field.name: field for field in self.fields}, set[str](), []
        for member in members:
            field = by_name.get(member)
            if field is not None and field.is_readable:
                fields.append({"name": member, "type": _once(field.type, defined, member in base64)})
        space, _, simple = self.name.rpartition(".")
        return {"type": "record", "name": simple, "namespace": space, "fields": fields}


def avro_record(text: str) -> AvroRecord:
    """Return the record that a schema describes. Raises SchemaUnusable."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise SchemaUnusable(f"is not JSON ({error})") from error
    while isinstance(schema, dict) and isinstance(schema.get("type"), dict):
        schema = schema["type"]
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaUnusable("describes no record")
    known: dict[str, Any] = {}
    name = _full_name(schema, "")
    try:
        return AvroRecord(name, tuple(_fields(schema, name, known)))
    except (KeyError, TypeError, RecursionError) as error:
        raise SchemaUnusable(f"is not an Avro schema ({type(error).__name__}: {error})") from error


def _fields(schema: Mapping[str, Any], name: str, known: dict[str, Any]) -> list[AvroField]:
    known[name] = "record"
    return [_field(each, name.rpartition(".")[0], known) for each in schema["fields"]]


def _field(field: Mapping[str, Any], space: str, known: dict[str, Any]) -> AvroField:
    """Return a field; named types inside it are noted in `known` by full name, a record as a word."""
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    found = [_resolved(branch, space, known) for branch in branches]
    values = [each for each in found if each != "null"]
    if len(values) != 1:
        return AvroField(field["name"], f"union of {', '.join(map(_type_name, values)) or 'nothing'}")
    kind = _kind(values[0])
    if kind is None:
        return AvroField(field["name"], _type_name(values[0]))
    return AvroField(field["name"], kind, ["null", values[0]] if len(found) > 1 else values[0])


def _resolved(schema: Any, space: str, known: dict[str, Any]) -> Any:
    """Return a type with the definition of a named one; a name of a record, array or map as a word."""
    if isinstance(schema, str):
        return schema if schema in PRIMITIVE else known[schema if "." in schema or not space else f"{space}.{schema}"]
    if isinstance(schema, list):
        return "union"
    kind = schema["type"]
    if isinstance(kind, dict | list) or kind not in ("record", "error", "enum", "fixed", "array", "map"):
        return _resolved(kind, space, known) if not isinstance(kind, str) or kind not in PRIMITIVE else dict(schema)
    if kind in ("array", "map"):
        inner = _resolved(schema["items" if kind == "array" else "values"], space, known)
        _refuse_empty(inner)
        return kind
    name = _full_name(schema, space)
    if kind in ("record", "error"):
        _fields(schema, name, known)
        return "record"
    simple, defined = name.rpartition("."), {key: schema[key] for key in schema if key not in ("aliases", "doc")}
    known[name] = {**defined, "name": simple[2], "namespace": simple[0]}
    return known[name]


def _refuse_empty(items: Any) -> None:
    """Items of no bytes: a record of ten bytes could claim to have 2^62 of them."""
    if items == "null" or (isinstance(items, dict) and items.get("type") == "fixed" and not items["size"]):
        raise SchemaUnusable("has an array or map of empty items")


def _full_name(schema: Mapping[str, Any], space: str) -> str:
    name, given = str(schema["name"]), schema.get("namespace", space)
    return name if "." in name or not given else f"{given}.{name}"


def _kind(schema: Any) -> AvroKind | None:
    """Return the kind of a resolved type, None when a column can take no value of it."""
    if isinstance(schema, str):
        return KINDS.get((schema, None))
    if schema["type"] == "string":
        return AvroKind.text
    kind = KINDS.get((schema["type"], schema.get("logicalType")))
    if kind == AvroKind.decimal and not 0 < int(schema["precision"]) <= MOST_DIGITS:
        return None
    return kind


def _type_name(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    return str(schema.get("logicalType") or schema["type"])


def _once(schema: Any, defined: set[str], is_bytes: bool) -> Any:
    """Return a field's type as a reader's schema has it; a named type in full the first time only."""
    if isinstance(schema, list):
        return [_once(branch, defined, is_bytes) for branch in schema]
    if isinstance(schema, dict) and "name" in schema:
        name = _full_name(schema, "")
        if name in defined:
            return name
        defined.add(name)
    if _kind(schema) == AvroKind.time:
        return schema["type"]
    return "string" if _kind(schema) == AvroKind.bytes and not is_bytes else schema
