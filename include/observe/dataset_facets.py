"""The facets of a dataset in an event: its type, version and columns, and the origins of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    datasource_dataset,
    documentation_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    storage_dataset,
    symlinks_dataset,
)
from openlineage.client.naming.dataset import LocalFileSystem

from include.declare.column_origins import DIRECT, Origins, TableColumns, Use
from include.observe.event_naming import TOPIC, EventNaming

Facets = dict[str, Any]
Assertion = data_quality_assertions_dataset.Assertion


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a schema."""

    name: str
    type: str = ""
    about: str = ""


@dataclass(frozen=True)
class TableFacts:
    """What an event contains about a topic or table besides its name; what is not known is None or empty.

    `rows`: those that the run read or wrote. `path`: the folder of its files.
    """

    version: int | None = None
    rows: int | None = None
    path: Path | None = None
    schema: Sequence[ColumnFacts] = ()
    about: str = ""
    assertions: Sequence[Assertion] = ()


NOTHING_KNOWN = TableFacts()


def input_dataset(naming: EventNaming, name: str, facts: TableFacts) -> InputDataset:
    """Return a topic or table that a run reads."""
    found: Facets = {}
    if facts.rows is not None:
        found["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=facts.rows)
    if facts.assertions:
        assertions = list(facts.assertions)
        found["dataQualityAssertions"] = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions)
    return InputDataset(*naming.dataset(name), facets=_facets(naming, name, facts), inputFacets=found)


def output_dataset(naming: EventNaming, name: str, facts: TableFacts, columns: TableColumns | None) -> OutputDataset:
    """Return a table that a run writes; `columns`: their origins."""
    statistics: Facets = {}
    if facts.rows is not None:
        counted = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=facts.rows)
        statistics["outputStatistics"] = counted
    facets = _facets(naming, name, facts)
    if columns is not None and columns.columns:
        facets["columnLineage"] = column_lineage(naming, columns)
    return OutputDataset(*naming.dataset(name), facets=facets, outputFacets=statistics)


def column_lineage(naming: EventNaming, columns: TableColumns) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    """Return the column lineage of a table."""
    fields = {
        name: column_lineage_dataset.Fields(inputFields=_input_fields(naming, origins))
        for name, origins in columns.columns.items()
        if origins
    }
    rows = _input_fields(naming, columns.rows)
    return column_lineage_dataset.ColumnLineageDatasetFacet(fields=fields, dataset=rows)


def _input_fields(naming: EventNaming, origins: Origins) -> list[column_lineage_dataset.InputField]:
    """Return the input fields, each column once with all its uses."""
    uses: dict[tuple[str, str], list[Use]] = {}
    for each in origins:
        uses.setdefault((each.table, each.column), []).append(each.use)
    return [
        column_lineage_dataset.InputField(*naming.dataset(table), column, [transformation(use) for use in found])
        for (table, column), found in uses.items()
    ]


def transformation(use: Use) -> column_lineage_dataset.Transformation:
    """Return a use in OpenLineage's words."""
    kind = "DIRECT" if use in DIRECT else "INDIRECT"
    return column_lineage_dataset.Transformation(kind, use.upper())


def _facets(naming: EventNaming, name: str, facts: TableFacts) -> Facets:
    namespace, _ = naming.dataset(name)
    uri = facts.path.as_uri() if facts.path else namespace
    facets: Facets = {"dataSource": datasource_dataset.DatasourceDatasetFacet(name=namespace, uri=uri)}
    if not name.startswith(TOPIC):
        facets["storage"] = storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")
    if facts.path is not None:
        place = LocalFileSystem(str(facts.path))
        link = symlinks_dataset.Identifier(place.get_namespace(), place.get_name(), "LOCATION")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([link])
    if facts.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(facts.version))
    if facts.about:
        facets["documentation"] = documentation_dataset.DocumentationDatasetFacet(facts.about)
    if facts.schema:
        facets["schema"] = schema_dataset.SchemaDatasetFacet(_fields(facts.schema))
    return facets


def _fields(schema: Sequence[ColumnFacts]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    return [
        schema_dataset.SchemaDatasetFacetFields(
            each.name, each.type or None, each.about or None, ordinal_position=position
        )
        for position, each in enumerate(schema, 1)
    ]
