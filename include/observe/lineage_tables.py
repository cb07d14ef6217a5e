"""What is known of datasets and tables while events are created: their jobs by release, their schemas by path.

Each release is read once, each schema once for a folder: a table keeps its columns as long as it has its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from openlineage.client.event_v2 import JobEvent

from include.declare.analyses import declared_analyses
from include.declare.column_lineage import VALUE, dataset_columns
from include.declare.dataset import DERIVED, Dataset, dataset_names, declared_dataset, released_dataset
from include.declare.derived_dataset import REFERENCE, derived_in_order, released_derived
from include.ground.errors import HeadraceError
from include.ground.paths import reference_path, snapshot_path
from include.ground.settings import Settings
from include.observe.ledger_reader import LedgerReader, open_reader
from include.observe.lineage_events import (
    TOPIC,
    ColumnFacts,
    DeclaredJob,
    EventNaming,
    TableFacts,
    analysis_job,
    dataset_jobs,
    derived_jobs,
    job_event,
    topic_of,
)
from include.read.publication import PublishedTable, published_tables
from include.read.published_sql import tables_mentioned
from include.read.published_tables import open_table

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
    schemas: dict[tuple[Path, str], Sequence[ColumnFacts]] = field(default_factory=dict)
    fields: dict[str, Sequence[ColumnFacts]] = field(default_factory=dict)
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
        self.fields |= record_fields(found)
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

    def schema(self, table: PublishedTable) -> Sequence[ColumnFacts]:
        """Return the columns of a published table; empty when its log cannot be read."""
        key = (table.path, table.release)
        if key not in self.schemas:
            try:
                self.schemas[key] = [ColumnFacts(f.name, _type_name(f.type)) for f in open_table(table).schema().fields]
            except HeadraceError:
                return ()
        return (*self.schemas[key], *self.fields.get(table.name, ()))

    def facts(self, table: PublishedTable, rows: int | None = None, about: str = "") -> TableFacts:
        """Return what is known of a published table, of which a run read or wrote so many rows."""
        return TableFacts(table.version, rows, table.path, self.schema(table), about)

    def topic(self, name: str, rows: int | None = None) -> TableFacts:
        """Return what is known of a topic: the fields of its records."""
        return TableFacts(rows=rows, schema=self.fields.get(name, ()))

    def reference(self, name: str, version: int | None = None) -> TableFacts:
        """Return what is known of a reference table, named as in a LineageEdge."""
        dataset, _, table = name.removeprefix(REFERENCE).partition(".")
        return TableFacts(version, path=reference_path(self.settings, dataset, table), schema=self.fields.get(name, ()))


def _type_name(kind: object) -> str:
    return str(getattr(kind, "type", "")) or type(kind).__name__


def record_fields(dataset: Dataset) -> dict[str, list[ColumnFacts]]:
    """Return the declared columns of topic and reference tables, and of the record in bronze, below `value`."""
    fields = [ColumnFacts(column.member, column.type_text) for column in dataset.contract.columns]
    about = f"Field of the JSON object in {VALUE}, which bronze keeps as bytes."
    inside = [ColumnFacts(f"{VALUE}.{each.name}", each.type, about) for each in fields]
    reference = {
        f"{REFERENCE}{dataset.name}.{table.name}": [ColumnFacts(*column) for column in table.columns]
        for table in dataset.pipeline.reference
    }
    return {topic_of(dataset): fields, f"bronze.{dataset.name}": inside, **reference}


def declared_events(settings: Settings, naming: EventNaming, at: datetime) -> Iterator[JobEvent]:
    """Yield the events of all declared jobs, a job after those whose tables it reads. Raises DeclarationRefused."""
    known = KnownTables(settings, open_reader(settings), naming, lambda _: None)
    published = published_tables(settings)
    for job in declared_jobs(known):
        tables = {
            name: known.facts(published[name]) if name in published else _declared(known, name)
            for name in (*job.inputs, *job.outputs)
        }
        yield job_event(naming, job, tables, at)


def declared_jobs(known: KnownTables) -> Iterator[DeclaredJob]:
    """Yield the jobs of all folders. Raises DeclarationRefused."""
    settings = known.settings
    for name in dataset_names(settings):
        dataset = declared_dataset(settings, name)
        known.fields |= record_fields(dataset)
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
    """Return what is declared of a topic or reference table; of a table that is not published its columns alone."""
    if name.startswith(TOPIC):
        return known.topic(name)
    if name.startswith(REFERENCE):
        return known.reference(name)
    return TableFacts(schema=[ColumnFacts(column) for column in known.declared.get(name, ())])
