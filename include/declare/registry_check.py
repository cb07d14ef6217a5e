"""Checks whether a contract reads the records that producers write with the latest registered schema."""

from __future__ import annotations

from include.declare.contract_compatibility import unread_parts
from include.declare.dataset import Dataset
from include.declare.payload_format import AVRO, JSON
from include.ground.schema_registry import (
    RegistryRefused,
    RegistryUnreachable,
    SchemaRegistry,
    schema_registry,
    subject_of,
)
from include.ground.settings import Settings

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
