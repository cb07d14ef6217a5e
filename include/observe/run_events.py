"""Runs of jobs as OpenLineage's events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from openlineage.client.event_v2 import Job, JobEvent, Run, RunEvent, RunState, set_producer
from openlineage.client.facet_v2 import (
    documentation_job,
    error_message_run,
    job_type_job,
    nominal_time_run,
    parent_run,
    sql_job,
)

from include.observe.dataset_facets import (
    NOTHING_KNOWN,
    Facets,
    TableFacts,
    input_dataset,
    output_dataset,
)
from include.observe.declared_jobs import DeclaredJob
from include.observe.event_naming import EventNaming

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
    tables = {} if state is RunState.START else facts.tables
    return RunEvent(
        eventType=state,
        eventTime=event_time(at),
        run=Run(facts.run_id, _run_facets(facts, error)),
        job=Job(naming.jobs, job.name, job_facets(job)),
        inputs=[input_dataset(naming, name, tables.get(name, NOTHING_KNOWN)) for name in job.inputs],
        outputs=[
            output_dataset(naming, name, tables.get(name, NOTHING_KNOWN), None if state is RunState.START else columns)
            for name, columns in job.outputs.items()
        ],
        producer=PRODUCER,
    )


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
    return JobEvent(
        eventTime=event_time(at),
        job=Job(naming.jobs, job.name, job_facets(job)),
        inputs=[input_dataset(naming, name, tables.get(name, NOTHING_KNOWN)) for name in job.inputs],
        outputs=[
            output_dataset(naming, name, tables.get(name, NOTHING_KNOWN), columns)
            for name, columns in job.outputs.items()
        ],
        producer=PRODUCER,
    )


def event_time(at: datetime) -> str:
    """Return a time as events have it: ISO 8601, UTC, milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_facets(job: DeclaredJob) -> dict[str, Any]:
    """Return the facets of a job: its type, what it does in words, its query."""
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
