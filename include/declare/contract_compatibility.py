"""Whether a contract reads the records that a registered schema describes."""

from __future__ import annotations

from collections.abc import Iterator

from include.declare.avro_record import AvroField, SchemaUnusable, avro_record
from include.declare.contract import Column, Contract
from include.ground.schema_registry import AVRO, RegisteredSchema


def unread_parts(contract: Contract, schema: RegisteredSchema) -> list[str]:
    """Return why records of an Avro schema break the contract, one sentence each; empty when they need not."""
    if schema.type != AVRO:
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
