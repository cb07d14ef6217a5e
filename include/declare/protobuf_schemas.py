"""Protobuf schemas of records: which messages there are, and what their fields are."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from include.declare.avro_record import SchemaUnusable
from include.declare.column_type import AvroKind
from include.ground.protobuf_compiler import REFUSED

KINDS = {
    "double": AvroKind.float,
    "float": AvroKind.float,
    "bool": AvroKind.boolean,
    "string": AvroKind.text,
    "enum": AvroKind.text,
    "bytes": AvroKind.bytes,
}
"""Of others but messages the kind is integer."""
TIMES = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration"}
ALONE = frozenset(
    f"google.protobuf.{name}"
    for name in (
        *("DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value", "BoolValue"),
        *("StringValue", "BytesValue", "Struct", "Value", "ListValue"),
    )
)
"""Messages that are in JSON what their field has."""
MOST_MESSAGES = 10_000


def form_of(message: Any) -> str:
    """Return what a message is in JSON: `timestamp`, `duration`, the `value` of its field, or an object."""
    return TIMES.get(message.full_name) or ("value" if message.full_name in ALONE else "")


@dataclass(frozen=True)
class ProtobufSchema:
    """The file of a schema, as descriptors of Protobuf's library."""

    pool: Any
    file: Any

    @cached_property
    def roots(self) -> Mapping[tuple[int, ...], Any]:
        """The messages of the file, by the places that lead to each."""
        return dict(_nested(self.file.message_types_by_name.values(), ()))

    @cached_property
    def text(self) -> str:
        """The messages as JSON, for the reader of the data plane."""
        known: dict[str, int] = {}
        waiting, messages = list(self.roots.values()), list[dict[str, Any]]()
        for message in waiting:
            known.setdefault(message.full_name, len(known))
        for message in waiting:
            for field in message.fields:
                if field.message_type is not None and field.message_type.full_name not in known:
                    known[field.message_type.full_name] = len(known)
                    waiting.append(field.message_type)
            if len(waiting) > MOST_MESSAGES:
                raise SchemaUnusable(f"has more than {MOST_MESSAGES:,} messages")
            messages.append({"form": form_of(message), "fields": [_described(each, known) for each in message.fields]})
        roots = {",".join(map(str, place)): known[each.full_name] for place, each in self.roots.items()}
        return json.dumps({"messages": messages, "roots": roots})

    def message(self, place: tuple[int, ...]) -> Any:
        """Return a new message of the type at a place. Raises KeyError."""
        from google.protobuf.message_factory import GetMessageClass

        return GetMessageClass(self.roots[place])()


def _nested(messages: Any, around: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    for number, message in enumerate(messages):
        yield (*around, number), message
        yield from _nested(message.nested_types, (*around, number))


def _described(field: Any, known: Mapping[str, int]) -> dict[str, Any]:
    values = field.enum_type.values if field.enum_type else ()
    return {
        "number": field.number,
        "name": field.name,
        "kind": type_name(field),
        "group": field.type == field.TYPE_GROUP,
        "repeated": field.is_repeated,
        "map": is_map(field),
        "presence": field.has_presence,
        "closed": bool(field.enum_type and field.enum_type.is_closed),
        "oneof": field.containing_oneof.index if field.containing_oneof else -1,
        "symbols": {str(each.number): each.name for each in reversed(values)},
        "message": known[field.message_type.full_name] if field.message_type else None,
    }


def is_map(field: Any) -> bool:
    """Return whether a field's values are entries of a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def type_name(field: Any) -> str:
    """Return the type of a field as a schema has it; `enum`, and `message` also for a group, which is one."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    name = str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()
    return "message" if name == "group" else name


@lru_cache(maxsize=64)
def protobuf_schema(text: str) -> ProtobufSchema:
    """Return what a kept schema describes. Raises SchemaUnusable."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    if text.startswith(REFUSED):
        raise SchemaUnusable(text.removeprefix(REFUSED).splitlines()[0])
    try:
        files = FileDescriptorSet.FromString(b64decode(text, validate=True)).file
        pool = DescriptorPool()
        for each in files:
            pool.Add(each)
        found = ProtobufSchema(pool, pool.FindFileByName(files[-1].name))
    except (binascii.Error, ValueError, TypeError, KeyError, IndexError, DecodeError) as error:
        raise SchemaUnusable(f"is no set of descriptors ({type(error).__name__}: {str(error)[:100]})") from error
    if not found.roots:
        raise SchemaUnusable("describes no message")
    _ = found.text
    return found


@dataclass(frozen=True)
class ProtobufType:
    """What a field, or the record, is to columns: as AvroType."""

    message: Any = None
    field: Any = None
    is_element: bool = False

    @property
    def _is_many(self) -> bool:
        return self.field is not None and self.field.is_repeated and not self.is_element

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    @property
    def kind(self) -> str:
        if self._is_many:
            return AvroKind.map if is_map(self.field) else AvroKind.array
        if self.message is None:
            return KINDS.get(type_name(self.field), AvroKind.integer)
        form = form_of(self.message)
        if form != "value":
            return {"": AvroKind.record, "timestamp": AvroKind.timestamp}.get(form, AvroKind.text)
        name = self.message.name
        inner = {"Struct": str(AvroKind.map), "ListValue": str(AvroKind.array), "Value": "value of any kind"}
        return inner.get(name) or ProtobufType(field=self.message.fields[0]).kind

    @cached_property
    def fields(self) -> Mapping[str, ProtobufType]:
        """The fields of a message by name; none of another type."""
        if self.kind != AvroKind.record:
            return {}
        return {each.name: ProtobufType(each.message_type, each) for each in self.message.fields}

    @cached_property
    def element(self) -> ProtobufType | None:
        """What each element of an array or map is; None of another type."""
        if not self._is_many:
            return None
        if is_map(self.field):
            value = self.message.fields_by_name["value"]
            return ProtobufType(value.message_type, value)
        return ProtobufType(self.message, self.field, is_element=True)
