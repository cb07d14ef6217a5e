"""The formats of payloads, how a contract declares one, and what the registry says about the schema of a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from include.declare.avro_payloads import AvroFormat
from include.declare.line_payloads import CsvFormat, TextFormat
from include.declare.payload_format import JsonFormat, JsonSchemaFormat, PayloadFormat
from include.declare.protobuf_payloads import ProtobufFormat
from include.declare.writer_schemas import WriterSchemas, schema_id
from include.declare.yaml_declarations import Declared, shown
from include.ground.schema_registry import (
    RegistryRefused,
    RegistryUnreachable,
    SchemaRegistry,
    schema_registry,
    subject_of,
)
from include.ground.settings import Settings

if TYPE_CHECKING:
    from include.declare.dataset import Dataset

FORMATS: dict[str, PayloadFormat] = {
    each.name: each
    for each in (JsonFormat(), AvroFormat(), JsonSchemaFormat(), ProtobufFormat(), TextFormat(), CsvFormat())
}
"""The formats of payloads by the name that a contract gives them."""
DECODED = {each.schema_type: each for each in FORMATS.values() if each.is_decoded}


def _known_format(value: Any) -> Any:
    if value not in FORMATS:
        raise ValueError(f"must be one of {', '.join(FORMATS)}, is {shown(value)}")
    return value


class DeclaredFormat(Declared):
    """The custom property `format` of a contract's record."""

    property: Literal["format"]
    value: Annotated[str, BeforeValidator(_known_format)]


class FormatOption(Declared):
    """How lines of CSV are written."""

    property: Literal["delimiter", "quote", "nullText", "fields"]
    value: str | list[str]


def declared_format(properties: Iterable[Any]) -> PayloadFormat:
    """Return the format that a record's custom properties declare. Raises InvalidValue."""
    found, names, options = list(properties), [JsonFormat.name], dict[str, Any]()
    for each in found:
        if isinstance(each, DeclaredFormat):
            names.append(each.value)
        elif isinstance(each, FormatOption):
            options[each.property] = each.value if isinstance(each.value, str) else tuple(each.value)
    return FORMATS[names[-1]].declared(options)


def shown_payload(value: bytes | None, schemas: WriterSchemas) -> bytes | None:
    """Return a payload for display: as JSON if a schema decodes it, else its bytes unchanged."""
    schema = schemas.get(schema_id(value) or -1)
    if value is None or schema is None or schema.type not in DECODED:
        return value
    text = DECODED[schema.type].text(value, schemas)
    return value if text is None else text.encode()


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
