"""The columns of a published table: type, what each is computed from, and the fields of the record behind it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from include.declare.column_lineage import dataset_columns, derived_lineage, described_columns
from include.declare.column_origins import TableColumns
from include.declare.dataset import IsDerived, ReleaseUnknown
from include.declare.derived_dataset import DerivedDataset, released_derived
from include.ground.settings import Settings
from include.read.publication import PublishedTable
from include.read.published_tables import PinnedTables
from include.serve.dataset_view import release_of
from include.serve.query_view import QueryRows


@dataclass(frozen=True)
class ColumnLine:
    """A column with its Arrow type; the platform's own columns of gold have no origin."""

    name: str
    type: str
    computed_from: str
    fields: str


def column_lines(
    settings: Settings, reading: PinnedTables, table: PublishedTable, preview: QueryRows
) -> list[ColumnLine]:
    """Return the columns of a table as its release declares them; `preview` has their names and types."""
    origins = described_columns(release_columns(settings, reading, table), table.name)
    types = zip(preview.columns, preview.types, strict=True)
    return [ColumnLine(name, kind, *origins.get(name, ("", ""))) for name, kind in types]


def release_columns(settings: Settings, reading: PinnedTables, table: PublishedTable) -> Mapping[str, TableColumns]:
    """Return the origins of the columns of a table's release, and of the releases that it reads.

    Empty without the release's snapshot.
    """
    with suppress(ReleaseUnknown):
        try:
            return dataset_columns(release_of(settings, table.dataset, table.release))
        except IsDerived:
            derived = released_derived(settings, table.dataset, table.release)
            return _derived_columns(settings, reading, derived)
    return {}


def _derived_columns(settings: Settings, reading: PinnedTables, derived: DerivedDataset) -> dict[str, TableColumns]:
    found = dict[str, TableColumns]()
    for source in sorted(set(derived.pipeline.sources.values()) & set(reading.tables)):
        found |= release_columns(settings, reading, reading.table(source))
    return found | derived_lineage(derived, {name: list(each.columns) for name, each in found.items()})
