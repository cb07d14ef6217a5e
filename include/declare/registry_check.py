"""Checks whether a contract reads the records that producers write with the latest registered schema."""

from __future__ import annotations

from collections.abc import Iterator

from include.declare.avro_record import AvroField, SchemaUnusable, avro_record
from include.declare.contract import AVRO, JSON, Column, Contract
from include.declare.dataset import Dataset
from include.ground.schema_registry import AVRO as AVRO_SCHEMA
from include.ground.schema_registry import (
    RegisteredSchema,
    RegistryRefused,
    RegistryUnreachable,
    SchemaRegistry,
    schema_registry,
    subject_of,
)
from include.ground.settings import Settings


def unread_parts(contract: Contract, schema: RegisteredSchema) -> list[str]:
    """Return why records of an Avro schema break the contract, one sentence each; empty when they need not."""
    if schema.type != AVRO_SCHEMA:
        return [f"the schema is of type {schema.type}, the contract's format is {contract.format}"]
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


NOT_SET = "the schema registry was not checked: HEADRACE_SCHEMA_REGISTRY_URL is not set"


def registry_check(settings: Settings, dataset: Dataset) -> tuple[list[str], str]:
    """Return why records of the latest schema of the topic's subject break the contract, and what was checked.

    A registry that does not answer, or is not set, is not a problem of the contract, and is named.
    """
    if dataset.contract.format == JSON:
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
    if dataset.contract.format != AVRO:
        return [], f"{about}: not compared, since every JSON record is validated by the contract"
    file = dataset.folder / "contract.yaml"
    problems = [f"{file}: {why} ({about})" for why in unread_parts(dataset.contract, latest)]
    return problems, about if problems else f"{about}: the contract reads it"
