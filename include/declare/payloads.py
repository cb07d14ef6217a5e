"""What a record's bytes are: one class for each format of payloads, and the schemas by which records were written.

A format says whether a payload names a schema of a registry, how it is read as a text outside Spark, and how a producer
writes it. Avro is decoded by another library than the data plane's (`spark_jobs/contract/payload_texts.py`), so that an
audit does not share its errors.

The schemas by which a dataset's records were written are one list, next to bronze, for all releases. A schema is added
when a record first names it, before that record is validated, and is never removed. So a replay, a rebuild or an audit
reads the record as the stream did, without the registry. An id unknown to the registry is listed too; a later line adds
the schema once the registry has it. One line per schema; an incomplete last line counts as not written. (adr-0003)
"""

from __future__ import annotations

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from include.declare.avro_record import AvroField, SchemaUnusable, avro_record
from include.declare.column_type import AvroKind
from include.ground.durable_files import appending
from include.ground.errors import Refused, Terminal
from include.ground.paths import writer_schemas_path
from include.ground.schema_registry import (
    AVRO,
    JSON,
    UNKNOWN_TYPE,
    RegisteredSchema,
    RegistryNotSet,
    RegistryRefused,
    RegistryUnreachable,
    SchemaRegistry,
    schema_registry,
    subject_of,
)
from include.ground.settings import Settings

if TYPE_CHECKING:
    from include.declare.contract import Column, Contract
    from include.declare.dataset import Dataset

Encode = Callable[[int, bytes], bytes]
"""The number of a line and the line → the record's value."""
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


TEXT_OF = "payload_text"
"""The function of DuckDB: payload → text, null for bytes that are none."""


def payload_text(value: bytes | None, schemas: WriterSchemas, texts: Collection[str] = ()) -> str | None:
    """Return a payload as text: Avro by its schema as JSON, other text as it is; None for bytes that are neither.

    Bytes are base64 in JSON, those of the fields `texts` the text that they encode.
    """
    number = schema_id(value)
    if value is None:
        return None
    schema = schemas.get(number or -1)
    if schema is not None and schema.type == AVRO:
        return _json(value, schema, texts)
    try:
        return value[HEADER_BYTES if number is not None else 0 :].decode()
    except UnicodeDecodeError:
        return None


def shown_payload(value: bytes | None, schemas: WriterSchemas) -> bytes | None:
    """Return a payload for display: Avro as JSON if it can be decoded, else its bytes unchanged."""
    schema = schemas.get(schema_id(value) or -1)
    text = _json(value, schema) if value is not None and schema is not None and schema.type == AVRO else None
    return value if text is None else text.encode()


def define_payload_text(
    database: Any,
    schemas: WriterSchemas,
    is_framed: bool,
    columns: Iterable[Column] = (),
    opened: Callable[[str], str | None] | None = None,
) -> None:
    """Define the function `payload_text` in a DuckDB database: for JSON, of DuckDB's own; else ours.

    `columns`: those that read the payloads' fields. `opened`: how a text in an envelope becomes the one that is read.
    """
    texts = frozenset(column.member for column in columns if not column.kind.is_base64)
    if not is_framed and opened is None:
        database.execute(f"create or replace macro {TEXT_OF}(value) as try(decode(value))")
        return

    def text(value: bytes | None) -> str | None:
        found = payload_text(value, schemas, texts)
        return found if opened is None or found is None else opened(found)

    database.create_function(TEXT_OF, text, ["blob"], "varchar", null_handling="special")


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


class PayloadFormat:
    """JSON, as it is. Another format overrides what differs, and is an entry of FORMATS."""

    name = "json"
    is_framed = False
    """Whether a payload is in the wire format of a schema registry."""
    is_decoded = False
    """Whether it is read by the schema that it names, which is kept with the dataset."""

    def encoding(self, settings: Settings, dataset: Dataset, schema: Path | None) -> Encode | None:
        """Register the schema of a dataset's records and return how lines are written by it; None: as they are.

        Raises Refused, RegistryNotSet, RegistryUnreachable, RegistryRefused.
        """
        if schema is not None:
            raise _refused(dataset, "its records are JSON without a schema", "the same command without --schema")
        return None

    def unread(self, contract: Contract, schema: RegisteredSchema) -> list[str] | None:
        """Return why records of a registered schema break the contract, one sentence each; None: it is not compared."""
        return None


class _Framed(PayloadFormat):
    is_framed = True

    def encoding(self, settings: Settings, dataset: Dataset, schema: Path | None) -> Encode:
        registry = schema_registry(settings)
        if registry is None:
            raise RegistryNotSet(f"{dataset.name}: records in the format {self.name} name a registered schema")
        return self._encoding(registry, subject_of(dataset.pipeline.topic), dataset, schema)

    def _encoding(self, registry: SchemaRegistry, subject: str, dataset: Dataset, schema: Path | None) -> Encode:
        if schema is None:
            raise _refused(dataset, "its records name a JSON Schema, which a contract is not")
        number = registry.register(subject, schema.read_text("utf-8"), JSON)
        return lambda _, line: framed(number, line)


class JsonSchemaFormat(_Framed):
    """JSON that names a JSON Schema."""

    name = "json-schema"


class AvroFormat(_Framed):
    """Avro, by default written by the contract's own schema."""

    name = "avro"
    is_decoded = True

    def _encoding(self, registry: SchemaRegistry, subject: str, dataset: Dataset, schema: Path | None) -> Encode:
        text = contract_schema(dataset.contract) if schema is None else schema.read_text("utf-8")
        try:
            avro_record(text)
        except SchemaUnusable as error:
            raise _refused(dataset, f"{schema} {error}") from error
        return avro_encoding(dataset.contract, text, registry.register(subject, text)).encoded

    def unread(self, contract: Contract, schema: RegisteredSchema) -> list[str]:
        if schema.type != AVRO:
            return [f"the schema is of type {schema.type}, the contract's format is {self.name}"]
        try:
            fields = {field.name: field for field in avro_record(schema.text).fields}
        except SchemaUnusable as error:
            return [f"the schema {error}"]
        return [why for column in contract.columns for why in _unread(column, fields.get(column.member))]


def _refused(dataset: Dataset, why: str, remedy: str = "give one with --schema FILE") -> Refused:
    return Refused(f"{dataset.name}: {why}; nothing was sent", remedy, code="schema-refused", dataset=dataset.name)


FORMATS = {each.name: each for each in (PayloadFormat(), AvroFormat(), JsonSchemaFormat())}
"""The formats of payloads by the name that a contract gives them."""


def _unread(column: Column, field: AvroField | None) -> Iterator[str]:
    if field is None:
        if column.required:
            yield f"{column.name} is required, and the schema has no field {column.member}"
    elif not field.is_readable or field.kind not in column.kind.avro_kinds:
        yield f"{column.name} is of type {column.type_text}, and field {field.name} of the schema is {field.kind}"


NOT_SET = "the schema registry was not checked: HEADRACE_SCHEMA_REGISTRY_URL is not set"


def registry_check(settings: Settings, dataset: Dataset) -> tuple[list[str], str]:
    """Return why records of the latest schema of the topic's subject break the contract, and what was checked.

    A registry that does not answer, or is not set, is not a problem of the contract, and is named.
    """
    if not dataset.contract.payload.is_framed:
        return [], ""
    try:
        registry = schema_registry(settings)
        return ([], NOT_SET) if registry is None else _checked(registry, dataset)
    except (RegistryUnreachable, RegistryRefused) as error:
        return [], f"the schema registry was not checked: {error.what}"


def _checked(registry: SchemaRegistry, dataset: Dataset) -> tuple[list[str], str]:
    subject = subject_of(dataset.pipeline.topic)
    latest, level = registry.latest(subject), registry.compatibility(subject)
    if latest is None:
        return [], f"registry: subject {subject} has no schema yet (compatibility {level})"
    about = f"registry: subject {subject}, version {latest.version}, schema {latest.id} (compatibility {level})"
    unread = dataset.contract.payload.unread(dataset.contract, latest)
    if unread is None:
        return [], f"{about}: not compared, since every JSON record is validated by the contract"
    file = dataset.folder / "contract.yaml"
    problems = [f"{file}: {why} ({about})" for why in unread]
    return problems, about if problems else f"{about}: the contract reads it"
