"""Avro payloads, by another library than the data plane's: an audit must not share its errors."""

from __future__ import annotations

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Context, Decimal
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from include.declare.avro_record import AvroType, SchemaUnusable, avro_record, fastavro_schema
from include.declare.column_type import AvroKind
from include.declare.contract import joined_path
from include.declare.envelopes import columns_read
from include.declare.payload_format import FramedFormat, paths_read, refused_schema
from include.declare.writer_schemas import HEADER_BYTES, WriterSchemas, framed, schema_id
from include.ground.errors import Refused
from include.ground.schema_registry import AVRO, RegisteredSchema, SchemaRegistry

if TYPE_CHECKING:
    from include.declare.contract import Column, Contract
    from include.declare.dataset import Dataset
    from include.declare.payload_format import Encode

MISREAD = ValueError, KeyError, IndexError, EOFError, TypeError, OverflowError, AssertionError, StopIteration
"""What fastavro raises for bytes that are no record of the schema."""
MOST_DECIMAL_BYTES = 64
"""More than any decimal of a column has."""


def _json(value: bytes, schema: RegisteredSchema, columns: Collection[Column] = ()) -> str | None:
    """Return a record in the wire format as JSON; None when its schema does not describe it."""
    payload = io.BytesIO(value)
    payload.seek(HEADER_BYTES)
    try:
        read, parsed = _reader(schema.text)
        record = read(payload, parsed, None)
        for path in paths_read(columns, of_text=True):
            record = as_text(record, path)
        text = json.dumps(record, default=_plain, ensure_ascii=False, separators=(",", ":"))
    except (*MISREAD, RecursionError):
        return None
    return None if payload.read(1) else text


def as_text(value: Any, path: Sequence[str | None]) -> Any:
    """Return a value in which the bytes at a path are the text that they encode."""
    if not path:
        return value.decode() if isinstance(value, bytes) else value
    if isinstance(value, list) and path[0] is None:
        return [as_text(each, path[1:]) for each in value]
    if isinstance(value, dict):
        return {name: as_text(each, path[1:]) if path[0] in (None, name) else each for name, each in value.items()}
    return value


@lru_cache(maxsize=64)
def _reader(text: str) -> tuple[Callable[..., Any], Any]:
    """Return what reads a record of a schema, and the schema as it takes it."""
    import fastavro
    from fastavro import _read_py

    record = avro_record(text)
    _read_as_the_data_plane()
    # The compiled reader has no bound of depth: a record of a type that lies in itself could overflow its stack.
    read = _read_py.schemaless_reader if record.is_recursive else fastavro.schemaless_reader
    return read, fastavro_schema(text)


@lru_cache(maxsize=1)
def _read_as_the_data_plane() -> None:
    """Have numbers and texts that are none of their logical type's values read as what they are."""
    from fastavro.read import LOGICAL_READERS

    def lenient(read: Callable[..., Any]) -> Callable[..., Any]:
        def found(value: Any, *schemas: Any) -> Any:
            try:
                return read(value, *schemas)
            except (ValueError, OverflowError):
                return value

        return found

    kinds = [name for name in LOGICAL_READERS if not name.endswith("-decimal")]
    LOGICAL_READERS.update({name: lenient(LOGICAL_READERS[name]) for name in kinds})
    LOGICAL_READERS.update(dict.fromkeys(("bytes-decimal", "fixed-decimal"), _decimal))
    LOGICAL_READERS["fixed-uuid"] = lambda value, *_: UUID(bytes=value)


def _decimal(value: bytes, schema: Any, *_: Any) -> Decimal:
    """Return a decimal with all its digits, also above the schema's precision. Raises ValueError."""
    if not 0 < len(value) <= MOST_DECIMAL_BYTES:
        raise ValueError(f"a decimal has {len(value)} bytes")
    digits = Decimal(int.from_bytes(value, "big", signed=True))
    return digits.scaleb(-schema.get("scale", 0), Context(prec=4 * MOST_DECIMAL_BYTES))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, date | UUID):
        return str(value)
    return b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


def contract_schema(contract: Contract) -> str:
    """Return the Avro schema of a contract: optional columns are unions with null, whose default is null."""
    return json.dumps(_record(contract.dataset, [(column.path, column) for column in columns_read(contract)]))


def _record(name: str, placed: Sequence[tuple[Sequence[str], Column]]) -> dict[str, Any]:
    """Return the schema of an object in which columns read at paths."""
    by_member: dict[str, list[tuple[Sequence[str], Column]]] = {}
    for path, column in placed:
        by_member.setdefault(path[0], []).append((path[1:], column))
    fields = []
    for member, inside in by_member.items():
        own = [column for path, column in inside if not path]
        deeper = [(path, column) for path, column in inside if path]
        deeper += [(each.path, each) for column in own if column.kind.has_members for each in column.fields]
        kind = _record(f"{name}_{member}", deeper) if deeper else _avro_type(f"{name}_{member}", own[0])
        is_required = any(column.required for _, column in inside)
        null: dict[str, Any] = {} if is_required else {"default": None}
        fields.append({"name": member, "type": kind if is_required else ["null", kind], **null})
    return {"type": "record", "name": name, "fields": fields}


def _avro_type(name: str, column: Column) -> Any:
    """Return the type of a column's value; `name`: that of a record in it."""
    kind = column.kind.avro_type(column)
    if not column.kind.element_key:
        return kind
    (element,) = column.fields
    inner = _record(name, [(each.path, each) for each in element.fields]) if element.kind.has_members else None
    items = inner or _avro_type(name, element)
    return {**kind, **dict.fromkeys(kind.keys() - {"type"}, items if element.required else ["null", items])}


@dataclass(frozen=True)
class AvroEncoding:
    """Writes JSON objects by a schema with its id in the registry."""

    schema: str
    id: int
    base64: frozenset[tuple[str | None, ...]] = frozenset()
    """Paths to the bytes that JSON has as base64; of others it has the bytes as text."""

    def encoded(self, line: int, record: bytes) -> bytes:
        """Return a JSON object in the wire format. Raises Refused."""
        import fastavro

        out = io.BytesIO()
        try:
            given = json.loads(record, parse_float=Decimal)
            if not isinstance(given, dict):
                raise ValueError("it is not a JSON object")
            values = self._value(given, avro_record(self.schema), ())
            fastavro.schemaless_writer(out, fastavro_schema(self.schema), values, strict_allow_default=True)
        except (ValueError, TypeError, ArithmeticError, AttributeError, OverflowError) as error:
            why = f"line {line} cannot be written by the schema: {error or type(error).__name__}; nothing was sent"
            remedy = "correct the line, or give the schema that describes it: --schema FILE.avsc"
            raise Refused(why, remedy, code="record-not-encodable", line=line) from error
        return framed(self.id, out.getvalue())

    def _value(self, value: Any, kind: AvroType, path: tuple[str | None, ...]) -> Any:
        """Return a JSON value as a value of the schema's type. Raises ValueError that names the field."""
        if isinstance(value, dict) and kind.fields:
            if unknown := sorted(value.keys() - kind.fields.keys()):
                raise ValueError(f"the schema has no field {joined_path((*map(_shown, path), unknown[0]))}")
            return {name: self._value(each, kind.fields[name], (*path, name)) for name, each in value.items()}
        if kind.element is not None and isinstance(value, dict):
            return {name: self._value(each, kind.element, (*path, None)) for name, each in value.items()}
        if kind.element is not None and isinstance(value, list):
            return [self._value(each, kind.element, (*path, None)) for each in value]
        read = FROM_BASE64 if kind.kind == AvroKind.bytes and path in self.base64 else FROM_JSON.get(kind.kind)
        if value is None or read is None:
            return value
        try:
            return read(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            name = joined_path(map(_shown, path))
            raise ValueError(f"{name} is {json.dumps(value, default=str)[:60]}, no {kind.kind}") from error


def _shown(part: str | None) -> str:
    return "[]" if part is None else part


def avro_encoding(contract: Contract, schema: str, number: int) -> AvroEncoding:
    """Return the encoding of a contract's records by a schema. Raises SchemaUnusable."""
    _ = avro_record(schema)
    return AvroEncoding(schema, number, frozenset(paths_read(columns_read(contract), of_text=False)))


FROM_JSON: dict[str, Callable[[Any], Any]] = {
    AvroKind.timestamp: datetime.fromisoformat,
    AvroKind.date: date.fromisoformat,
    AvroKind.time: time.fromisoformat,
    AvroKind.decimal: Decimal,
    AvroKind.float: float,
    AvroKind.bytes: str.encode,
}
FROM_BASE64 = partial(b64decode, validate=True)


class AvroFormat(FramedFormat):
    """Avro, by default written by the contract's own schema."""

    name = "avro"
    is_decoded = True
    schema_type = AVRO

    def text(self, value: bytes, schemas: WriterSchemas, columns: Collection[Column] = ()) -> str | None:
        """Return a record as JSON. Bytes are base64 there, but for a column of text the text that they encode."""
        schema = schemas.get(schema_id(value) or -1)
        if schema is None or schema.type != AVRO:
            return super().text(value, schemas, columns)
        return _json(value, schema, columns)

    def _encoding(self, registry: SchemaRegistry, subject: str, dataset: Dataset, schema: Path | None) -> Encode:
        kept = next((each.name for each in dataset.contract.all_columns if each.kind.avro_type(each) is None), None)
        if schema is None and kept:
            raise refused_schema(dataset, f"{kept} is any JSON, for which Avro has no type")
        text = contract_schema(dataset.contract) if schema is None else schema.read_text("utf-8")
        try:
            avro_record(text)
        except SchemaUnusable as error:
            raise refused_schema(dataset, f"{schema} {error}") from error
        return avro_encoding(dataset.contract, text, registry.register(subject, text)).encoded

    def unread(self, contract: Contract, schema: RegisteredSchema) -> list[str]:
        if schema.type != AVRO:
            return [f"the schema is of type {schema.type}, the contract's format is {self.name}"]
        try:
            record = avro_record(schema.text)
        except SchemaUnusable as error:
            return [f"the schema {error}"]
        return [why for column in contract.columns for why in unread_column(column, record, column.name)]


def unread_column(column: Column, around: Any, name: str) -> Iterator[str]:
    """Yield why a column, or what is inside of it, cannot be read of a value; `name`: its own in silver.

    `around`: an AvroType, or what is like one.
    """
    found = around
    for part in column.path:
        found = found.fields.get(part, found.element if found.kind == AvroKind.map else None) if found else None
    if not column.path:
        found = around.element
    if found is None:
        if column.required:
            yield f"{name} is required, and the schema has no field {column.member}"
    elif column.kind.avro_kinds and not set(found.kinds) <= set(column.kind.avro_kinds):
        yield f"{name} is of type {column.type_text}, and field {column.member or '[]'} of the schema is {found.kind}"
    else:
        for each in column.fields:
            yield from unread_column(each, found, f"{name}.{each.name}" if each.name else f"{name}[]")
