"""The columns of a release's tables, with their types: they are the same in all versions of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from deltalake import DeltaTable

from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.read.publication import Publication


def columns_of(settings: Settings, publication: Publication) -> dict[str, dict[str, str]]:
    """Return the columns and types of the tables of a publication, by full name; a table that is gone has none."""
    root = warehouse(settings)
    return {name: table_columns(root / table.path) for name, table in publication.tables.items()}


def table_columns(path: Path) -> dict[str, str]:
    """Return the columns of a Delta table with their types, without those that partition it."""
    if not DeltaTable.is_deltatable(str(path)):
        return {}
    table = DeltaTable(str(path))
    partitions, declared = table.metadata().partition_columns, json.loads(table.schema().to_json())
    return {each["name"]: _text(each["type"]) for each in declared["fields"] if each["name"] not in partitions}


def _text(kind: str | Mapping[str, object]) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind, sort_keys=True)
