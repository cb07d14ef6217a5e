"""The whole graph as the folders declare it: one event for each job, without runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from openlineage.client.event_v2 import JobEvent

from include.declare.analyses import declared_analyses
from include.declare.dataset import dataset_names, declared_dataset
from include.declare.derived_dataset import derived_in_order
from include.declare.lineage_graph import REFERENCE
from include.ground.settings import Settings
from include.observe.dataset_facets import ColumnFacts, TableFacts
from include.observe.declared_jobs import DeclaredJob, analysis_job, dataset_jobs, derived_jobs
from include.observe.event_naming import TOPIC, EventNaming
from include.observe.known_tables import KnownTables, record_fields
from include.observe.ledger_reader import open_reader
from include.observe.run_events import job_event
from include.read.publication import published_tables
from include.read.published_sql import tables_mentioned


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
