"""Graph algorithms as SQL: each iteration computes the next state from the last one, until nothing changes.

Doubles are added up in their order, so that a sum does not depend on the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.declare.analyses import Closure, Components, PageRank
from include.ground.sql_quoting import sql_literal
from include.read.memory_database import memory_database

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


def unweighted_edges(database: Any) -> int:
    """Return how many edges have no weight above 0."""
    return int(database.execute("select count(*) from edges where not coalesce(weight > 0, false)").fetchall()[0][0])


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


def final_state(database: Any, steps: GraphSteps, state: Path) -> Any:
    """Return the result of the last state as an Arrow table."""
    _view_state(database, state)
    return database.sql(steps.result).to_arrow_table()


def _view_state(database: Any, state: Path) -> None:
    database.execute(f"create or replace view state as from read_parquet({sql_literal(str(state))})")
