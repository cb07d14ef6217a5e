"""The JSON Schemas of OpenLineage 2-0-2, without descriptions (Apache License 2.0), and what they say of an event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry

SCHEMAS = json.loads(Path(__file__).with_name("openlineage_schemas.json").read_text("utf-8"))


REGISTRY: Any = Registry().with_contents((schema["$id"], schema) for schema in SCHEMAS.values()).crawl()


def schema_problems(event: dict[str, Any]) -> list[str]:
    """Return what is wrong with an event by its own schema, and with each facet by the facet's."""
    parts = [("event", event["schemaURL"], event), *_facets(event)]
    return [
        f"{event['job']['name']}: {name}: {problem}"
        for name, address, value in parts
        for problem in _problems(address, json.dumps(value, sort_keys=True))
    ]


@cache
def _problems(address: str, text: str) -> list[str]:
    """Return what is wrong with a value, as JSON: most facets are those of the event before."""
    found = Draft202012Validator({"$ref": address}, registry=REGISTRY).iter_errors(json.loads(text))
    return [error.message[:200] for error in found]


def _facets(event: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    owners = [event["job"], event.get("run", {}), *event["inputs"], *event["outputs"]]
    for owner in owners:
        for kind in ("facets", "inputFacets", "outputFacets"):
            for name, facet in owner.get(kind, {}).items():
                yield name, facet["_schemaURL"], facet
