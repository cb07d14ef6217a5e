"""Runs of analyses, from the Delta log of each result up to the published version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from include.declare.analyses import declared_analysis
from include.declare.column_origins import TableColumns
from include.ground.delta_log import Commit, commits_following
from include.ground.errors import HeadraceError
from include.observe.dataset_facets import TableFacts
from include.observe.declared_jobs import BATCH, DeclaredJob, analysis_job
from include.observe.event_cursors import EventCursor
from include.observe.event_delivery import Event
from include.observe.known_tables import KnownTables
from include.observe.outgoing_events import Cursors, Outgoing, separately
from include.observe.run_events import RunFacts, whole_run
from include.read.publication import PublishedTable, published_tables

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
        events = _events(known, pinned, commit) if _is_run(commit) else []
        yield Outgoing(table.name, events, EventCursor(commit.version))


def _is_run(commit: Commit) -> bool:
    return commit.metadata is not None and "analysis" in commit.metadata


def _events(known: KnownTables, table: PublishedTable, commit: Commit) -> Sequence[Event]:
    sources = {
        str(name): (str(release), int(version)) for name, (release, version) in _metadata(commit)["sources"].items()
    }
    job, ended = _job(known, table, list(sources)), datetime.fromtimestamp(commit.timestamp_ms / 1000, UTC)
    facts = RunFacts(known.naming.run_id(ended, job.name, commit.app_version), _tables(known, table, sources))
    return whole_run(known.naming, job, facts, ended, ended)


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


def _tables(known: KnownTables, table: PublishedTable, sources: dict[str, tuple[str, int]]) -> dict[str, TableFacts]:
    published, found = published_tables(known.settings), {table.name: known.facts(table)}
    for name, (release, version) in sources.items():
        if name in published:
            pinned = replace(published[name], version=version)
            same = published[name].release == release
            found[name] = known.facts(pinned) if same else TableFacts(version)
    return found
