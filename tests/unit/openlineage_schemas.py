"""The JSON Schemas of OpenLineage 2-0-2, without descriptions (Apache License 2.0), and what they say of an event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

SCHEMAS = json.loads(Path(__file__).with_name("openlineage_schemas.json").read_text("utf-8"))


def _schema(address: str) -> Any:
    return Resource.from_contents(SCHEMAS[address.partition("#")[0].rpartition("/")[2]])


REGISTRY: Any = Registry(retrieve=_schema)  # type: ignore[call-arg]


def schema_problems(event: dict[str, Any]) -> list[str]:
    """Return what is wrong with an event by its own schema, and with each facet by the facet's."""
    parts = [("event", event["schemaURL"], event), *_facets(event)]
    return [
        f"{event['job']['name']}: {name}: {error.message[:200]}"
        for name, address, value in parts
        for error in Draft202012Validator({"$ref": address}, registry=REGISTRY).iter_errors(value)
    ]


def _facets(event: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    owners = [event["job"], event.get("run", {}), *event["inputs"], *event["outputs"]]
    for owner in owners:
        for kind in ("facets", "inputFacets", "outputFacets"):
            for name, facet in owner.get(kind, {}).items():
                yield name, facet["_schemaURL"], facet
