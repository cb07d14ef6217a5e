"""Runs as events: of drivers, streams, derived datasets, analyses and validations of tables.

A feed yields events in order, and how far everything is known to be sent before and after. What a run covers is written
before its first event is sent: after a crash the same run is sent again. Several publications of a stream are one run,
so that a catalog gets a run each interval and not each second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from openlineage.client.event_v2 import RunState

from include.declare.analyses import declared_analysis
from include.declare.column_lineage import TableColumns
from include.declare.contract_rules import RuleResult
from include.declare.derived_dataset import REFERENCE
from include.ground.delta_log import Commit, commits_descending, commits_following
from include.ground.errors import HeadraceError
from include.ground.paths import openlineage_path, table_path, warehouse
from include.ground.settings import Settings
from include.observe.ledger_reader import Batch, RecordedRun
from include.observe.lineage_events import (
    BATCH,
    NOTHING_KNOWN,
    TOPIC,
    Assertion,
    DeclaredJob,
    Event,
    KnownTables,
    ParentRun,
    RunFacts,
    TableFacts,
    analysis_job,
    stream_job,
)
from include.observe.processes import observe_stream
from include.observe.stream_history import MOST_KEPT, StoredValidation, stored_validations
from include.read.publication import (
    Publication,
    PublishedTable,
    publications,
    published_tables,
    stream_publications,
    tables_of,
)
from include.state.json_file import JsonFile, StateFileUnreadable
from include.state.process_states import ProcessState, ProcessStatus, stream_name
from include.state.run_files import RunFile, read_run_file


@dataclass(frozen=True)
class EventCursor:
    """`sent`: the last batch, version or stage whose events were delivered; `until`: the last one of a run in progress.

    `release` is that of batches and versions, `run` the id of a run that has not ended, `at` the time of what was sent.
    """

    sent: int = -1
    until: int = -1
    release: str = ""
    run: str = ""
    at: datetime | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether events of a run may have been sent without all of them being delivered."""
        return self.until > self.sent


@dataclass(frozen=True)
class EventCursors:
    """All cursors by kind and name; `kafka`: the brokers' address when it was last known."""

    cursors: Mapping[str, EventCursor] = field(default_factory=dict)
    kafka: str = ""


def cursors_file(settings: Settings) -> JsonFile[EventCursors]:
    """Return the file of the cursors."""
    path = openlineage_path(settings) / "cursors.json"
    remedy = f'rm "{path}"   (continues with what is published then)'
    return JsonFile(path, EventCursors, remedy=remedy, consequence="no event was sent")


MOST_RUNS = 1000
"""Runs of a stream that one run of a job represents at most, as after an outage of the receiver."""


@dataclass(frozen=True)
class Outgoing:
    """`events` about `key`: `fixed` is written before the first is sent, `done` after the last (None: forget `key`)."""

    key: str
    events: Sequence[Event]
    done: EventCursor | None
    fixed: EventCursor | None = None


def separately(show: Callable[[str], None], events: Iterator[Outgoing]) -> Iterator[Outgoing]:
    """Yield the due events of one dataset; its errors are shown and do not affect other datasets."""
    try:
        yield from events
    except HeadraceError as error:
        show(f"{error.what}; tried again")


Cursors = Mapping[str, EventCursor]
Feed = Callable[[KnownTables, Cursors], Iterator[Outgoing]]
"""Yields the due events; each is requested after the previous one was delivered."""


BROKEN = (ProcessState.FAILED, ProcessState.CRASHED, ProcessState.LOST, ProcessState.PENDING)


def process_events(known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
    """Yield the starts and ends of drivers that were not sent."""
    for dataset in publications(known.settings):
        key, run = _process_key(dataset), None
        with suppress(StateFileUnreadable):
            run = read_run_file(known.settings, stream_name(dataset))
        current = _run_id(known, dataset, run) if run is not None and run.is_alive() else ""
        before = cursors.get(key, EventCursor())
        if before.run and before.run != current:
            yield _ended(known, dataset, before.run, bool(current))
        if run is not None and current and before.run != current:
            started = datetime.fromtimestamp(run.started, UTC)
            start = known.naming.run_event(stream_job(dataset), RunFacts(current), RunState.START, started)
            yield Outgoing(key, [start], EventCursor(run=current, at=started))


def _process_key(dataset: str) -> str:
    return f"process {dataset}"


def parent_of(known: KnownTables, cursors: Cursors, dataset: str) -> ParentRun | None:
    """Return the run of the stream's driver, None when none is known to run."""
    cursor = cursors.get(_process_key(dataset))
    return known.naming.parent_run(dataset, cursor.run) if cursor is not None and cursor.run else None


def _run_id(known: KnownTables, dataset: str, run: RunFile) -> str:
    started = datetime.fromtimestamp(run.started, UTC)
    return known.naming.run_id(started, dataset, run.pid, run.identity)


def _ended(known: KnownTables, dataset: str, run_id: str, runs_again: bool) -> Outgoing:
    status = observe_stream(known.settings, dataset)
    error = _error(status, runs_again)
    state = RunState.FAIL if error else RunState.COMPLETE
    event = known.naming.run_event(stream_job(dataset), RunFacts(run_id), state, datetime.now(UTC), error)
    return Outgoing(_process_key(dataset), [event], None)


def _error(status: ProcessStatus, runs_again: bool) -> str:
    """Return why a driver ended, "" when it was requested."""
    if runs_again:
        return status.last_error
    return (status.detail or status.last_error or status.state.meaning) if status.state in BROKEN else ""


@dataclass(frozen=True)
class StreamSpan:
    """Consecutive published runs of a release, with the bronze batches in them and the versions of the last one."""

    dataset: str
    release: str
    runs: Sequence[RecordedRun]
    batches: Sequence[Batch]
    versions: Mapping[str, int]

    @property
    def bounds(self) -> str:
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
        facts = RunFacts(run_id, _stream_tables(known, job, span), parent)
        events += naming.whole_run(job, facts, span.began, span.ended)
    if parent is not None:
        running = RunFacts(parent.run.runId)
        events.append(naming.run_event(stream_job(span.dataset), running, RunState.RUNNING, span.ended))
    return events


def _stream_tables(known: KnownTables, job: DeclaredJob, span: StreamSpan) -> dict[str, TableFacts]:
    rows = _rows(span)
    found = {name: _facts(known, name, span, rows.get(name)) for name in (*job.inputs, *job.outputs)}
    if job.kind == "REFINE":
        bronze = f"bronze.{span.dataset}"
        found[bronze] = replace(found[bronze], assertions=_stream_assertions(span))
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
    runs, dataset = span.runs, span.dataset
    return {
        **{table: sum(run.gold.get(table.removeprefix("gold."), 0) for run in runs) for table in span.versions},
        f"bronze.{dataset}": sum(each.rows for each in span.batches),
        f"silver.{dataset}": sum(run.accepted for run in runs),
        f"rejected.{dataset}": sum(run.rejected for run in runs),
    }


def _stream_assertions(span: StreamSpan) -> list[Assertion]:
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


def derived_events(known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
    """Yield the runs of all derived datasets that are published and not sent."""
    for publication in publications(known.settings).values():
        if publication.is_derived:
            feed = _DerivedFeed(known, publication, parent_of(known, cursors, publication.dataset))
            for table in tables_of(known.settings, publication).values():
                yield from separately(known.show, feed.due(table, cursors.get(f"derived {table.name}")))


@dataclass(frozen=True)
class _DerivedFeed:
    """The runs of a derived dataset, as one publication has it."""

    known: KnownTables
    publication: Publication
    parent: ParentRun | None

    def due(self, table: PublishedTable, cursor: EventCursor | None) -> Iterator[Outgoing]:
        if cursor is not None and cursor.is_under_way and cursor.release != table.release:
            # The rest of a replaced release, whose tables stay until its plan has ended.
            yield self._run(replace(table, release=cursor.release), cursor)
            cursor = replace(cursor, sent=cursor.until)
        if cursor is None:
            cursor = EventCursor(_last_run(table) - 1, release=table.release)
        elif cursor.release != table.release:
            cursor = EventCursor(release=table.release)
        while cursor.sent < table.version:
            if not cursor.is_under_way:
                cursor = replace(cursor, until=min(table.version, cursor.sent + MOST_RUNS))
            yield self._run(table, cursor)
            cursor = replace(cursor, sent=cursor.until)

    def _run(self, table: PublishedTable, cursor: EventCursor) -> Outgoing:
        """Return the run that the commits of a cursor are; no event when none of them is a run."""
        path = table_path(self.known.settings, table.dataset, cursor.release, table.name)
        found = islice(commits_following(path, cursor.sent), cursor.until - cursor.sent)
        runs = [commit for commit in found if _is_derived_run(commit)]
        pinned = replace(table, path=path, version=cursor.until)
        events = list(self._events(pinned, runs)) if runs else []
        return Outgoing(f"derived {table.name}", events, replace(cursor, sent=cursor.until), fixed=cursor)

    def _events(self, table: PublishedTable, runs: Sequence[Commit]) -> Iterator[Event]:
        naming, (began, ended) = self.known.naming, (_utc(runs[n].timestamp_ms) for n in (0, -1))
        for job in self.known.jobs(table.dataset, table.release):
            if table.name in job.outputs:
                versions = f"{runs[0].version}-{runs[-1].version}"
                run_id = naming.run_id(ended, job.name, table.release, versions)
                yield from naming.whole_run(
                    job, RunFacts(run_id, self._tables(job, table, runs), self.parent), began, ended
                )

    def _tables(self, job: DeclaredJob, table: PublishedTable, runs: Sequence[Commit]) -> dict[str, TableFacts]:
        written = sum(int((commit.metadata or {}).get("rows", 0)) for commit in runs)
        sources = dict((runs[-1].metadata or {})["sources"])
        found = {table.name: self.known.facts(table, written)}
        for name in job.inputs:
            source = self.publication.sources.get(name)
            if source is not None and name in sources:
                release, batch, version = sources[name]
                path = warehouse(self.known.settings) / source.path
                found[name] = self.known.facts(PublishedTable(name, path, version, table.dataset, release, batch))
        return found


def _is_derived_run(commit: Commit) -> bool:
    return commit.metadata is not None and "batches" in commit.metadata and "sources" in commit.metadata


def _last_run(table: PublishedTable) -> int:
    found = (commit.version for commit in commits_descending(table.path, table.version) if _is_derived_run(commit))
    return next(found, table.version)


ANALYSIS = "analysis."


def analysis_events(known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
    """Yield the published runs of analyses that were not sent."""
    for table in published_tables(known.settings).values():
        if table.name.startswith(ANALYSIS):
            cursor = cursors.get(table.name) or EventCursor(table.version - 1)
            yield from separately(known.show, _table_events(known, table, cursor))


def _table_events(known: KnownTables, table: PublishedTable, cursor: EventCursor) -> Iterator[Outgoing]:
    for commit in islice(commits_following(table.path, cursor.sent), max(table.version - cursor.sent, 0)):
        pinned = replace(table, version=commit.version)
        events = _analysis_events(known, pinned, commit) if _is_run(commit) else []
        yield Outgoing(table.name, events, EventCursor(commit.version))


def _is_run(commit: Commit) -> bool:
    return commit.metadata is not None and "analysis" in commit.metadata


def _analysis_events(known: KnownTables, table: PublishedTable, commit: Commit) -> Sequence[Event]:
    sources = {
        str(name): (str(release), int(version)) for name, (release, version) in _metadata(commit)["sources"].items()
    }
    job, ended = _job(known, table, list(sources)), _utc(commit.timestamp_ms)
    facts = RunFacts(known.naming.run_id(ended, job.name, commit.app_version), _analysis_tables(known, table, sources))
    return known.naming.whole_run(job, facts, ended, ended)


def _metadata(commit: Commit) -> dict[str, Any]:
    return dict(commit.metadata or {})


def _job(known: KnownTables, table: PublishedTable, sources: list[str]) -> DeclaredJob:
    """Return the job as the folder declares it now; without origins of columns when it does not any more."""
    name = table.name.removeprefix(ANALYSIS)
    with suppress(HeadraceError):
        analysis = declared_analysis(known.settings, table.dataset, name)
        result = [each.name for each in known.schema(table)]
        return analysis_job(analysis, known.columns(sources), result)
    about = f"An analysis that {table.dataset} does not declare any more."
    job = f"{table.dataset}.analysis.{name}"
    return DeclaredJob(job, "ANALYSIS", about, tuple(sources), {table.name: TableColumns()}, BATCH)


def _analysis_tables(
    known: KnownTables, table: PublishedTable, sources: dict[str, tuple[str, int]]
) -> dict[str, TableFacts]:
    published, found = published_tables(known.settings), {table.name: known.facts(table)}
    for name, (release, version) in sources.items():
        if name in published:
            pinned = replace(published[name], version=version)
            same = published[name].release == release
            found[name] = known.facts(pinned) if same else TableFacts(version)
    return found


def quality_events(known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
    """Yield the validations that were not sent; of a dataset of which none was sent, the last one."""
    for dataset in publications(known.settings):
        key = f"quality {dataset}"
        sent = cursors[key].at if key in cursors else None
        found = stored_validations(known.settings, dataset, MOST_KEPT)
        for each in found[-1:] if sent is None else [each for each in found if each.checked_at > sent]:
            yield Outgoing(key, _quality_events(known, dataset, each), EventCursor(at=each.checked_at))


def _quality_events(known: KnownTables, dataset: str, validation: StoredValidation) -> Sequence[Event]:
    by_table: dict[str, list[RuleResult]] = {}
    for check in validation.checks:
        by_table.setdefault(check.table, []).append(check)
    about = "Validates whole tables by the rules of contract.yaml or derived.yaml."
    job = DeclaredJob(f"{dataset}.quality", "QUALITY", about, tuple(by_table), {}, BATCH)
    at = validation.checked_at
    tables = {table: TableFacts(assertions=_quality_assertions(checks)) for table, checks in by_table.items()}
    facts = RunFacts(known.naming.run_id(at, job.name, validation.release, validation.batch), tables)
    return known.naming.whole_run(job, facts, at, at)


def _quality_assertions(checks: Sequence[RuleResult]) -> list[Assertion]:
    return [
        Assertion(
            check.expectation,
            success=check.passed,
            severity="warn" if check.action == "warn" else "error",
            name=check.rule,
            actual=check.observed or None,
        )
        for check in checks
        if check.passed is not None
    ]
