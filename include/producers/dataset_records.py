"""How a dataset's records are written: as the lines of a file, or by a schema that is registered first."""

from __future__ import annotations

from pathlib import Path

from include.declare.avro_record import SchemaUnusable, avro_record
from include.declare.dataset import Dataset
from include.declare.payload_format import AVRO, JSON
from include.declare.record_encoding import avro_encoding, contract_schema
from include.declare.wire_format import framed
from include.ground.errors import Terminal
from include.ground.schema_registry import AVRO as AVRO_TYPE
from include.ground.schema_registry import JSON as JSON_TYPE
from include.ground.schema_registry import RegistryNotSet, SchemaRegistry, schema_registry, subject_of
from include.ground.settings import Settings
from include.producers.file_records import Encode


class SchemaRefused(Terminal):
    """A file is not a schema for a dataset's records."""

    def __init__(self, dataset: str, why: str, remedy: str = "give one with --schema FILE") -> None:
        super().__init__(f"{dataset}: {why}; nothing was sent", remedy)
        self.dataset = dataset


def dataset_encoding(settings: Settings, dataset: Dataset, schema: Path | None) -> Encode | None:
    """Register the schema of a dataset's records and return how lines are written by it; None: as they are.

    The default is the contract's schema. Raises SchemaRefused, RegistryNotSet, RegistryUnreachable, RegistryRefused.
    """
    name, form = dataset.name, dataset.contract.format
    if form == JSON:
        if schema is not None:
            raise SchemaRefused(name, "its records are JSON without a schema", "the same command without --schema")
        return None
    registry, subject = schema_registry(settings), subject_of(dataset.pipeline.topic)
    if registry is None:
        raise RegistryNotSet(f"{name}: records in the format {form} name a registered schema")
    return _avro(registry, subject, dataset, schema) if form == AVRO else _json(registry, subject, name, schema)


def _avro(registry: SchemaRegistry, subject: str, dataset: Dataset, schema: Path | None) -> Encode:
    text = contract_schema(dataset.contract) if schema is None else schema.read_text("utf-8")
    try:
        avro_record(text)
    except SchemaUnusable as error:
        raise SchemaRefused(dataset.name, f"{schema} {error}") from error
    return avro_encoding(dataset.contract, text, registry.register(subject, text, AVRO_TYPE)).encoded


def _json(registry: SchemaRegistry, subject: str, name: str, schema: Path | None) -> Encode:
    if schema is None:
        raise SchemaRefused(name, "its records name a JSON Schema, which a contract is not")
    number = registry.register(subject, schema.read_text("utf-8"), JSON_TYPE)
    return lambda _, line: framed(number, line)
