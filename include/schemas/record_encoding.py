"""Records of a user's file, JSON objects, in a dataset's format: Avro by a schema, in the wire format of a registry."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

from include.catalog.contract import Column, Contract
from include.errors import Terminal
from include.schemas.avro_record import BYTES, DATE, DECIMAL, FLOAT, TIMESTAMP, avro_record
from include.schemas.wire_format import framed

TYPES: dict[str, Any] = {
    "string": "string",
    "integer": "int",
    "boolean": "boolean",
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}


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
    kind = TYPES.get(column.type) or {
        **{"type": "bytes", "logicalType": "decimal"},
        **{"precision": column.precision, "scale": column.scale},
    }
    if column.required:
        return {"name": column.member, "type": kind}
    return {"name": column.member, "type": ["null", kind], "default": None}


@dataclass(frozen=True)
class AvroEncoding:
    """Writes JSON objects by a schema with its id in the registry."""

    schema: str
    id: int
    kinds: dict[str, str] = field(default_factory=dict)

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
            values = {name: _value(name, self.kinds[name], value) for name, value in given.items()}
            fastavro.schemaless_writer(out, self._parsed, values, strict_allow_default=True)
        except (ValueError, TypeError, ArithmeticError, AttributeError, OverflowError) as error:
            raise RecordNotEncodable(line, str(error) or type(error).__name__) from error
        return framed(self.id, out.getvalue())

    @cached_property
    def _parsed(self) -> Any:
        import fastavro

        return fastavro.parse_schema(json.loads(self.schema))


def avro_encoding(schema: str, number: int) -> AvroEncoding:
    """Return the encoding by a schema. Raises SchemaUnusable."""
    return AvroEncoding(schema, number, {field.name: field.kind for field in avro_record(schema).fields})


FROM_JSON: dict[str, Callable[[Any], Any]] = {
    TIMESTAMP: datetime.fromisoformat,
    DATE: date.fromisoformat,
    DECIMAL: Decimal,
    FLOAT: float,
    BYTES: str.encode,
}


def _value(name: str, kind: str, value: Any) -> Any:
    """Return a JSON value as a value of the schema's field. Raises ValueError that names the field."""
    if value is None or kind not in FROM_JSON:
        return value
    try:
        return FROM_JSON[kind](value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{name} is {json.dumps(value, default=str)[:60]}, no {kind}") from error
