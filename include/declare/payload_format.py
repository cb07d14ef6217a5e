"""A format of payloads: how one is read as a text outside Spark, how a producer writes it, what a contract declares.

Each is a subclass and an entry of `FORMATS` (`payloads.py`). The data plane has a reader of its own for each format
(`spark_jobs/contract/payload_texts.py`), so that an audit does not share its errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

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
Opened = Callable[[str], str | None]


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
    """The registry's type of the schemas by which payloads are decoded."""
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
        """Define a function of DuckDB that returns the text of a payload."""

        def returned(value: bytes | None) -> str | None:
            found = None if value is None else text(value)
            return found if opened is None or found is None else opened(found)

        database.create_function(name, returned, ["blob"], "varchar", null_handling="special")

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
            database.execute(f"create or replace macro {name}(value) as try(decode(value))")
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
        return self._encoding(registry, subject_of(dataset.pipeline.topic), dataset, schema)

    def _encoding(self, registry: SchemaRegistry, subject: str, dataset: Dataset, schema: Path | None) -> Encode:
        raise NotImplementedError


class JsonSchemaFormat(FramedFormat):
    """JSON that names a JSON Schema."""

    name = "json-schema"

    def _encoding(self, registry: SchemaRegistry, subject: str, dataset: Dataset, schema: Path | None) -> Encode:
        if schema is None:
            raise refused_schema(dataset, "its records name a JSON Schema, which a contract is not")
        number = registry.register(subject, schema.read_text("utf-8"), JSON)
        return lambda _, line: framed(number, line)


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


def refused_schema(dataset: Dataset, why: str, remedy: str = "give one with --schema FILE") -> Refused:
    """Return the error of a schema by which a dataset's records cannot be written."""
    return Refused(f"{dataset.name}: {why}; nothing was sent", remedy, code="schema-refused", dataset=dataset.name)
