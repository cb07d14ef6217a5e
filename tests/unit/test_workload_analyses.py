"""Oracles of the graph analyses, and how their results are compared."""

from __future__ import annotations

import networkx as nx
import pytest
from workloads.analyses import differing_results
from workloads.graph_oracle import expected_closure, expected_components, expected_ranks

EDGES = {("a", "b"): 3, ("b", "c"): 1, ("c", "a"): 2, ("b", "d"): 5, ("x", "y"): 1}


def graph() -> nx.DiGraph:
    made = nx.DiGraph()
    made.add_weighted_edges_from((one, other, weight) for (one, other), weight in EDGES.items())
    return made


def test_oracles_of_graphs_equal_networkx() -> None:
    ranks = {row["node"]: row["rank"] for row in expected_ranks(EDGES)}
    assert ranks == pytest.approx(nx.pagerank(graph(), alpha=0.85, tol=1e-13, max_iter=1000), abs=1e-9)
    components = {row["node"]: row["component"] for row in expected_components(EDGES)}
    assert components == {n: min(part) for part in nx.weakly_connected_components(graph()) for n in part}
    ways = {(row["source"], row["target"]): row["hops"] for row in expected_closure(EDGES)}
    assert ways[("a", "a")] == 3
    hops = nx.all_pairs_shortest_path_length(graph())
    assert {way: n for way, n in ways.items() if way[0] != way[1]} == {
        (a, b): n for a, found in hops for b, n in found.items() if a != b
    }


def test_results_differ_by_rows_and_ranks_beyond_their_last_digits() -> None:
    ranks = expected_ranks(EDGES)
    near = [{**row, "rank": row["rank"] + 1e-10} for row in ranks]
    assert differing_results(ranks, near) == 0
    assert differing_results(ranks, [{**near[0], "rank": 0.9}, *near[1:]]) == 1
    assert differing_results(ranks, near[1:]) == 1
    assert differing_results(ranks, [*near, {"node": "z", "rank": 0.1}]) == 1
    ways = expected_closure(EDGES)
    assert differing_results(ways, [{**ways[0], "hops": 9}, *ways[1:]]) == 2
