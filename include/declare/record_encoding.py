"""Records of a user's file, JSON objects, in a dataset's format: Avro by a schema, in the wire format of a registry."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property, partial
from typing import Any

from include.declare.avro_record import avro_record
from include.declare.column_type import AvroKind
from include.declare.contract import Column, Contract
from include.declare.wire_format import framed
from include.ground.errors import Terminal


class RecordNotEncodable(Terminal):
    """A line of a file is not a record of the schema; `line` counts from 1."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(
            f"line {line} cannot be written by the schema: {why}; nothing was sent",
            "correct the line, or give the schema that describes it: --schema FILE.avsc",
        )
        self.line = line


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
        """Return a JSON object in the wire format. Raises RecordNotEncodable."""
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
            raise RecordNotEncodable(line, str(error) or type(error).__name__) from error
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
