"""Runs of streams as processes: a driver starts, works, and ends; a failure has its reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from openlineage.client.event_v2 import RunState

from include.observe.declared_jobs import stream_job
from include.observe.event_cursors import EventCursor
from include.observe.known_tables import KnownTables
from include.observe.outgoing_events import Cursors, Outgoing
from include.observe.process_status import observe_stream
from include.observe.run_events import ParentRun, RunFacts, run_event
from include.read.publication import publications
from include.state.json_file import StateFileUnreadable
from include.state.process_states import ProcessState, ProcessStatus, stream_name
from include.state.run_files import RunFile, is_alive, read_run_file

BROKEN = (ProcessState.FAILED, ProcessState.CRASHED, ProcessState.LOST, ProcessState.PENDING)


def process_events(known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
    """Yield the starts and ends of drivers that were not sent."""
    for dataset in publications(known.settings):
        key, run = process_key(dataset), None
        with suppress(StateFileUnreadable):
            run = read_run_file(known.settings, stream_name(dataset))
        current = _run_id(known, dataset, run) if run is not None and is_alive(run) else ""
        before = cursors.get(key, EventCursor())
        if before.run and before.run != current:
            yield _ended(known, dataset, before.run, bool(current))
        if run is not None and current and before.run != current:
            started = datetime.fromtimestamp(run.started, UTC)
            start = run_event(known.naming, stream_job(dataset), RunFacts(current), RunState.START, started)
            yield Outgoing(key, [start], EventCursor(run=current, at=started))


def process_key(dataset: str) -> str:
    """Return the key of a stream's driver among the cursors."""
    return f"process {dataset}"


def parent_of(known: KnownTables, cursors: Cursors, dataset: str) -> ParentRun | None:
    """Return the run of the stream's driver, None when none is known to run."""
    cursor = cursors.get(process_key(dataset))
    return ParentRun(known.naming.jobs, dataset, cursor.run) if cursor is not None and cursor.run else None


def _run_id(known: KnownTables, dataset: str, run: RunFile) -> str:
    started = datetime.fromtimestamp(run.started, UTC)
    return known.naming.run_id(started, dataset, run.pid, run.identity)


def _ended(known: KnownTables, dataset: str, run_id: str, runs_again: bool) -> Outgoing:
    status = observe_stream(known.settings, dataset)
    error = _error(status, runs_again)
    state = RunState.FAIL if error else RunState.COMPLETE
    event = run_event(known.naming, stream_job(dataset), RunFacts(run_id), state, datetime.now(UTC), error)
    return Outgoing(process_key(dataset), [event], None)


def _error(status: ProcessStatus, runs_again: bool) -> str:
    """Return why a driver ended, "" when it was requested."""
    if runs_again:
        return status.last_error
    return (status.detail or status.last_error or status.state.meaning) if status.state in BROKEN else ""
