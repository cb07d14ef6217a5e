"""Plans: a plan is a run of the job of its kind, from planned to applied, rejected or cancelled; a rollback is its own.

A release of several datasets is a run for each of them, with the same stages.
A plan whose last attempt failed is FAIL until its next stage is complete: `headrace plan apply` continues it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from openlineage.client.event_v2 import RunState

from include.declare.column_lineage import TableColumns, unique, used
from include.declare.dataset import ReleaseUnknown
from include.declare.derived_dataset import REFERENCE
from include.declare.history_slice import KAFKA
from include.ground.paths import table_path
from include.observe.lineage_events import BATCH, DeclaredJob, Event, KnownTables, ParentRun, RunFacts, TableFacts
from include.observe.run_feeds import Cursors, EventCursor, Outgoing, separately
from include.plans.index import IndexPosition
from include.plans.journal import is_written, last_failure, load_plan, open_plans, plans_entered_since
from include.plans.plan import Plan, PlanRecord, ReleaseBuilt, SliceBuilt, Stage
from include.read.publication import PublishedTable, read_publication, tables_of
from include.state.release_files import PatchDirection

FOLLOWED = timedelta(days=30)
"""How long after its application a plan is checked for a rollback; a bound, so that the list does not grow forever."""
STATES = {
    Stage.BUILT: RunState.RUNNING,
    Stage.COMPARED: RunState.RUNNING,
    Stage.APPROVED: RunState.RUNNING,
    Stage.REJECTED: RunState.ABORT,
    Stage.CANCELLED: RunState.ABORT,
}


@dataclass
class PlanFeed:
    """Follows plans; reads only the entries of the index since the last poll."""

    position: IndexPosition = IndexPosition()
    unwritten: Sequence[str] = ()
    """Plans that had an entry, but no file yet, at the last poll."""

    def __call__(self, known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
        yield from self._new_plans(known, cursors)
        for key in [key for key in cursors if key.startswith("plan ")]:
            yield from separately(known.show, _plan_events(known, key, cursors[key]))

    def _new_plans(self, known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
        """Yield a cursor for each new plan; the first poll follows only open plans."""
        entered, position = plans_entered_since(known.settings, self.position)
        names = sorted({*self.unwritten, *entered}, key=_series_and_number)
        is_first = "plans" not in cursors
        opened = {record.plan.id for record in open_plans(known.settings)} if is_first else set()
        highest: dict[str, int] = {}
        unwritten = []
        for plan in names:
            series, number = _series_and_number(plan)
            if number <= _sent(cursors, series):
                continue
            if not is_written(known.settings, plan):
                unwritten.append(plan)
                continue
            if (plan in opened or not is_first) and f"plan {plan}" not in cursors:
                yield Outgoing(f"plan {plan}", [], EventCursor())
            highest[series] = number
        for series, number in highest.items():
            yield Outgoing(f"plans {series}", [], EventCursor(sent=number))
        if is_first:
            yield Outgoing("plans", [], EventCursor())
        self.position, self.unwritten = position, unwritten


def _series_and_number(plan: str) -> tuple[str, int]:
    series, _, number = plan.rpartition("-")
    return series, int(number)


def _sent(cursors: Cursors, series: str) -> int:
    """Return the highest number of the plans of a kind and dataset that are followed or were."""
    cursor = cursors.get(f"plans {series}")
    return -1 if cursor is None else cursor.sent


def _plan_events(known: KnownTables, key: str, cursor: EventCursor) -> Iterator[Outgoing]:
    record = load_plan(known.settings, key.removeprefix("plan "))
    stages, now = 1 + len(record.events), datetime.now(UTC)
    if cursor.sent < stages:
        fresh = range(max(cursor.sent, 0), stages)
        cursor = EventCursor(stages)
        events = [e for stage in fresh for part in record.parts for e in _stage_events(known, part, stage)]
        yield Outgoing(key, events, cursor)
    if (failure := last_failure(known.settings, record.plan.id)) and (at := _failed_at(failure)) != cursor.at:
        cursor = replace(cursor, at=at)
        yield Outgoing(key, [_failed(known, part, at, failure) for part in record.plan.parts], cursor)
    if record.is_over or (record.stage is Stage.APPLIED and now - record.events[-1].at > FOLLOWED):
        yield Outgoing(key, [], None)


def _failed(known: KnownTables, plan: Plan, at: datetime, failure: str) -> Event:
    return known.naming.run_event(_job(known, plan), _facts(known, plan, {}), RunState.FAIL, at, failure)


def _failed_at(failure: str) -> datetime:
    return datetime.fromisoformat(failure[: len("2026-01-01 00:00:00")]).replace(tzinfo=UTC)


def _stage_events(known: KnownTables, record: PlanRecord, stage: int) -> Sequence[Event]:
    """Return the events of a stage by its number, of one dataset; 0: it was planned."""
    naming, plan = known.naming, record.plan
    job, facts = _job(known, plan), _facts(known, plan, {})
    if stage == 0:
        return [naming.run_event(job, facts, RunState.START, plan.planned_at)]
    event = record.events[stage - 1]
    if event.stage in STATES:
        return [naming.run_event(job, facts, STATES[event.stage], event.at)]
    if event.stage is Stage.RETIRED:
        return []
    tables = _tables(known, record, PatchDirection.APPLY if event.stage is Stage.APPLIED else PatchDirection.REVERT)
    if event.stage is Stage.APPLIED and all(each.stage is not Stage.APPLIED for each in record.events[: stage - 1]):
        return [naming.run_event(job, _facts(known, plan, tables), RunState.COMPLETE, event.at)]
    own = replace(_facts(known, plan, tables), run_id=naming.run_id(event.at, "plan", *_named(plan), stage))
    if event.stage is Stage.ROLLED_BACK:
        job = replace(job, name=f"{plan.dataset}.rollback", about=f"Publishes {plan.dataset} as it was before a plan.")
    return list(naming.whole_run(job, own, event.at, event.at))


def _jobs(known: KnownTables, plan: Plan) -> tuple[DeclaredJob, ...]:
    """Return the jobs of a plan's release; those of the published one when retention has deleted it meanwhile."""
    try:
        return known.jobs(plan.dataset, plan.release)
    except ReleaseUnknown:
        return known.jobs(plan.dataset, read_publication(known.settings, plan.dataset).release)


def _job(known: KnownTables, plan: Plan) -> DeclaredJob:
    """Return the job of a plan's kind; one that reads records from Kafka reads the topic too."""
    jobs = _jobs(known, plan)
    job = plan_job(jobs, plan.dataset, plan.kind)
    topics = jobs[0].inputs if plan.slice is not None and plan.slice.of(KAFKA) else ()
    return replace(job, inputs=(*topics, *job.inputs))


def _named(plan: Plan) -> tuple[str, ...]:
    """Return what identifies the run of a plan, and of each member of one: the id begins with kind and dataset."""
    series, _ = _series_and_number(plan.id)
    return (plan.id,) if series.endswith(f"-{plan.dataset}") else (plan.id, plan.dataset)


def _facts(known: KnownTables, plan: Plan, tables: dict[str, TableFacts]) -> RunFacts:
    run_id = known.naming.run_id(plan.planned_at, "plan", *_named(plan))
    slice_ = plan.slice
    nominal = (slice_.since, slice_.until) if slice_ and slice_.since and slice_.until else None
    return RunFacts(run_id, tables, _airflow_run(known, plan), nominal)


def _airflow_run(known: KnownTables, plan: Plan) -> ParentRun | None:
    """Return the run of Airflow that a plan belongs to, `dag/run`."""
    dag, _, run = plan.origin.partition("/")
    run_id = known.naming.run_id(plan.planned_at, "airflow", dag, run)
    return known.naming.parent_run(dag, run_id) if run else None


def _tables(known: KnownTables, record: PlanRecord, direction: PatchDirection) -> dict[str, TableFacts]:
    plan, built = record.plan, record.find(ReleaseBuilt)
    if built is not None:
        built = built.of(plan.dataset)
        found = built.built if direction is PatchDirection.APPLY else built.published
        return {name: known.facts(table) for name, table in tables_of(known.settings, found).items()}
    tables = {name: known.reference(name) for name in _job(known, plan).inputs if name.startswith(REFERENCE)}
    for name, version, rows in known.ledger.plan_corrections(plan.dataset, plan.release, plan.id, direction):
        path = table_path(known.settings, plan.dataset, plan.release, name)
        tables[name] = known.facts(PublishedTable(name, path, version, plan.dataset, plan.release, 0), rows)
    from_bronze = plan.slice is not None and bool(plan.slice.spans)
    if (slice_built := record.find(SliceBuilt)) is not None and from_bronze and direction is PatchDirection.APPLY:
        tables[f"bronze.{plan.dataset}"] = TableFacts(rows=slice_built.records)
    return tables


def plan_job(jobs: Sequence[DeclaredJob], dataset: str, kind: str) -> DeclaredJob:
    """Return the job of a kind of plan: from bronze, or the sources of a derived dataset, to all tables of `jobs`."""
    recomputing = [job for job in jobs if job.kind != "INGEST"]
    outputs = {table: columns for job in recomputing for table, columns in job.outputs.items()}
    inputs = dict.fromkeys(table for job in recomputing for table in job.inputs if table not in outputs)
    # Origins in tables outside of the outputs: through silver, to bronze.
    composed = {table: TableColumns(dict(_through(columns, outputs))) for table, columns in outputs.items()}
    about = f"A {kind} of {dataset}: recomputed in a folder of its own, compared, approved, then applied."
    return DeclaredJob(f"{dataset}.{kind}", "PLAN", about, tuple(inputs), composed, BATCH)


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
