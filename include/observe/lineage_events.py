"""Jobs, tables and runs as OpenLineage's events, and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from openlineage.client import facet_v2
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
from openlineage.client.naming.dataset import Kafka, LocalFileSystem
from openlineage.client.uuid import generate_static_uuid

from include.declare.analyses import Analysis, declared_analyses
from include.declare.column_lineage import (
    DIRECT,
    VALUE,
    Origins,
    TableColumns,
    Use,
    dataset_columns,
    derived_lineage,
    query_columns,
    unique,
    used,
)
from include.declare.dataset import DERIVED, Dataset, dataset_names, declared_dataset, released_dataset
from include.declare.derived_dataset import (
    REFERENCE,
    DerivedDataset,
    derived_in_order,
    described_gold,
    released_derived,
)
from include.declare.gold import Gold
from include.ground.errors import HeadraceError
from include.ground.paths import reference_path, snapshot_path
from include.ground.settings import Settings
from include.observe.ledger_reader import LedgerReader, open_reader
from include.read.publication import PublishedTable, published_tables
from include.read.published_sql import tables_mentioned
from include.read.published_tables import RECORD_LAYERS, open_table

Facets = dict[str, Any]
Assertion = facet_v2.data_quality_assertions_dataset.Assertion
Assertions = facet_v2.data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet
Field = facet_v2.schema_dataset.SchemaDatasetFacetFields
InputStatistics = facet_v2.input_statistics_input_dataset.InputStatisticsInputDatasetFacet
OutputStatistics = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
ParentRun = facet_v2.parent_run.ParentRunFacet


@dataclass(frozen=True)
class TableFacts:
    """What an event contains about a topic or table besides its name; what is not known is None or empty.

    `rows`: those that the run read or wrote. `path`: the folder of its files.
    """

    version: int | None = None
    rows: int | None = None
    path: Path | None = None
    schema: Sequence[Field] = ()
    assertions: Sequence[Assertion] = ()


NOTHING_KNOWN = TableFacts()


def _transformation(use: Use) -> facet_v2.column_lineage_dataset.Transformation:
    return facet_v2.column_lineage_dataset.Transformation("DIRECT" if use in DIRECT else "INDIRECT", use.upper())


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

    def facets(self) -> Facets:
        kind = facet_v2.job_type_job.JobTypeJobFacet(self.processing, "HEADRACE", self.kind)
        facets: Facets = {
            "jobType": kind,
            "documentation": facet_v2.documentation_job.DocumentationJobFacet(self.about),
        }
        if self.sql:
            facets["sql"] = facet_v2.sql_job.SQLJobFacet(self.sql, self.dialect)
        return facets


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
        DeclaredJob(f"{name}.ingest", "INGEST", ingest, (_topic_of(dataset),), {bronze: columns[bronze]}),
        DeclaredJob(
            f"{name}.refine",
            "REFINE",
            refine,
            (bronze, *reference),
            {silver: columns[silver], rejected: columns[rejected]},
        ),
        *(_gold_job(name, gold, silver, columns[gold.table]) for gold in dataset.pipeline.gold),
    )


def _topic_of(dataset: Dataset) -> str:
    return f"{TOPIC}{dataset.pipeline.topic}"


def _gold_job(dataset: str, gold: Gold, silver: str, columns: TableColumns) -> DeclaredJob:
    table = gold.table
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

    def run_event(self, job: DeclaredJob, facts: RunFacts, state: RunState, at: datetime, error: str = "") -> RunEvent:
        """Return an event of a run at a time. START has no versions and counts: the run has not read or written yet."""
        run, parts = Run(facts.run_id, facts.facets(error)), self._parts(job, facts.tables, state)
        return RunEvent(eventType=state, eventTime=_event_time(at), run=run, producer=PRODUCER, **parts)

    def job_event(self, job: DeclaredJob, tables: Mapping[str, TableFacts], at: datetime) -> JobEvent:
        return JobEvent(eventTime=_event_time(at), producer=PRODUCER, **self._parts(job, tables))

    def whole_run(self, job: DeclaredJob, facts: RunFacts, began: datetime, ended: datetime) -> list[RunEvent]:
        """Return the two events of a run that has completed."""
        return [
            self.run_event(job, facts, RunState.START, began),
            self.run_event(job, facts, RunState.COMPLETE, ended),
        ]

    def parent_run(self, job: str, run_id: str) -> ParentRun:
        """Return that a run belongs to a run of another job."""
        return ParentRun(facet_v2.parent_run.Run(run_id), facet_v2.parent_run.Job(self.jobs, job))

    def _parts(
        self, job: DeclaredJob, tables: Mapping[str, TableFacts], state: RunState | None = None
    ) -> dict[str, Any]:
        known = {} if state is RunState.START else tables
        return {
            "job": Job(self.jobs, job.name, job.facets()),
            "inputs": [self._input_dataset(name, known.get(name, NOTHING_KNOWN)) for name in job.inputs],
            "outputs": [
                self._output_dataset(name, known.get(name, NOTHING_KNOWN), None if state is RunState.START else columns)
                for name, columns in job.outputs.items()
            ],
        }

    def _input_dataset(self, name: str, facts: TableFacts) -> InputDataset:
        found: Facets = {} if facts.rows is None else {"inputStatistics": InputStatistics(rowCount=facts.rows)}
        if facts.assertions:
            found["dataQualityAssertions"] = Assertions(list(facts.assertions))
        return InputDataset(*self.dataset(name), facets=self._facets(name, facts), inputFacets=found)

    def _output_dataset(self, name: str, facts: TableFacts, columns: TableColumns | None) -> OutputDataset:
        found: Facets = {} if facts.rows is None else {"outputStatistics": OutputStatistics(rowCount=facts.rows)}
        facets = self._facets(name, facts)
        if columns is not None and columns.columns:
            facets["columnLineage"] = self._column_lineage(columns)
        return OutputDataset(*self.dataset(name), facets=facets, outputFacets=found)

    def _column_lineage(self, columns: TableColumns) -> facet_v2.column_lineage_dataset.ColumnLineageDatasetFacet:
        fields = {
            name: facet_v2.column_lineage_dataset.Fields(inputFields=self._input_fields(origins))
            for name, origins in columns.columns.items()
            if origins
        }
        rows = self._input_fields(columns.rows)
        return facet_v2.column_lineage_dataset.ColumnLineageDatasetFacet(fields=fields, dataset=rows)

    def _input_fields(self, origins: Origins) -> list[facet_v2.column_lineage_dataset.InputField]:
        uses: dict[tuple[str, str], list[Use]] = {}
        for each in origins:
            uses.setdefault((each.table, each.column), []).append(each.use)
        return [
            facet_v2.column_lineage_dataset.InputField(*self.dataset(table), column, list(map(_transformation, found)))
            for (table, column), found in uses.items()
        ]

    def _facets(self, name: str, facts: TableFacts) -> Facets:
        namespace, _ = self.dataset(name)
        uri = facts.path.as_uri() if facts.path else namespace
        facets: Facets = {"dataSource": facet_v2.datasource_dataset.DatasourceDatasetFacet(name=namespace, uri=uri)}
        if not name.startswith(TOPIC):
            facets["storage"] = facet_v2.storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")
        if facts.path is not None:
            place = LocalFileSystem(str(facts.path))
            link = facet_v2.symlinks_dataset.Identifier(place.get_namespace(), place.get_name(), "LOCATION")
            facets["symlinks"] = facet_v2.symlinks_dataset.SymlinksDatasetFacet([link])
        if facts.version is not None:
            facets["version"] = facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(str(facts.version))
        if facts.schema:
            fields = [Field(each.name, each.type, each.description, n) for n, each in enumerate(facts.schema, 1)]
            facets["schema"] = facet_v2.schema_dataset.SchemaDatasetFacet(fields)
        return facets


def event_naming(settings: Settings, kafka: str) -> EventNaming:
    """Return the names that events of a state folder use; `kafka`: the addresses of its brokers."""
    return EventNaming(settings.openlineage_namespace, settings.state.as_uri(), kafka.split(",")[0])


Event = RunEvent | JobEvent
PRODUCER = f"urn:headrace:{version('headrace')}"
set_producer(PRODUCER)


@dataclass(frozen=True)
class RunFacts:
    """A run of a job: its id, what is known of its datasets, what it belongs to, the range of event time it covers."""

    run_id: str
    tables: Mapping[str, TableFacts] = field(default_factory=dict)
    parent: ParentRun | None = None
    nominal: tuple[datetime, datetime] | None = None

    def facets(self, error: str) -> Facets:
        facets: Facets = {}
        if self.parent is not None:
            facets["parent"] = self.parent
        if self.nominal is not None:
            facets["nominalTime"] = facet_v2.nominal_time_run.NominalTimeRunFacet(*map(_event_time, self.nominal))
        if error:
            facets["errorMessage"] = facet_v2.error_message_run.ErrorMessageRunFacet(error, "python")
        return facets


def _event_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


MOST_RELEASES = 100
"""Releases whose jobs are kept in memory."""


@dataclass
class KnownTables:
    """The memory of one follower; `naming` are the names that events use; `show` prints a line for people."""

    settings: Settings
    ledger: LedgerReader
    naming: EventNaming
    show: Callable[[str], None]
    released: dict[tuple[str, str], tuple[DeclaredJob, ...]] = field(default_factory=dict)
    schemas: dict[tuple[Path, str], Sequence[Field]] = field(default_factory=dict)
    fields: dict[str, Sequence[Field]] = field(default_factory=dict)
    """Declared columns of topics and reference tables, and of the record in bronze."""
    declared: dict[str, list[str]] = field(default_factory=dict)
    """Columns of tables that may not be published yet."""

    def jobs(self, dataset: str, release: str) -> tuple[DeclaredJob, ...]:
        """Return the jobs of a release of any dataset. Raises ReleaseUnknown, DeclarationRefused."""
        if (dataset, release) not in self.released:
            if len(self.released) == MOST_RELEASES:
                self.released.clear()
            self.released[dataset, release] = self._read_jobs(dataset, release)
        return self.released[dataset, release]

    def _read_jobs(self, dataset: str, release: str) -> tuple[DeclaredJob, ...]:
        if (snapshot_path(self.settings, dataset, release) / DERIVED).is_file():
            derived = released_derived(self.settings, dataset, release)
            return derived_jobs(derived, self.columns(derived.pipeline.sources.values()))
        found = released_dataset(self.settings, dataset, release)
        self.fields |= _record_fields(found)
        return dataset_jobs(found)

    def columns(self, tables: Iterable[str]) -> dict[str, list[str]]:
        """Return the columns of tables as published; of one that is not, as declared; empty for an unknown one."""
        published = published_tables(self.settings)
        return {
            name: [each.name for each in self.schema(published[name])]
            if name in published
            else self._declared_columns(name)
            for name in tables
        }

    def _declared_columns(self, table: str) -> list[str]:
        if table in self.declared:
            return self.declared[table]
        with suppress(HeadraceError):
            layer, _, dataset = table.partition(".")
            if layer == "silver":
                return list(dataset_columns(declared_dataset(self.settings, dataset))[table].columns)
        return []

    def schema(self, table: PublishedTable) -> Sequence[Field]:
        """Return the columns of a published table; empty when its log cannot be read."""
        key = (table.path, table.release)
        if key not in self.schemas:
            try:
                self.schemas[key] = [Field(f.name, _type_name(f.type)) for f in open_table(table).schema().fields]
            except HeadraceError:
                return ()
        return (*self.schemas[key], *self.fields.get(table.name, ()))

    def facts(self, table: PublishedTable, rows: int | None = None) -> TableFacts:
        """Return what is known of a published table, of which a run read or wrote so many rows."""
        return TableFacts(table.version, rows, table.path, self.schema(table))

    def topic(self, name: str, rows: int | None = None) -> TableFacts:
        return TableFacts(rows=rows, schema=self.fields.get(name, ()))

    def reference(self, name: str, version: int | None = None) -> TableFacts:
        dataset, _, table = name.removeprefix(REFERENCE).partition(".")
        return TableFacts(version, path=reference_path(self.settings, dataset, table), schema=self.fields.get(name, ()))


def _type_name(kind: object) -> str:
    return str(getattr(kind, "type", "")) or type(kind).__name__


def _record_fields(dataset: Dataset) -> dict[str, list[Field]]:
    fields = [Field(column.member, column.type_text) for column in dataset.contract.plain_columns]
    about = f"Field of the JSON object in {VALUE}, which bronze keeps as bytes."
    inside = [Field(f"{VALUE}.{each.name}", each.type, about) for each in fields]
    reference = {
        f"{REFERENCE}{dataset.name}.{table.name}": [Field(*column) for column in table.columns]
        for table in dataset.pipeline.reference
    }
    return {_topic_of(dataset): fields, f"bronze.{dataset.name}": inside, **reference}


def declared_events(settings: Settings, naming: EventNaming, at: datetime) -> Iterator[JobEvent]:
    """Yield the events of all declared jobs, a job after those whose tables it reads. Raises DeclarationRefused."""
    known = KnownTables(settings, open_reader(settings), naming, lambda _: None)
    published = published_tables(settings)
    for job in _declared_jobs(known):
        tables = {
            name: known.facts(published[name]) if name in published else _declared(known, name)
            for name in (*job.inputs, *job.outputs)
        }
        yield naming.job_event(job, tables, at)


def _declared_jobs(known: KnownTables) -> Iterator[DeclaredJob]:
    settings = known.settings
    for name in dataset_names(settings):
        dataset = declared_dataset(settings, name)
        known.fields |= _record_fields(dataset)
        yield from _remembered(known, dataset_jobs(dataset))
    for derived in derived_in_order(settings):
        yield from _remembered(known, derived_jobs(derived, known.columns(derived.pipeline.sources.values())))
    tables = sorted(known.declared | published_tables(settings).keys())
    for name in dataset_names(settings):
        for analysis in declared_analyses(settings, name).values():
            sources = known.columns(tables_mentioned(analysis.declared.query, tables))
            yield analysis_job(
                analysis, sources, known.columns([f"analysis.{analysis.name}"])[f"analysis.{analysis.name}"]
            )


def _remembered(known: KnownTables, jobs: tuple[DeclaredJob, ...]) -> tuple[DeclaredJob, ...]:
    """Note the columns of the tables that jobs write, for the jobs that read them."""
    for job in jobs:
        known.declared |= {table: list(columns.columns) for table, columns in job.outputs.items()}
    return jobs


def _declared(known: KnownTables, name: str) -> TableFacts:
    if name.startswith(TOPIC):
        return known.topic(name)
    if name.startswith(REFERENCE):
        return known.reference(name)
    return TableFacts(schema=[Field(column) for column in known.declared.get(name, ())])
