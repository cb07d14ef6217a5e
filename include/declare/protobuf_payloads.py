"""Protobuf payloads, read by Protobuf's own library: the data plane's reader shares no code with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from include.declare.payload_format import DecodedFormat, unencodable
from include.declare.protobuf_schemas import ProtobufSchema, ProtobufType, form_of, is_map, protobuf_schema, type_name
from include.declare.writer_schemas import HEADER_BYTES, framed
from include.ground.schema_registry import PROTOBUF, SchemaRegistry

if TYPE_CHECKING:
    from include.declare.contract import Contract
    from include.declare.payload_format import Encode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
NO_INDEX = b"\x00"
"""The places of the first message of a schema."""


class ProtobufFormat(DecodedFormat):
    """Protobuf, by a schema of which the record names a message."""

    name = "protobuf"
    schema_type = PROTOBUF

    def record(self, value: bytes, schema: str) -> Any:
        from google.protobuf.message import DecodeError

        place, at = _place(value)
        message = protobuf_schema(schema).message(place)
        try:
            message.ParseFromString(value[at:])
        except DecodeError as error:
            raise ValueError(str(error)) from error
        return _plain(message)

    def root(self, schema: str) -> ProtobufType:
        return ProtobufType(protobuf_schema(schema).roots[(0,)])

    def encoder(self, registry: SchemaRegistry, subject: str, contract: Contract, schema: str) -> Encode:
        number = registry.register(subject, schema, PROTOBUF)
        found = registry.schema(number)
        known = protobuf_schema(found.text if found else "")
        return lambda line, record: _encoded(known, number, line, record)


def _encoded(schema: ProtobufSchema, number: int, line: int, record: bytes) -> bytes:
    """Return a JSON object in the wire format, as the first message of a schema. Raises Refused."""
    from google.protobuf.json_format import Parse, ParseError

    try:
        message = Parse(record, schema.message((0,)), descriptor_pool=schema.pool)
    except ParseError as error:
        raise unencodable(line, error, "proto") from error
    return framed(number, NO_INDEX + message.SerializeToString())


def _place(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the places that lead to a record's message, and where the message begins. Raises IndexError."""
    numbers, at = list[int](), HEADER_BYTES
    while not numbers or len(numbers) <= numbers[0]:
        number = shift = 0
        while True:
            number, shift, at = number | (value[at] & 127) << shift, shift + 7, at + 1
            if value[at - 1] < 128:
                break
        numbers.append(number >> 1 ^ -(number & 1))
    return tuple(numbers[1:]) or (0,), at


def _plain(message: Any) -> Any:
    form = form_of(message.DESCRIPTOR)
    if form == "timestamp":
        return _moment(message.seconds, message.nanos)
    if form == "duration":
        sign = "-" if message.seconds < 0 or message.nanos < 0 else ""
        return f"{sign}{abs(message.seconds)}{_fraction(abs(message.nanos))}s"
    fields = message.DESCRIPTOR.fields
    if form:
        there = [each for each in fields if len(fields) == 1 or message.HasField(each.name)]
        return _value(message, there[0]) if there else None
    return {each.name: _value(message, each) for each in fields if not each.has_presence or message.HasField(each.name)}


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return {_key(key): _single(value[key], inner) for key in value}
    return [_single(each, field) for each in value] if field.is_repeated else _single(value, field)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _single(value: Any, field: Any) -> Any:
    kind = type_name(field)
    if kind == "message":
        return _plain(value)
    if kind == "enum":
        known = field.enum_type.values_by_number.get(value)
        return None if known and known.name == "NULL_VALUE" else known.name if known else value
    return value


def _moment(seconds: int, nanos: int) -> str | int:
    if not FIRST_SECOND <= seconds <= LAST_SECOND or not 0 <= nanos < 10**9:
        return seconds
    return f"{(EPOCH + timedelta(seconds=seconds)).isoformat()[:19]}{_fraction(nanos)}Z"


def _fraction(nanos: int) -> str:
    digits = f"{nanos:09}"
    return "" if not nanos else f".{digits[:3] if not nanos % 10**6 else digits[:6] if not nanos % 1000 else digits}"
