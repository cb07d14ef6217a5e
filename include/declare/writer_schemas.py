"""The schemas by which a dataset's records were written, and the wire format in which a record names one.

They are one list, next to bronze, for all releases. A schema is added when a record first names it, before that record
is validated, and is never removed. So a replay, a rebuild or an audit reads the record as the stream did, without the
registry. An id unknown to the registry is listed too; a later line adds the schema once the registry has it. One line
per schema; an incomplete last line counts as not written. (adr-0003)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from include.ground.durable_files import appending
from include.ground.errors import Terminal
from include.ground.paths import writer_schemas_path
from include.ground.schema_registry import UNKNOWN_TYPE, RegisteredSchema
from include.ground.settings import Settings

WriterSchemas = Mapping[int, RegisteredSchema]
"""By id."""


def known_schemas(settings: Settings, dataset: str, until: int | None = None) -> WriterSchemas:
    """Return the schemas of the list's first `until` bytes, of all by default. Raises Terminal."""
    path = writer_schemas_path(settings, dataset)
    content = path.read_bytes()[:until] if path.exists() else b""
    found: dict[int, RegisteredSchema] = {}
    for number, line in enumerate(content[: _whole_lines(content)].splitlines(), 1):
        schema = _read(path, number, line)
        if adds_schema(found, schema):
            found[schema.id] = schema
    return found


def adds_schema(known: WriterSchemas, schema: RegisteredSchema) -> bool:
    """Return whether the id is new, or known without a schema that is available now."""
    kept = known.get(schema.id)
    return kept is None or (kept.type == UNKNOWN_TYPE and schema.type != UNKNOWN_TYPE)


def schemas_size(settings: Settings, dataset: str) -> int:
    """Return the current size of the list in bytes; lines are only appended."""
    path = writer_schemas_path(settings, dataset)
    return _whole_lines(path.read_bytes()) if path.exists() else 0


def keep_schemas(settings: Settings, dataset: str, schemas: Iterable[RegisteredSchema]) -> None:
    """Add the schemas that the list does not have, durably."""
    with appending(writer_schemas_path(settings, dataset)) as file:
        known = known_schemas(settings, dataset)
        file.truncate(schemas_size(settings, dataset))
        for schema in schemas:
            if adds_schema(known, schema):
                file.write(f"{json.dumps({'id': schema.id, 'type': schema.type, 'schema': schema.text})}\n".encode())


def _whole_lines(content: bytes) -> int:
    """Return the end of the last complete line."""
    return content.rfind(b"\n") + 1


def _read(path: Path, number: int, line: bytes) -> RegisteredSchema:
    try:
        found = json.loads(line)
        return RegisteredSchema(int(found["id"]), str(found["type"]), str(found["schema"]))
    except (ValueError, KeyError, TypeError) as error:
        why = f"{path}: line {number} is not a schema ({type(error).__name__}: {error}); no record was validated"
        remedy = "restore the file from a backup; without it, records are read with the registry's current schemas"
        raise Terminal(why, remedy, code="writer-schemas-unreadable", line=number) from error


MAGIC = b"\x00"
HEADER_BYTES = 5


def framed(schema: int, payload: bytes) -> bytes:
    """Return a payload in the wire format."""
    return MAGIC + schema.to_bytes(4, "big") + payload


def schema_id(value: bytes | None) -> int | None:
    """Return the id that a value names; None when it is not in the wire format."""
    if value is None or len(value) < HEADER_BYTES or value[:1] != MAGIC:
        return None
    return int.from_bytes(value[1:HEADER_BYTES], "big")
