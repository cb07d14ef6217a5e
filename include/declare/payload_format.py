"""A format of payloads: how one is read as a text outside Spark, how a producer writes it, what a contract declares.

Each is a subclass and an entry of `FORMATS` (`payloads.py`). The data plane has a reader of its own for each format
(`spark_jobs/contract/payload_texts.py`), so that an audit does not share its errors.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from include.declare.avro_record import SchemaUnusable
from include.declare.column_type import AvroKind
from include.declare.writer_schemas import HEADER_BYTES, WriterSchemas, framed, schema_id
from include.declare.yaml_declarations import Finding, InvalidValue
from include.ground.errors import Refused
from include.ground.schema_registry import (
    JSON,
    RegisteredSchema,
    RegistryNotSet,
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
TEXT_OF = "payload_text"
"""The function of DuckDB: payload → text, null for bytes that are none."""
FIX_TEXT = "fix_text"
"""The same for a record's fix, which is JSON in any format."""
MISREAD = ValueError, LookupError, EOFError, TypeError, OverflowError, AssertionError, StopIteration, RecursionError
"""What libraries raise for bytes that are no record of the schema."""
Headers = Sequence[Mapping[str, Any]]
"""A record's headers, each with `key` and `value`; the last of a name counts."""
Opened = Callable[[str | None, Headers], str | None]
"""A record's text and headers → the text that is read."""


@dataclass(frozen=True)
class PayloadFormat:
    """JSON, as it is. Another format overrides what differs."""

    name: ClassVar[str] = "json"
    is_translated: ClassVar[bool] = False
    """Whether the data plane makes the JSON that the contract validates, and says why a payload has none."""
    is_framed: ClassVar[bool] = False
    """Whether a payload is in the wire format of a schema registry."""
    has_members: ClassVar[bool] = True
    """Whether a record has members, so that a row may lie in an envelope."""
    is_decoded: ClassVar[bool] = False
    """Whether it is read by the schema that it names, which is kept with the dataset."""
    schema_type: ClassVar[str] = ""
    """The registry's type of the schemas that payloads name."""
    options: ClassVar[Mapping[str, str]] = {}
    """The contract's custom properties about the format, and the fields here that they set."""

    def declared(self, options: Mapping[str, Any]) -> Self:
        """Return the format with these custom properties. Raises InvalidValue."""
        if options:
            raise InvalidValue(f"{', '.join(options)}: is of another format than {self.name}")
        return self

    @property
    def described(self) -> str:
        """The name, with what is declared besides."""
        return self.name

    def findings(self, contract: Contract) -> Iterator[Finding]:
        """Yield what the contract declares that records of the format cannot have."""
        return iter(())

    @property
    def sampled(self) -> PayloadFormat:
        """The format of a line of a file that has the records of the topic, for `headrace try`."""
        return self

    def text(self, value: bytes, schemas: WriterSchemas, columns: Collection[Column] = ()) -> str | None:
        """Return a payload as the JSON that `columns` read; None for bytes that are none."""
        return decoded(value)

    def define_texts(
        self, database: Any, schemas: WriterSchemas, columns: Collection[Column] = (), opened: Opened | None = None
    ) -> None:
        """Define the functions `payload_text` and `fix_text` in a DuckDB database.

        `columns` read the texts. `opened` takes the text of a row out of the text of its envelope.
        """
        for name, payload in ((TEXT_OF, self), (FIX_TEXT, JsonFormat())):
            payload.define(name, database, partial(payload.text, schemas=schemas, columns=columns), opened)

    def define(self, name: str, database: Any, text: Callable[[bytes], str | None], opened: Opened | None) -> None:
        """Define a function of DuckDB that returns the text of a payload, which may need the record's headers."""

        def returned(value: bytes | None, headers: Headers | None) -> str | None:
            found = None if value is None else text(value)
            return found if opened is None or (found is None and value is not None) else opened(found, headers or ())

        kinds = ["blob", "struct(key varchar, value blob)[]"]
        database.create_function(f"{name}_of", returned, kinds, "varchar", null_handling="special")
        given = "null" if opened is None else "headers"
        database.execute(f"create or replace macro {name}(value, headers := null) as {name}_of(value, {given})")

    def encoding(self, settings: Settings, dataset: Dataset, schema: Path | None) -> Encode | None:
        """Register the schema of a dataset's records and return how lines are written by it; None: as they are.

        Raises Refused, RegistryNotSet, RegistryUnreachable, RegistryRefused.
        """
        if schema is not None:
            why = f"its records are {self.name} without a schema"
            raise refused_schema(dataset, why, "the same command without --schema")
        return None

    def unread(self, contract: Contract, schema: RegisteredSchema) -> list[str] | None:
        """Return why records of a registered schema break the contract, one sentence each; None: it is not compared."""
        return None


class JsonFormat(PayloadFormat):
    """JSON, as it is."""

    def define(self, name: str, database: Any, text: Callable[[bytes], str | None], opened: Opened | None) -> None:
        if opened is None:
            database.execute(f"create or replace macro {name}(value, headers := null) as try(decode(value))")
        else:
            super().define(name, database, text, opened)


class FramedFormat(PayloadFormat):
    """A payload in the wire format of a schema registry."""

    is_translated = True
    is_framed = True

    @property
    def sampled(self) -> PayloadFormat:
        return JsonFormat()

    def text(self, value: bytes, schemas: WriterSchemas, columns: Collection[Column] = ()) -> str | None:
        return decoded(value[HEADER_BYTES if schema_id(value) is not None else 0 :])

    def encoding(self, settings: Settings, dataset: Dataset, schema: Path | None) -> Encode:
        registry = schema_registry(settings)
        if registry is None:
            raise RegistryNotSet(f"{dataset.name}: records in the format {self.name} name a registered schema")
        text = self.own_schema(dataset) if schema is None else schema.read_text("utf-8")
        try:
            return self.encoder(registry, subject_of(dataset.pipeline.topic), dataset.contract, text)
        except SchemaUnusable as error:
            raise refused_schema(dataset, f"{schema} {error}") from error

    def own_schema(self, dataset: Dataset) -> str:
        """Return the schema that a contract is itself. Raises Refused."""
        raise refused_schema(dataset, f"its records name a schema of type {self.schema_type}, which a contract is not")

    def encoder(self, registry: SchemaRegistry, subject: str, contract: Contract, schema: str) -> Encode:
        """Register a schema, and return how lines are written by it. Raises SchemaUnusable."""
        raise NotImplementedError


class JsonSchemaFormat(FramedFormat):
    """JSON that names a JSON Schema."""

    name = "json-schema"
    schema_type = JSON

    def encoder(self, registry: SchemaRegistry, subject: str, contract: Contract, schema: str) -> Encode:
        number = registry.register(subject, schema, JSON)
        return lambda _, line: framed(number, line)


class DecodedFormat(FramedFormat):
    """A payload that is read by the schema that it names, which is kept with the dataset."""

    is_decoded = True

    def text(self, value: bytes, schemas: WriterSchemas, columns: Collection[Column] = ()) -> str | None:
        """Return a record as JSON. Bytes are base64 there, but for a column of text the text that they encode."""
        schema = schemas.get(schema_id(value) or -1)
        if schema is None or schema.type != self.schema_type:
            return super().text(value, schemas, columns)
        try:
            record = self.record(value, schema.text)
            for path in paths_read(columns, of_text=True):
                record = as_text(record, path)
            return json.dumps(record, default=self.plain, ensure_ascii=False, separators=(",", ":"))
        except MISREAD:
            return None

    def record(self, value: bytes, schema: str) -> Any:
        """Return what a payload says, in values of JSON and such as `plain` makes them of. Raises MISREAD."""
        raise NotImplementedError

    def plain(self, value: Any) -> Any:
        """Return another value than JSON has as one of JSON."""
        return b64encode(value).decode("ascii")

    def root(self, schema: str) -> Any:
        """Return the record that a schema describes, as an AvroType or what is like one. Raises SchemaUnusable."""
        raise NotImplementedError

    def unread(self, contract: Contract, schema: RegisteredSchema) -> list[str]:
        if schema.type != self.schema_type:
            return [f"the schema is of type {schema.type}, the contract's format is {self.name}"]
        try:
            record = self.root(schema.text)
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


def as_text(value: Any, path: Sequence[str | None]) -> Any:
    """Return a value in which the bytes at a path are the text that they encode."""
    if not path:
        return value.decode() if isinstance(value, bytes) else value
    if isinstance(value, list) and path[0] is None:
        return [as_text(each, path[1:]) for each in value]
    if isinstance(value, dict):
        return {name: as_text(each, path[1:]) if path[0] in (None, name) else each for name, each in value.items()}
    return value


def paths_read(columns: Collection[Column], *, of_text: bool) -> Iterator[tuple[str | None, ...]]:
    """Yield the path of each value that a column reads: names of fields, and None for each element of an array.

    `of_text`: the values whose bytes a column reads as a text; else those that it reads as bytes, which JSON has as
    base64.
    """
    for column in columns:
        path = column.path or (None,)
        if not column.fields and column.kind.is_base64 != of_text:
            yield path
        yield from ((*path, *inner) for inner in paths_read(column.fields, of_text=of_text))


def decoded(value: bytes) -> str | None:
    """Return bytes as text, None when they are none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def unencodable(line: int, why: object, suffix: str) -> Refused:
    """Return the error of a line of JSON that no schema in a file of this suffix describes."""
    what = f"line {line} cannot be written by the schema: {why}; nothing was sent"
    remedy = f"correct the line, or give the schema that describes it: --schema FILE.{suffix}"
    return Refused(what, remedy, code="record-not-encodable", line=line)


def refused_schema(dataset: Dataset, why: str, remedy: str = "give one with --schema FILE") -> Refused:
    """Return the error of a schema by which a dataset's records cannot be written."""
    return Refused(f"{dataset.name}: {why}; nothing was sent", remedy, code="schema-refused", dataset=dataset.name)
