"""The schemas by which records were written: kept before records are validated, so later runs need no registry.

Reads: files with the columns of bronze, the dataset's list of schemas, the registry for ids that the list lacks.
Writes: the list (include/declare/writer_schemas.py).
Guarantee: records that are validated again with the same length of the list are read the same way.
After a crash: a schema that was added stays.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from include.declare.dataset import Dataset
from include.declare.payload_format import AVRO
from include.declare.writer_schemas import WriterSchemas, keep_schemas, known_schemas, schemas_size
from include.ground.errors import Terminal
from include.ground.schema_registry import (
    UNKNOWN_TYPE,
    RegisteredSchema,
    RegistryNotSet,
    RegistryRefused,
    RegistryUnreachable,
    schema_registry,
)
from include.ground.settings import Settings
from spark_jobs.contract.payload_texts import PayloadTexts
from spark_jobs.tables.duckdb_session import duckdb_session

MOST_QUERIED = 100
"""Ids of one run that the registry is queried for, the smallest first: damaged records name any of 2^32."""
FEW = 32
"""Up to this number, all schemas are part of the query, which is then the same for every run."""


class SchemaReplaced(Terminal):
    """The registry gives `id` another schema than the one by which records were read."""

    def __init__(self, dataset: str, number: int, url: str) -> None:
        super().__init__(
            f"{dataset}: the registry at {url} has another schema {number} than the one by which records were read;"
            " records wait in bronze, nothing is lost",
            "set HEADRACE_SCHEMA_REGISTRY_URL to the registry of the topic's producers; a new one needs a new topic",
        )
        self.dataset, self.id = dataset, number


@dataclass(frozen=True)
class PayloadSchemas:
    """The schemas of a dataset's records; without `learns` the registry is never queried.

    `verified`: the ids that this process has compared with the registry, once each.
    """

    settings: Settings
    dataset: Dataset
    learns: bool = True
    verified: set[int] = field(default_factory=set)

    def learn(self, records: Sequence[Path]) -> int:
        """Keep the schemas of ids that are new in these files; return the length of the list in bytes.

        An id that the registry does not know is noted as unknown, and stays so until the registry knows it. Raises
        RegistryNotSet, RegistryUnreachable, RegistryRefused, SchemaReplaced; nothing is validated then.
        """
        if self.dataset.contract.format != AVRO:
            return 0
        if self.learns and records:
            known = known_schemas(self.settings, self.dataset.name)
            numbers = [number for number in _schema_ids(records, known) if number not in self.verified]
            self._verify([known[number] for number in numbers if number in known])
            self._keep([number for number in numbers if number not in known])
        return schemas_size(self.settings, self.dataset.name)

    def _verify(self, kept: Sequence[RegisteredSchema]) -> None:
        """Compare kept schemas with the registry's; if it does not answer, or knows none of them, nothing changes."""
        registry = schema_registry(self.settings)
        if registry is None:
            return
        with suppress(RegistryUnreachable, RegistryRefused):
            for schema in kept:
                found = registry.schema(schema.id)
                if found is not None and schema.type == UNKNOWN_TYPE:
                    keep_schemas(self.settings, self.dataset.name, [found])
                elif found is not None and not _is_same(found, schema):
                    raise SchemaReplaced(self.dataset.name, schema.id, registry.url)
        self.verified.update(schema.id for schema in kept if schema.type != UNKNOWN_TYPE)

    def _keep(self, fresh: Sequence[int]) -> None:
        if not fresh:
            return
        registry = schema_registry(self.settings)
        if registry is None:
            numbers = ", ".join(map(str, fresh[:5]))
            raise RegistryNotSet(f"{self.dataset.name}: records were written with schemas that are not kept: {numbers}")
        found = [registry.schema(number) or RegisteredSchema(number, UNKNOWN_TYPE, "") for number in fresh]
        keep_schemas(self.settings, self.dataset.name, found)
        self.verified.update(schema.id for schema in found if schema.type != UNKNOWN_TYPE)

    def texts(self, records: Sequence[Path], until: int) -> PayloadTexts:
        """Return how these records are read by the list's first `until` bytes."""
        contract = self.dataset.contract
        if contract.format != AVRO:
            return PayloadTexts(contract)
        listed = known_schemas(self.settings, self.dataset.name, until)
        known = {number: schema for number, schema in listed.items() if schema.type != UNKNOWN_TYPE}
        numbers = known.keys() if len(known) <= FEW else known.keys() & set(_schema_ids(records, known))
        return PayloadTexts(contract, tuple(known[number] for number in sorted(numbers)))


def _is_same(found: RegisteredSchema, kept: RegisteredSchema) -> bool:
    return found.text == kept.text or json.loads(found.text) == json.loads(kept.text)


def _schema_ids(records: Sequence[Path], known: WriterSchemas) -> list[int]:
    """Return the ids that records name: the known ones, and of the others the smallest MOST_QUERIED."""
    with duckdb_session() as duck:
        duck.view_columns("records", records, ["value"])
        listed = ", ".join(map(str, [-1, *known]))
        found = duck.rows(SCHEMA_IDS.format(known=listed, most=MOST_QUERIED + len(known)))
    return [number for (number,) in found]


SCHEMA_IDS = """
select distinct ('0x' || hex(array_slice(value, 2, 5)))::bigint as id
from records
where octet_length(value) >= 5 and array_slice(value, 1, 1) = '\\x00'::blob
order by id in ({known}) desc, id
limit {most}
"""
