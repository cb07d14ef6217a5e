"""Runs an analysis over published tables: pins its sources, iterates, publishes the result.

Readers see a complete result, with the versions of its sources. A killed run continues at its last iteration, with the
rows that it has read. Graph algorithms are SQL: each iteration computes the next state from the last one; doubles are
added up in their order, so that a sum does not depend on the order of the rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from include.change.jobs import run_job
from include.declare.analyses import Analysis, Closure, Components, KMeans, PageRank, Recommendations
from include.ground.durable_files import write_atomically
from include.ground.errors import Terminal, Transient
from include.ground.paths import analyses_path, analysis_run_path, analysis_table_path
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_literal
from include.read.memory_database import memory_database
from include.read.publication import PublishedAnalysis, publish_analysis, published_analyses
from include.read.published_sql import open_query, tables_mentioned
from include.read.published_tables import PinnedTables, pinned
from include.state.lease import LockHeld, take_lock

GraphAlgorithm = PageRank | Components | Closure


@dataclass(frozen=True)
class GraphSteps:
    """The SQL of an algorithm over the view `edges`: first state, next state from `state`, what changed (a number)."""

    first: str
    following: str
    change: str
    result: str


def graph_steps(declared: GraphAlgorithm) -> GraphSteps:
    """Return the steps of an algorithm."""
    if isinstance(declared, PageRank):
        return _pagerank(declared)
    return COMPONENTS if isinstance(declared, Components) else CLOSURE


def _pagerank(declared: PageRank) -> GraphSteps:
    # Brin and Page, 1998; the rank of nodes without edges to others is shared by all.
    following = f"""
        with weights as (select source, {_sum("weight")} as total from edges group by source),
        flows as (
            select e.target as node, {_sum("s.rank * e.weight / w.total")} as flow
            from edges as e join weights as w using (source) join state as s on s.node = e.source
            group by all order by all
        ),
        lost as (select coalesce({_sum("rank")}, 0) as rank from state anti join weights on node = source)
        select node,
            (1 - {declared.damping}) / count(*) over ()
            + {declared.damping} * (coalesce(flow, 0) + (select rank from lost) / count(*) over ()) as rank
        from state left join flows using (node) order by node
    """
    return GraphSteps(
        "select node, 1 / count(*) over () as rank from "
        "(select source as node from edges union select target from edges) order by node",
        following,
        f"select coalesce({_sum('abs(n.rank - s.rank)')}, 0) from next as n join state as s using (node)",
        "select node, rank from state order by rank desc, node",
    )


def _sum(expression: str) -> str:
    return f"list_sum(list_sort(list({expression})))"


COMPONENTS = GraphSteps(
    "select node, node as component from "
    "(select source as node from edges union select target from edges) order by node",
    """
    select node, least(any_value(s.component), coalesce(min(o.component), any_value(s.component))) as component
    from state as s
    left join (select source as node, target as other from edges union select target, source from edges) using (node)
    left join state as o on o.node = other
    group by node order by node
    """,
    "select count(*) from next as n join state as s using (node) where n.component <> s.component",
    "select node, component from state order by component, node",
)
CLOSURE = GraphSteps(
    "select distinct source, target, 1 as hops from edges order by all",
    """
    from state
    union all
    select s.source, e.target, min(s.hops) + 1 as hops
    from state as s join edges as e on e.source = s.target
    where s.hops = (select max(hops) from state)
    and not exists (from state as k where k.source = s.source and k.target = e.target)
    group by all
    order by all
    """,
    "select (select count(*) from next) - (select count(*) from state)",
    "select source, target, hops from state order by source, target",
)


def graph_database(edges: Path) -> Any:
    """Return a DuckDB connection with the view `edges` of a Parquet file: rows without null ends."""
    database = memory_database()
    known = "source is not null and target is not null"
    database.execute(f"create view edges as from read_parquet({sql_literal(str(edges))}) where {known}")
    return database


UNWEIGHTED = "select count(*) from edges where not coalesce(weight > 0, false)"


def next_state(database: Any, steps: GraphSteps, state: Path | None, into: Path) -> float:
    """Write the state after `state` (None: the first one) to the Parquet file `into`; return how much changed."""
    change = 1.0
    if state is None:
        database.execute(f"create or replace table next as {steps.first}")
    else:
        _view_state(database, state)
        database.execute(f"create or replace table next as {steps.following}")
        change = float(database.execute(steps.change).fetchall()[0][0])
    unfinished = into.with_suffix(".part")
    database.execute(f"copy next to {sql_literal(str(unfinished))} (format parquet)")
    unfinished.replace(into)
    return change


def _view_state(database: Any, state: Path) -> None:
    database.execute(f"create or replace view state as from read_parquet({sql_literal(str(state))})")


LEARNING_JOB = "spark_jobs.jobs.learning_job"
REQUIRED = {
    "pagerank": ("source", "target", "weight"),
    "components": ("source", "target"),
    "closure": ("source", "target"),
    "als": ("user", "item", "rating"),
}
KEPT_HOURS = 24
"""How long a reader may use a replaced result."""
Reporter = Callable[[str], None]


def _refused(analysis: Analysis, why: str) -> Terminal:
    """Return that the rows of an analysis are not what its algorithm needs."""
    file = f"{analysis.dataset}/analysis/{analysis.name}.yaml"
    again = f"correct {file}, then: headrace analysis run {analysis.dataset} {analysis.name}"
    return Terminal(f"analysis.{analysis.name}: {why}; nothing was published", again, code="analysis-refused")


@dataclass(frozen=True)
class AnalysisRun:
    """A run that is not finished: number, declaration, sources by table name, last iteration and what it changed."""

    number: int
    code: str
    sources: Mapping[str, tuple[str, int]]
    iteration: int = -1
    change: float = 1.0


def run_analysis(settings: Settings, analysis: Analysis, report: Reporter) -> PublishedAnalysis:
    """Run an analysis, or continue its run, and publish the result. Raises Terminal (`analysis-refused`), Transient."""
    folder = analysis_run_path(settings, analysis.dataset, analysis.name)
    lock = analyses_path(settings, analysis.dataset) / "lock"
    try:
        held = take_lock(lock, f"headrace analysis run {analysis.dataset} {analysis.name}")
    except LockHeld as error:
        what = f"{analysis.dataset}: {error} runs an analysis; nothing was started"
        raise Transient(what, "the same command, later", code="analysis-busy") from error
    with held:
        run = _continued(folder, analysis, report) or _begun(settings, folder, analysis, report)
        result, figures = _computed(settings, folder, analysis, run, report)
        published = _published(settings, analysis, run, result, figures)
        shutil.rmtree(folder)
    return published


def _continued(folder: Path, analysis: Analysis, report: Reporter) -> AnalysisRun | None:
    """Return the run that a killed process left, unless its declaration has changed since."""
    try:
        run = AnalysisRun(**json.loads((folder / "run.json").read_bytes()))
    except FileNotFoundError:
        return None
    if run.code != analysis.code:
        return None
    run = replace(run, sources={name: (release, version) for name, (release, version) in run.sources.items()})
    report(f"continues run {run.number} after iteration {run.iteration}")
    return run


def _begun(settings: Settings, folder: Path, analysis: Analysis, report: Reporter) -> AnalysisRun:
    reading, query = pinned(settings), analysis.declared.query
    names = tables_mentioned(query, sorted(reading.tables))
    known = published_analyses(settings, analysis.dataset).get(analysis.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = _read_rows(reading, analysis, folder / "rows.parquet")
    sources = {name: (reading.tables[name].release, reading.tables[name].version) for name in names}
    run = AnalysisRun(known.run + 1 if known else 1, analysis.code, sources)
    _record(folder, run)
    report(f"run {run.number}: {rows:,} rows of {', '.join(names) or 'no table'}")
    return run


def _read_rows(reading: PinnedTables, analysis: Analysis, path: Path) -> int:
    """Write the rows of the analysis's query as a Parquet file; return their number."""
    import pyarrow.parquet as pq

    declared, count = analysis.declared, 0
    needed = REQUIRED.get(declared.algorithm, ())
    if isinstance(declared, KMeans):
        needed = (declared.key, *declared.features)
    connection, rows = open_query(reading, declared.query)
    with closing(connection):
        if missing := [name for name in needed if name not in rows.schema.names]:
            why = f"its query has no column {', '.join(missing)}; it has {', '.join(rows.schema.names)}"
            raise _refused(analysis, why)
        with pq.ParquetWriter(path, rows.schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
                count += batch.num_rows
    if not count:
        raise _refused(analysis, "its query has no rows")
    return count


def _computed(
    settings: Settings, folder: Path, analysis: Analysis, run: AnalysisRun, report: Reporter
) -> tuple[Any, dict[str, float]]:
    """Return the result as an Arrow table, and the figures of the algorithm."""
    declared = analysis.declared
    if isinstance(declared, PageRank | Components | Closure):
        return _iterated(folder, analysis, declared, run, report)
    return _learned(settings, folder, analysis, declared, report)


def _iterated(
    folder: Path, analysis: Analysis, declared: PageRank | Components | Closure, run: AnalysisRun, report: Reporter
) -> tuple[Any, dict[str, float]]:
    steps, database = graph_steps(declared), graph_database(folder / "rows.parquet")
    enough = declared.tolerance if isinstance(declared, PageRank) else 0.0
    with closing(database):
        if isinstance(declared, PageRank):
            ((count,),) = database.execute(UNWEIGHTED).fetchall()
            if count:
                raise _refused(analysis, f"{count:,} rows have no weight above 0")
        while run.change > enough:
            if run.iteration == declared.iterations:
                why = f"iteration {run.iteration} still changed {run.change:.6g}; `iterations` allows no more"
                raise _refused(analysis, why)
            last, following = _state(folder, run.iteration), _state(folder, run.iteration + 1)
            change = next_state(database, steps, last if run.iteration >= 0 else None, following)
            run = replace(run, iteration=run.iteration + 1, change=change)
            _record(folder, run)
            last.unlink(missing_ok=True)
            report(f"iteration {run.iteration}: {run.change:.6g} changed")
        _view_state(database, _state(folder, run.iteration))
        result = database.sql(steps.result).to_arrow_table()
    return result, {"iterations": float(run.iteration), "change": run.change}


def _state(folder: Path, iteration: int) -> Path:
    return folder / f"iteration-{iteration}.parquet"


def _learned(
    settings: Settings, folder: Path, analysis: Analysis, declared: KMeans | Recommendations, report: Reporter
) -> tuple[Any, dict[str, float]]:
    import pyarrow.parquet as pq

    write_atomically(folder / "declared.json", declared.model_dump_json())
    again = f"headrace analysis run {analysis.dataset} {analysis.name}"
    name = f"analysis-{analysis.dataset}-{analysis.name}"
    report(f"fits {declared.algorithm}")
    last = run_job(settings, name, analysis.dataset, [LEARNING_JOB, str(folder)], lambda _: None, again)
    if "failed" in last:
        raise _refused(analysis, str(last["failed"]))
    return pq.read_table(folder / "result", partitioning=None), dict(last["figures"])


def _published(
    settings: Settings, analysis: Analysis, run: AnalysisRun, result: Any, figures: dict[str, float]
) -> PublishedAnalysis:
    """Write the result as the next version of its table, once for a run, and publish it."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    path, app_id = analysis_table_path(settings, analysis.dataset, analysis.name), f"analysis/{analysis.name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not DeltaTable.is_deltatable(str(path)) or (DeltaTable(str(path)).transaction_version(app_id) or 0) < run.number:
        facts = json.dumps({"app_id": app_id, "analysis": analysis.name, "sources": run.sources, "figures": figures})
        properties = CommitProperties({"userMetadata": facts}, app_transactions=[Transaction(app_id, run.number)])
        write_deltalake(str(path), result, mode="overwrite", schema_mode="overwrite", commit_properties=properties)
    table = DeltaTable(str(path))
    published = PublishedAnalysis(analysis.name, table.version(), run.number, analysis.code, run.sources, figures)
    publish_analysis(settings, analysis.dataset, published)
    table.vacuum(KEPT_HOURS, dry_run=False, enforce_retention_duration=False)
    return published


def _record(folder: Path, run: AnalysisRun) -> None:
    write_atomically(folder / "run.json", json.dumps(asdict(run)))
