"""Payloads as texts, outside Spark: for display, and for DuckDB.

Decoded by another library than the data plane's, so that an audit does not share its errors.
"""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Collection, Iterable
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

from include.declare.contract import Column
from include.declare.wire_format import HEADER_BYTES, schema_id
from include.declare.writer_schemas import WriterSchemas
from include.ground.schema_registry import AVRO as AVRO_TYPE
from include.ground.schema_registry import RegisteredSchema

TEXT_OF = "payload_text"
"""The function of DuckDB: payload → text, null for bytes that are none."""


def payload_text(value: bytes | None, schemas: WriterSchemas, texts: Collection[str] = ()) -> str | None:
    """Return a payload as text: Avro by its schema as JSON, other text as it is; None for bytes that are neither.

    Bytes are base64 in JSON, those of the fields `texts` the text that they encode.
    """
    number = schema_id(value)
    if value is None:
        return None
    try:
        if number is None:
            return value.decode()
        schema = schemas.get(number)
        return (
            value[HEADER_BYTES:].decode() if schema is None or schema.type != AVRO_TYPE else _json(value, schema, texts)
        )
    except UnicodeDecodeError:
        return None


def shown_payload(value: bytes | None, schemas: WriterSchemas) -> bytes | None:
    """Return a payload for display: Avro as JSON if it can be decoded, else its bytes unchanged."""
    schema = schemas.get(schema_id(value) or -1)
    if value is None or schema is None or schema.type != AVRO_TYPE:
        return value
    text = _json(value, schema)
    return value if text is None else text.encode()


def define_payload_text(database: Any, schemas: WriterSchemas, is_framed: bool, columns: Iterable[Column] = ()) -> None:
    """Define the function `payload_text` in a DuckDB database: for JSON, of DuckDB's own; for the wire format, ours.

    `columns`: those that read the payloads' fields.
    """
    texts = frozenset(column.member for column in columns if not column.kind.is_base64)
    if not is_framed:
        database.execute(f"create or replace macro {TEXT_OF}(value) as try(decode(value))")
        return

    def text(value: bytes) -> str | None:
        return payload_text(value, schemas, texts)

    database.create_function(TEXT_OF, text, ["blob"], "varchar")


def _json(value: bytes, schema: RegisteredSchema, texts: Collection[str] = ()) -> str | None:
    """Return a record in the wire format as JSON; None when its schema does not describe it."""
    import fastavro

    payload = io.BytesIO(value)
    payload.seek(HEADER_BYTES)
    try:
        record = fastavro.schemaless_reader(payload, _parsed(schema.text), None)
    except (ValueError, KeyError, IndexError, EOFError, TypeError, OverflowError, AssertionError, StopIteration):
        return None
    if payload.read(1):
        return None
    if isinstance(record, dict):
        record |= {name: found.decode() for name in texts if isinstance(found := record.get(name), bytes)}
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
