"""What the graph analyses over routes must give, from the records of flights alone, in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from workloads.oracle_rows import Row
from workloads.travel_oracle import expected_flight_tables

DAMPING = 0.85
Edges = Mapping[tuple[str, str], int]


def departures(records: Iterable[bytes]) -> Edges:
    """Return how many flights have left from each airport to each other one."""
    found = Counter[tuple[str, str]]()
    for row in expected_flight_tables(records)["route_days"]:
        found[row["origin"], row["dest"]] += row["departed"]
    return {route: flights for route, flights in found.items() if flights}


def expected_ranks(edges: Edges) -> list[Row]:
    """Return each airport's PageRank, by as many iterations as change nothing any more."""
    nodes, ways = _nodes(edges), defaultdict[str, list[tuple[str, int]]](list)
    for (origin, dest), weight in edges.items():
        ways[origin].append((dest, weight))
    ranks = dict.fromkeys(nodes, 1 / len(nodes))
    for _ in range(500):
        flows = dict.fromkeys(nodes, 0.0)
        for origin, found in ways.items():
            total = sum(weight for _, weight in found)
            for dest, weight in found:
                flows[dest] += ranks[origin] * weight / total
        lost = sum(ranks[node] for node in nodes if node not in ways)
        ranks = {node: (1 - DAMPING + DAMPING * lost) / len(nodes) + DAMPING * flows[node] for node in nodes}
    return [{"node": node, "rank": rank} for node, rank in ranks.items()]


def expected_components(edges: Edges) -> list[Row]:
    """Return the first airport of those that each airport is connected with."""
    least = {node: node for node in _nodes(edges)}
    changed = True
    while changed:
        changed = False
        for one, other in edges:
            first = min(least[one], least[other])
            changed |= least[one] != least[other]
            least[one] = least[other] = first
    return [{"node": node, "component": first} for node, first in least.items()]


def expected_closure(edges: Edges) -> list[Row]:
    """Return from which airport one reaches which, and over how many flights at least."""
    found: list[Row] = []
    for start in {origin for origin, _ in edges}:
        reached, frontier = set[str](), {start}
        for hops in count(1):
            frontier = {dest for origin, dest in edges if origin in frontier} - reached
            if not frontier:
                break
            reached |= frontier
            found += [{"source": start, "target": dest, "hops": hops} for dest in frontier]
    return found


def _nodes(edges: Edges) -> list[str]:
    return sorted({node for edge in edges for node in edge})


GRAPHS: Mapping[str, Callable[[Edges], list[Row]]] = {
    "airport_rank": expected_ranks,
    "airport_components": expected_components,
    "reaches": expected_closure,
}
"""By the name of the analysis."""
