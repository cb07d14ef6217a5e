"""Avro payloads, by another library than the data plane's: an audit must not share its errors."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Context, Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from include.declare.avro_record import AvroType, avro_record
from include.declare.column_type import AvroKind
from include.declare.contract import joined_path
from include.declare.envelopes import columns_read
from include.declare.payload_format import DecodedFormat, paths_read, refused_schema, unencodable
from include.declare.writer_schemas import HEADER_BYTES, framed
from include.ground.schema_registry import AVRO, SchemaRegistry

if TYPE_CHECKING:
    from include.declare.contract import Column, Contract
    from include.declare.dataset import Dataset
    from include.declare.payload_format import Encode

MOST_DECIMAL_BYTES = 64
"""More than any decimal of a column has."""


@lru_cache(maxsize=64)
def _reader(text: str) -> tuple[Callable[..., Any], Any]:
    """Return what reads a record of a schema, and the schema as it takes it."""
    import fastavro
    from fastavro import _read_py

    record = avro_record(text)
    _read_as_the_data_plane()
    # The compiled reader has no bound of depth: a record of a type that lies in itself could overflow its stack.
    read = _read_py.schemaless_reader if record.is_recursive else fastavro.schemaless_reader
    return read, record.schema


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


def contract_schema(contract: Contract) -> str:
    """Return the Avro schema of a contract: optional columns are unions with null, whose default is null."""
    return json.dumps(_record(contract.dataset, [(column.path, column) for column in columns_read(contract)]))


def _record(name: str, placed: Sequence[tuple[Sequence[str], Column]]) -> dict[str, Any]:
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
            kind = avro_record(self.schema)
            values = self._value(given, kind, ())
            fastavro.schemaless_writer(out, kind.schema, values, strict_allow_default=True)
        except (ValueError, TypeError, ArithmeticError, AttributeError, OverflowError) as error:
            raise unencodable(line, error or type(error).__name__, "avsc") from error
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
    """Return the encoding of a contract's records by a schema."""
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


class AvroFormat(DecodedFormat):
    """Avro, by default written by the contract's own schema."""

    name = "avro"
    schema_type = AVRO

    def record(self, value: bytes, schema: str) -> Any:
        payload = io.BytesIO(value)
        payload.seek(HEADER_BYTES)
        read, parsed = _reader(schema)
        found = read(payload, parsed, None)
        if payload.read(1):
            raise ValueError("bytes are left")
        return found

    def plain(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        if isinstance(value, time):
            return value.isoformat(timespec="microseconds")
        if isinstance(value, Decimal):
            return f"{value:f}"
        return super().plain(value) if isinstance(value, bytes) else str(value)

    def root(self, schema: str) -> AvroType:
        return avro_record(schema)

    def own_schema(self, dataset: Dataset) -> str:
        kept = next((each.name for each in dataset.contract.all_columns if each.kind.avro_type(each) is None), None)
        if kept:
            raise refused_schema(dataset, f"{kept} is any JSON, for which Avro has no type")
        return contract_schema(dataset.contract)

    def encoder(self, registry: SchemaRegistry, subject: str, contract: Contract, schema: str) -> Encode:
        _ = avro_record(schema)
        return avro_encoding(contract, schema, registry.register(subject, schema)).encoded
