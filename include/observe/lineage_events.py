"""Jobs, tables and runs as OpenLineage's events, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from openlineage.client.event_v2 import (
    InputDataset,
    Job,
    JobEvent,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
    set_producer,
)
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    datasource_dataset,
    documentation_dataset,
    documentation_job,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    nominal_time_run,
    output_statistics_output_dataset,
    parent_run,
    schema_dataset,
    sql_job,
    storage_dataset,
    symlinks_dataset,
)
from openlineage.client.naming.dataset import Kafka, LocalFileSystem
from openlineage.client.uuid import generate_static_uuid

from include.declare.analyses import Analysis
from include.declare.column_lineage import (
    DIRECT,
    Origins,
    TableColumns,
    Use,
    dataset_columns,
    derived_lineage,
    query_columns,
    unique,
    used,
)
from include.declare.dataset import Dataset
from include.declare.derived_dataset import REFERENCE, DerivedDataset, described_gold
from include.declare.gold import Gold
from include.ground.settings import Settings
from include.read.published_tables import RECORD_LAYERS

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


def _input_dataset(naming: EventNaming, name: str, facts: TableFacts) -> InputDataset:
    found: Facets = {}
    if facts.rows is not None:
        found["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=facts.rows)
    if facts.assertions:
        assertions = list(facts.assertions)
        found["dataQualityAssertions"] = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions)
    return InputDataset(*naming.dataset(name), facets=_facets(naming, name, facts), inputFacets=found)


def _output_dataset(naming: EventNaming, name: str, facts: TableFacts, columns: TableColumns | None) -> OutputDataset:
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


STREAMING, BATCH = "STREAMING", "BATCH"
SPARK, DUCKDB = "spark", "duckdb"


@dataclass(frozen=True)
class DeclaredJob:
    """A job: its `name`, its datasets by their names in a LineageEdge, and the origins of the columns it writes.

    `kind` is its type for people; `sql` its query, "" without one.
    """

    name: str
    kind: str
    about: str
    inputs: tuple[str, ...]
    outputs: Mapping[str, TableColumns]
    processing: str = STREAMING
    sql: str = ""
    dialect: str = SPARK


def stream_job(dataset: str) -> DeclaredJob:
    """Return the job that a stream's driver is; the jobs of its layers have the datasets."""
    return DeclaredJob(dataset, "STREAM", f"The stream of {dataset}: its driver.", (), {})


def dataset_jobs(dataset: Dataset) -> tuple[DeclaredJob, ...]:
    """Return the jobs from a dataset's topic to its gold: ingest, refine, and one for each gold table."""
    name, columns = dataset.name, dataset_columns(dataset)
    bronze, silver, rejected = (f"{layer}.{name}" for layer in RECORD_LAYERS)
    reference = tuple(f"{REFERENCE}{name}.{table.name}" for table in dataset.pipeline.reference)
    ingest = f"Writes every record of topic {dataset.pipeline.topic} to bronze, byte for byte."
    refine = "Parses and validates records by contract.yaml, finds duplicates, adds the columns of silver.py."
    return (
        DeclaredJob(f"{name}.ingest", "INGEST", ingest, (topic_of(dataset),), {bronze: columns[bronze]}),
        DeclaredJob(
            f"{name}.refine",
            "REFINE",
            refine,
            (bronze, *reference),
            {silver: columns[silver], rejected: columns[rejected]},
        ),
        *(_gold_job(name, gold, silver, columns[f"gold.{gold.name}"]) for gold in dataset.pipeline.gold),
    )


def topic_of(dataset: Dataset) -> str:
    """Return the name of a dataset's topic in lineage."""
    return f"{TOPIC}{dataset.pipeline.topic}"


def _gold_job(dataset: str, gold: Gold, silver: str, columns: TableColumns) -> DeclaredJob:
    table = f"gold.{gold.name}"
    about = f"Keeps {table} up to date: {described_gold(gold)}."
    return DeclaredJob(f"{dataset}.{table}", "GOLD", about, (silver,), {table: columns}, sql=gold.query)


def derived_jobs(derived: DerivedDataset, columns: Mapping[str, Sequence[str]]) -> tuple[DeclaredJob, ...]:
    """Return one job for each gold table of a derived dataset; `columns`: those of its sources' tables."""
    origins, sources = derived_lineage(derived, columns), tuple(derived.pipeline.sources.values())
    return tuple(
        DeclaredJob(
            f"{derived.name}.gold.{gold.name}",
            "GOLD",
            f"Recomputes the grains of gold.{gold.name} that changed rows of its sources touch.",
            sources,
            {f"gold.{gold.name}": origins[f"gold.{gold.name}"]},
            sql=gold.query,
        )
        for gold in derived.pipeline.gold
    )


def analysis_job(analysis: Analysis, sources: Mapping[str, Sequence[str]], result: Sequence[str]) -> DeclaredJob:
    """Return the job of an analysis over `sources` with their columns; `result`: the columns of its table.

    An algorithm makes each of its columns of all columns of the query.
    """
    query = query_columns(analysis.declared.query, sources, DUCKDB)
    origins = unique(each for found in query.columns.values() for each in used(found, "transformation"))
    return DeclaredJob(
        f"{analysis.dataset}.analysis.{analysis.name}",
        "ANALYSIS",
        f"{type(analysis.declared).__name__} over {', '.join(sources) or 'no table'}.",
        tuple(sources),
        {f"analysis.{analysis.name}": TableColumns(dict.fromkeys(result, origins), query.rows)},
        processing=BATCH,
        sql=analysis.declared.query,
        dialect=DUCKDB,
    )


def plan_job(jobs: Sequence[DeclaredJob], dataset: str, kind: str) -> DeclaredJob:
    """Return the job of a kind of plan: from bronze, or the sources of a derived dataset, to all tables of `jobs`."""
    recomputing = [job for job in jobs if job.kind != "INGEST"]
    outputs = {table: columns for job in recomputing for table, columns in job.outputs.items()}
    inputs = dict.fromkeys(table for job in recomputing for table in job.inputs if table not in outputs)
    about = f"A {kind} of {dataset}: recomputed in a folder of its own, compared, approved, then applied."
    return DeclaredJob(f"{dataset}.{kind}", "PLAN", about, tuple(inputs), _composed(outputs), BATCH)


def _composed(outputs: Mapping[str, TableColumns]) -> dict[str, TableColumns]:
    """Return origins in tables outside `outputs`: through silver, to bronze."""
    return {table: TableColumns(dict(_through(columns, outputs))) for table, columns in outputs.items()}


def _through(columns: TableColumns, outputs: Mapping[str, TableColumns]) -> Iterator[tuple[str, tuple]]:  # type: ignore[type-arg]
    for name, origins in columns.columns.items():
        inner = (
            below
            for each in origins
            for below in (
                used(outputs[each.table].columns.get(each.column, ()), each.use) if each.table in outputs else (each,)
            )
        )
        yield name, unique(inner)


TOPIC = "topic "


@dataclass(frozen=True)
class EventNaming:
    """`jobs`: the namespace of jobs; `tables`: that of tables, a file URI; `kafka`: `host:port` of the broker."""

    jobs: str
    tables: str
    kafka: str

    def dataset(self, name: str) -> tuple[str, str]:
        """Return namespace and name of a topic or table, which is named as in a LineageEdge."""
        if name.startswith(TOPIC):
            host, _, port = self.kafka.rpartition(":")
            topic = Kafka(host, port, name.removeprefix(TOPIC))
            return topic.get_namespace(), topic.get_name()
        if name.startswith(REFERENCE):
            return self.tables, f"reference.{name.removeprefix(REFERENCE)}"
        return self.tables, name

    def run_id(self, instant: datetime, *parts: object) -> str:
        """Return the id of a run that `parts` identify: the same for an event that is sent again."""
        return str(generate_static_uuid(instant, "/".join(map(str, (self.jobs, self.tables, *parts))).encode()))


def event_naming(settings: Settings, kafka: str) -> EventNaming:
    """Return the names that events of a state folder use; `kafka`: the addresses of its brokers."""
    return EventNaming(settings.openlineage_namespace, settings.state.as_uri(), kafka.split(",")[0])


Event = RunEvent | JobEvent
PRODUCER = f"urn:headrace:{version('headrace')}"
set_producer(PRODUCER)


@dataclass(frozen=True)
class ParentRun:
    """The run that another belongs to: name and namespace of its job, and its id."""

    namespace: str
    job: str
    run_id: str


@dataclass(frozen=True)
class RunFacts:
    """A run of a job: its id, what is known of its datasets, what it belongs to, the range of event time it covers."""

    run_id: str
    tables: Mapping[str, TableFacts] = field(default_factory=dict)
    parent: ParentRun | None = None
    nominal: tuple[datetime, datetime] | None = None


def run_event(
    naming: EventNaming, job: DeclaredJob, facts: RunFacts, state: RunState, at: datetime, error: str = ""
) -> RunEvent:
    """Return an event of a run at a time. START has no versions and counts: the run has not read or written yet."""
    run, parts = Run(facts.run_id, _run_facets(facts, error)), _parts(naming, job, facts.tables, state)
    return RunEvent(eventType=state, eventTime=event_time(at), run=run, producer=PRODUCER, **parts)


def whole_run(
    naming: EventNaming, job: DeclaredJob, facts: RunFacts, began: datetime, ended: datetime
) -> list[RunEvent]:
    """Return the two events of a run that has completed."""
    return [
        run_event(naming, job, facts, RunState.START, began),
        run_event(naming, job, facts, RunState.COMPLETE, ended),
    ]


def job_event(naming: EventNaming, job: DeclaredJob, tables: Mapping[str, TableFacts], at: datetime) -> JobEvent:
    """Return what is declared of a job, without a run."""
    return JobEvent(eventTime=event_time(at), producer=PRODUCER, **_parts(naming, job, tables))


def _parts(
    naming: EventNaming, job: DeclaredJob, tables: Mapping[str, TableFacts], state: RunState | None = None
) -> dict[str, Any]:
    known = {} if state is RunState.START else tables
    return {
        "job": Job(naming.jobs, job.name, _job_facets(job)),
        "inputs": [_input_dataset(naming, name, known.get(name, NOTHING_KNOWN)) for name in job.inputs],
        "outputs": [
            _output_dataset(naming, name, known.get(name, NOTHING_KNOWN), None if state is RunState.START else columns)
            for name, columns in job.outputs.items()
        ],
    }


def event_time(at: datetime) -> str:
    """Return a time as events have it: ISO 8601, UTC, milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _job_facets(job: DeclaredJob) -> dict[str, Any]:
    kind = job_type_job.JobTypeJobFacet(job.processing, "HEADRACE", job.kind)
    facets: Facets = {"jobType": kind, "documentation": documentation_job.DocumentationJobFacet(job.about)}
    if job.sql:
        facets["sql"] = sql_job.SQLJobFacet(job.sql, job.dialect)
    return facets


def _run_facets(facts: RunFacts, error: str) -> Facets:
    facets: Facets = {}
    if (parent := facts.parent) is not None:
        run, job = parent_run.Run(parent.run_id), parent_run.Job(parent.namespace, parent.job)
        facets["parent"] = parent_run.ParentRunFacet(run, job)
    if facts.nominal is not None:
        facets["nominalTime"] = nominal_time_run.NominalTimeRunFacet(*map(event_time, facts.nominal))
    if error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "python")
    return facets
