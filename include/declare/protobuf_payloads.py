"""Protobuf payloads, read by Protobuf's own library: the data plane's reader shares no code with it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.declare.avro_payloads import as_text, unread_column
from include.declare.avro_record import SchemaUnusable
from include.declare.payload_format import FramedFormat, paths_read, refused_schema
from include.declare.protobuf_schemas import ProtobufSchema, ProtobufType, form_of, is_map, protobuf_schema, type_name
from include.declare.writer_schemas import HEADER_BYTES, WriterSchemas, framed, schema_id
from include.ground.errors import Refused
from include.ground.schema_registry import PROTOBUF, RegisteredSchema, SchemaRegistry

if TYPE_CHECKING:
    from include.declare.contract import Column, Contract
    from include.declare.dataset import Dataset
    from include.declare.payload_format import Encode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
NO_INDEX = b"\x00"
"""The places of the first message of a schema."""


class ProtobufFormat(FramedFormat):
    """Protobuf, by a schema of which the record names a message."""

    name = "protobuf"
    is_decoded = True
    schema_type = PROTOBUF

    def text(self, value: bytes, schemas: WriterSchemas, columns: Collection[Column] = ()) -> str | None:
        """Return a record as JSON. Bytes are base64 there, but for a column of text the text that they encode."""
        schema = schemas.get(schema_id(value) or -1)
        if schema is None or schema.type != PROTOBUF:
            return super().text(value, schemas, columns)
        return _json(value, schema, columns)

    def _encoding(self, registry: SchemaRegistry, subject: str, dataset: Dataset, schema: Path | None) -> Encode:
        if schema is None:
            raise refused_schema(dataset, "its records are of a message in Protobuf, which a contract is not")
        number = registry.register(subject, schema.read_text("utf-8"), PROTOBUF)
        found = registry.schema(number)
        try:
            known = protobuf_schema(found.text if found else "")
        except SchemaUnusable as error:
            raise refused_schema(dataset, f"{schema} {error}") from error
        return lambda line, record: _encoded(known, number, line, record)

    def unread(self, contract: Contract, schema: RegisteredSchema) -> list[str]:
        if schema.type != PROTOBUF:
            return [f"the schema is of type {schema.type}, the contract's format is {self.name}"]
        try:
            record = ProtobufType(protobuf_schema(schema.text).roots[(0,)])
        except SchemaUnusable as error:
            return [f"the schema {error}"]
        return [why for column in contract.columns for why in unread_column(column, record, column.name)]


def _encoded(schema: ProtobufSchema, number: int, line: int, record: bytes) -> bytes:
    """Return a JSON object in the wire format, as the first message of a schema. Raises Refused."""
    from google.protobuf.json_format import Parse, ParseError

    try:
        message = Parse(record, schema.message((0,)), descriptor_pool=schema.pool)
    except ParseError as error:
        why = f"line {line} cannot be written by the schema: {error}; nothing was sent"
        remedy = "correct the line, or give the schema that describes it: --schema FILE.proto"
        raise Refused(why, remedy, code="record-not-encodable", line=line) from error
    return framed(number, NO_INDEX + message.SerializeToString())


def _json(value: bytes, schema: RegisteredSchema, columns: Collection[Column]) -> str | None:
    """Return a record in the wire format as JSON; None when its schema does not describe it."""
    from google.protobuf.message import DecodeError

    try:
        place, at = _place(value)
        message = protobuf_schema(schema.text).message(place)
        message.ParseFromString(value[at:])
        record = _plain(message)
        for path in paths_read(columns, of_text=True):
            record = as_text(record, path)
    except (DecodeError, ValueError, KeyError, IndexError, RecursionError):
        return None
    return json.dumps(record, default=lambda each: b64encode(each).decode("ascii"), ensure_ascii=False)


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
    """Return a message as the value that its JSON has."""
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
