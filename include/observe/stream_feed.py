"""Runs of streams, from the ledger: what a stream has published since its last events is one run of each of its jobs.

Several publications are one run, so that a catalog gets a run each interval and not each second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from openlineage.client.event_v2 import RunState

from include.declare.lineage_graph import REFERENCE
from include.ground.paths import table_path
from include.observe.dataset_facets import NOTHING_KNOWN, Assertion, TableFacts
from include.observe.declared_jobs import DeclaredJob, stream_job
from include.observe.event_cursors import EventCursor
from include.observe.event_delivery import Event
from include.observe.event_naming import TOPIC
from include.observe.known_tables import KnownTables
from include.observe.outgoing_events import MOST_RUNS, Cursors, Outgoing, separately
from include.observe.process_feed import parent_of
from include.observe.run_events import ParentRun, RunFacts, run_event, whole_run
from include.observe.run_history import BatchTimes, RecordedRun
from include.read.publication import Publication, PublishedTable, stream_publications


@dataclass(frozen=True)
class StreamSpan:
    """Consecutive published runs of a release, with the bronze batches in them and the versions of the last one."""

    dataset: str
    release: str
    runs: Sequence[RecordedRun]
    batches: Sequence[BatchTimes]
    versions: Mapping[str, int]

    @property
    def bounds(self) -> str:
        """The batches that it covers."""
        return f"{self.runs[0].first_batch}-{self.runs[-1].last_batch}"

    @property
    def reference(self) -> Mapping[str, int]:
        """The versions of the reference tables that the last batch was joined with."""
        return dict(json.loads(self.batches[-1].reference)) if self.batches else {}

    @property
    def ended(self) -> datetime:
        """When its last run was published."""
        return _utc(self.runs[-1].published_at_ms)

    @property
    def began(self) -> datetime:
        """When the first of its batches, or without one its first run, was committed."""
        first = self.batches[0].committed_at_ms if self.batches else self.runs[0].committed_at_ms
        return min(_utc(first), self.ended)


def stream_events(known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
    """Yield the runs of all streams that are published and not sent."""
    for publication in stream_publications(known.settings).values():
        yield from separately(known.show, _stream_events(known, cursors, publication))


def _stream_events(known: KnownTables, cursors: Cursors, publication: Publication) -> Iterator[Outgoing]:
    key = f"stream {publication.dataset}"
    cursor = cursors.get(key) or _first_cursor(known, publication)
    for span, covering in _spans(known, publication, cursor):
        events = _span_events(known, span, parent_of(known, cursors, span.dataset)) if span.runs else []
        yield Outgoing(key, events, replace(covering, sent=covering.until), fixed=covering)


def _first_cursor(known: KnownTables, publication: Publication) -> EventCursor:
    """Return the cursor of a stream of which nothing was sent: its last published run is the first to be sent."""
    before = known.ledger.runs_before(publication.dataset, publication.release, publication.batch, 1)
    return EventCursor(before[0].last_batch if before else -1, release=publication.release)


def _spans(
    known: KnownTables, publication: Publication, cursor: EventCursor
) -> Iterator[tuple[StreamSpan, EventCursor]]:
    """Yield each span to send with its cursor; first the one in progress, also of a release that was replaced since."""
    dataset = publication.dataset
    while True:
        if not cursor.is_under_way:
            cursor = replace(cursor, release=publication.release)
        runs = known.ledger.published_runs_after(dataset, cursor.release, cursor.sent, MOST_RUNS)
        if cursor.is_under_way:
            runs = [run for run in runs if run.last_batch <= cursor.until]
        elif not runs:
            return
        else:
            cursor = replace(cursor, until=runs[-1].last_batch)
        yield _span(known, dataset, cursor.release, runs), cursor
        cursor = replace(cursor, sent=cursor.until)


def _span(known: KnownTables, dataset: str, release: str, runs: Sequence[RecordedRun]) -> StreamSpan:
    if not runs:
        return StreamSpan(dataset, release, (), (), {})
    first, last = runs[0].first_batch, runs[-1].last_batch
    batches = known.ledger.batches_after(dataset, first - 1, last - first + 1)
    versions = known.ledger.published_versions(dataset, release, last)
    return StreamSpan(dataset, release, runs, [each for each in batches if each.batch <= last], versions)


def _span_events(known: KnownTables, span: StreamSpan, parent: ParentRun | None) -> Sequence[Event]:
    naming, events = known.naming, list[Event]()
    for job in known.jobs(span.dataset, span.release):
        run_id = naming.run_id(span.ended, job.name, span.release, span.bounds)
        facts = RunFacts(run_id, _tables(known, job, span), parent)
        events += whole_run(naming, job, facts, span.began, span.ended)
    if parent is not None:
        running = RunFacts(parent.run_id)
        events.append(run_event(naming, stream_job(span.dataset), running, RunState.RUNNING, span.ended))
    return events


def _tables(known: KnownTables, job: DeclaredJob, span: StreamSpan) -> dict[str, TableFacts]:
    """Return what a run of one job read and wrote."""
    rows = _rows(span)
    found = {name: _facts(known, name, span, rows.get(name)) for name in (*job.inputs, *job.outputs)}
    if job.kind == "REFINE":
        bronze = f"bronze.{span.dataset}"
        found[bronze] = replace(found[bronze], assertions=_assertions(span))
    return found


def _facts(known: KnownTables, name: str, span: StreamSpan, rows: int | None) -> TableFacts:
    if name.startswith(TOPIC):
        return known.topic(name, sum(each.rows for each in span.batches))
    if name.startswith(REFERENCE):
        return known.reference(name, span.reference.get(name.rpartition(".")[2]))
    if name not in span.versions:
        return NOTHING_KNOWN
    path = table_path(known.settings, span.dataset, span.release, name)
    batch = span.runs[-1].last_batch
    return known.facts(PublishedTable(name, path, span.versions[name], span.dataset, span.release, batch), rows)


def _rows(span: StreamSpan) -> dict[str, int]:
    """Return the rows that the runs have written, by table."""
    runs, dataset = span.runs, span.dataset
    gold = {name for table in span.versions if (name := table.removeprefix("gold.")) != table}
    return {
        f"bronze.{dataset}": sum(each.rows for each in span.batches),
        f"silver.{dataset}": sum(run.accepted for run in runs),
        f"rejected.{dataset}": sum(run.rejected for run in runs),
        **{f"gold.{name}": sum(run.gold.get(name, 0) for run in runs) for name in gold},
    }


def _assertions(span: StreamSpan) -> list[Assertion]:
    """Return what rules have found among the records of the runs: those that rejected some, and those that warned."""
    counts: dict[tuple[str, str], int] = {}
    for run in span.runs:
        for severity, found in (("error", run.reasons), ("warn", run.warned)):
            for rule, count in found.items():
                counts[severity, rule] = counts.get((severity, rule), 0) + count
    return [
        Assertion(rule, success=False, severity=severity, name=rule, expected="0", actual=str(count))
        for (severity, rule), count in sorted(counts.items())
    ]


def _utc(milliseconds: int | None) -> datetime:
    return datetime.fromtimestamp((milliseconds or 0) / 1000, UTC)
