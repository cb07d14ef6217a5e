"""Avro payloads, by another library than the data plane's: an audit must not share its errors."""

from __future__ import annotations

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from include.declare.avro_record import AvroField, SchemaUnusable, avro_record
from include.declare.column_type import AvroKind
from include.declare.payload_format import FramedFormat, refused_schema
from include.declare.writer_schemas import HEADER_BYTES, WriterSchemas, framed, schema_id
from include.declare.yaml_declarations import Finding
from include.ground.errors import Refused
from include.ground.schema_registry import AVRO, RegisteredSchema, SchemaRegistry

if TYPE_CHECKING:
    from include.declare.contract import Column, Contract
    from include.declare.dataset import Dataset
    from include.declare.payload_format import Encode


def _json(value: bytes, schema: RegisteredSchema, texts: Collection[str] = ()) -> str | None:
    """Return a record in the wire format as JSON; None when its schema does not describe it."""
    import fastavro

    payload = io.BytesIO(value)
    payload.seek(HEADER_BYTES)
    try:
        record = fastavro.schemaless_reader(payload, _parsed(schema.text), None)
        if isinstance(record, dict):
            record |= {name: found.decode() for name in texts if isinstance(found := record.get(name), bytes)}
    except (ValueError, KeyError, IndexError, EOFError, TypeError, OverflowError, AssertionError, StopIteration):
        return None
    if payload.read(1):
        return None
    return json.dumps(record, default=_plain, ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(text))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, date | Decimal | UUID):
        return str(value)
    return b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


def contract_schema(contract: Contract) -> str:
    """Return the Avro schema of a contract: optional columns are unions with null, whose default is null."""
    fields = [_field(column) for column in contract.columns]
    return json.dumps({"type": "record", "name": contract.dataset, "fields": fields})


def _field(column: Column) -> dict[str, Any]:
    kind = column.kind.avro_type(column)
    if column.required:
        return {"name": column.member, "type": kind}
    return {"name": column.member, "type": ["null", kind], "default": None}


@dataclass(frozen=True)
class AvroEncoding:
    """Writes JSON objects by a schema with its id in the registry."""

    schema: str
    id: int
    kinds: Mapping[str, str] = field(default_factory=dict)
    base64: frozenset[str] = frozenset()
    """The fields of bytes that JSON has as base64; of others it has the bytes as text."""

    def encoded(self, line: int, record: bytes) -> bytes:
        """Return a JSON object in the wire format. Raises Refused."""
        import fastavro

        out = io.BytesIO()
        try:
            given = json.loads(record, parse_float=Decimal)
            if not isinstance(given, dict):
                raise ValueError("it is not a JSON object")
            if unknown := sorted(given.keys() - self.kinds.keys()):
                raise ValueError(f"the schema has no field {unknown[0]}")
            values = {name: self._value(name, value) for name, value in given.items()}
            fastavro.schemaless_writer(out, self._parsed, values, strict_allow_default=True)
        except (ValueError, TypeError, ArithmeticError, AttributeError, OverflowError) as error:
            why = f"line {line} cannot be written by the schema: {error or type(error).__name__}; nothing was sent"
            remedy = "correct the line, or give the schema that describes it: --schema FILE.avsc"
            raise Refused(why, remedy, code="record-not-encodable", line=line) from error
        return framed(self.id, out.getvalue())

    def _value(self, name: str, value: Any) -> Any:
        """Return a JSON value as a value of the schema's field. Raises ValueError that names the field."""
        kind = self.kinds[name]
        read = FROM_BASE64 if kind == AvroKind.bytes and name in self.base64 else FROM_JSON.get(kind)
        if value is None or read is None:
            return value
        try:
            return read(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(f"{name} is {json.dumps(value, default=str)[:60]}, no {kind}") from error

    @cached_property
    def _parsed(self) -> Any:
        import fastavro

        return fastavro.parse_schema(json.loads(self.schema))


def avro_encoding(contract: Contract, schema: str, number: int) -> AvroEncoding:
    """Return the encoding of a contract's records by a schema. Raises SchemaUnusable."""
    base64 = frozenset(column.member for column in contract.columns if column.kind.is_base64)
    return AvroEncoding(schema, number, {field.name: field.kind for field in avro_record(schema).fields}, base64)


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
    is_json = False
    is_decoded = True
    schema_type = AVRO

    def findings(self, contract: Contract) -> Iterator[Finding]:
        nested = [column.name for column in contract.columns if column.fields or len(column.path) > 1]
        if nested:
            why = f"a column of {self.name} is a field of the record itself, and {', '.join(nested)} lie inside"
            yield ("schema", 0, "customProperties"), why

    def text(self, value: bytes, schemas: WriterSchemas, columns: Collection[Column] = ()) -> str | None:
        """Return a record as JSON. Bytes are base64 there, but for a column of text the text that they encode."""
        schema = schemas.get(schema_id(value) or -1)
        if schema is None or schema.type != AVRO:
            return super().text(value, schemas, columns)
        return _json(value, schema, [column.member for column in columns if not column.kind.is_base64])

    def _encoding(self, registry: SchemaRegistry, subject: str, dataset: Dataset, schema: Path | None) -> Encode:
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
            fields = {field.name: field for field in avro_record(schema.text).fields}
        except SchemaUnusable as error:
            return [f"the schema {error}"]
        return [why for column in contract.columns for why in _unread(column, fields.get(column.member))]


def _unread(column: Column, field: AvroField | None) -> Iterator[str]:
    if field is None:
        if column.required:
            yield f"{column.name} is required, and the schema has no field {column.member}"
    elif not field.is_readable or field.kind not in column.kind.avro_kinds:
        yield f"{column.name} is of type {column.type_text}, and field {field.name} of the schema is {field.kind}"
