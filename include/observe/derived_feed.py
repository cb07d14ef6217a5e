"""Runs of derived datasets, from the Delta log of each gold table up to the published version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice

from include.ground.delta_log import Commit, commits_descending, commits_following
from include.ground.paths import table_path, warehouse
from include.observe.dataset_facets import TableFacts
from include.observe.declared_jobs import DeclaredJob
from include.observe.event_cursors import EventCursor
from include.observe.event_delivery import Event
from include.observe.known_tables import KnownTables
from include.observe.outgoing_events import MOST_RUNS, Cursors, Outgoing, separately
from include.observe.process_feed import parent_of
from include.observe.run_events import ParentRun, RunFacts, whole_run
from include.read.publication import Publication, PublishedTable, publications, tables_of


def derived_events(known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
    """Yield the runs of all derived datasets that are published and not sent."""
    for publication in publications(known.settings).values():
        if not publication.is_derived:
            continue
        parent = parent_of(known, cursors, publication.dataset)
        for table in tables_of(known.settings, publication).values():
            cursor = cursors.get(f"derived {table.name}")
            yield from separately(known.show, _derived_table_events(known, publication, table, cursor, parent))


def _derived_table_events(
    known: KnownTables,
    publication: Publication,
    table: PublishedTable,
    cursor: EventCursor | None,
    parent: ParentRun | None,
) -> Iterator[Outgoing]:
    if cursor is not None and cursor.is_under_way and cursor.release != table.release:
        # The rest of a replaced release, whose tables stay until its plan has ended.
        yield from _release_events(known, publication, replace(table, release=cursor.release), cursor, parent)
        cursor = replace(cursor, sent=cursor.until)
    if cursor is None:
        cursor = EventCursor(_last_run(table) - 1, release=table.release)
    elif cursor.release != table.release:
        cursor = EventCursor(release=table.release)
    while cursor.sent < table.version:
        if not cursor.is_under_way:
            cursor = replace(cursor, until=min(table.version, cursor.sent + MOST_RUNS))
        yield from _release_events(known, publication, table, cursor, parent)
        cursor = replace(cursor, sent=cursor.until)


def _release_events(
    known: KnownTables, publication: Publication, table: PublishedTable, cursor: EventCursor, parent: ParentRun | None
) -> Iterator[Outgoing]:
    """Yield the run that the commits of a cursor are; no event when none of them is a run."""
    path = table_path(known.settings, table.dataset, cursor.release, table.name)
    found = islice(commits_following(path, cursor.sent), cursor.until - cursor.sent)
    runs = [commit for commit in found if is_run(commit)]
    pinned = replace(table, path=path, version=cursor.until)
    events = list(_events(known, publication, pinned, runs, parent)) if runs else []
    yield Outgoing(f"derived {table.name}", events, replace(cursor, sent=cursor.until), fixed=cursor)


def is_run(commit: Commit) -> bool:
    """Return whether a commit is a run's, and not maintenance."""
    return commit.metadata is not None and "batches" in commit.metadata and "sources" in commit.metadata


def _last_run(table: PublishedTable) -> int:
    """Return the version that the last published run has committed."""
    found = (commit.version for commit in commits_descending(table.path, table.version) if is_run(commit))
    return next(found, table.version)


def _events(
    known: KnownTables,
    publication: Publication,
    table: PublishedTable,
    runs: Sequence[Commit],
    parent: ParentRun | None,
) -> Iterator[Event]:
    began, ended = (datetime.fromtimestamp(runs[n].timestamp_ms / 1000, UTC) for n in (0, -1))
    for job in known.jobs(table.dataset, table.release):
        if table.name in job.outputs:
            versions = f"{runs[0].version}-{runs[-1].version}"
            run_id = known.naming.run_id(ended, job.name, table.release, versions)
            facts = RunFacts(run_id, _tables(known, publication, job, table, runs), parent)
            yield from whole_run(known.naming, job, facts, began, ended)


def _tables(
    known: KnownTables, publication: Publication, job: DeclaredJob, table: PublishedTable, runs: Sequence[Commit]
) -> dict[str, TableFacts]:
    written = sum(int((commit.metadata or {}).get("rows", 0)) for commit in runs)
    sources = dict((runs[-1].metadata or {})["sources"])
    found = {table.name: known.facts(table, written)}
    for name in job.inputs:
        source = publication.sources.get(name)
        if source is not None and name in sources:
            release, batch, version = sources[name]
            path = warehouse(known.settings) / source.path
            found[name] = known.facts(PublishedTable(name, path, version, table.dataset, release, batch))
    return found
