"""Analyses: graph algorithms equal plain Python; a killed run continues; results are published with their sources."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import polars as pl
import pytest
from error_codes import raises
from small_warehouse import SmallWarehouse, silver_row

from include.change import analysis as analysis_run
from include.change.analysis import run_analysis
from include.declare.analyses import analysis_problems, declared_analysis
from include.declare.dataset_checks import dataset_problems
from include.ground.errors import Refused, Terminal, Transient
from include.ground.paths import analyses_path, analysis_run_path
from include.ground.settings import CLONE, Settings
from include.read.published_sql import run_query
from include.read.published_tables import pinned
from include.read.subscription import subscribe
from include.state.lease import take_lock

Edges = list[tuple[str, str, int]]
QUERY = "query: select kind as source, shop as target, count(*) as weight from silver.sales group by all"


def graph() -> Edges:
    """Return two components; `z` has no way out, one edge is heavy."""
    numbers = random.Random(3)
    names = "abcdefgh"
    edges = {(a, b): numbers.randrange(1, 4) for a in names for b in names if a != b and numbers.random() < 0.25}
    return [*((a, b, w) for (a, b), w in sorted(edges.items())), ("a", "z", 2), ("x", "y", 1), ("y", "x", 5)]


def pagerank(edges: Edges, damping: float) -> dict[str, float]:
    nodes = sorted({node for a, b, _ in edges for node in (a, b)})
    totals = {node: sum(w for a, _, w in edges if a == node) for node in nodes}
    ranks = dict.fromkeys(nodes, 1 / len(nodes))
    for _ in range(500):
        lost = sum(ranks[node] for node in nodes if not totals[node])
        flows = {node: sum(ranks[a] * w / totals[a] for a, b, w in edges if b == node) for node in nodes}
        ranks = {n: (1 - damping) / len(nodes) + damping * (flows[n] + lost / len(nodes)) for n in nodes}
    return ranks


def reached(edges: Edges) -> dict[tuple[str, str], int]:
    """Return the least number of edges from one node to another, by breadth-first search."""
    found: dict[tuple[str, str], int] = {}
    for start in {a for a, _, _ in edges}:
        frontier = {start}
        for hops in itertools.count(1):
            frontier = {b for a, b, _ in edges if a in frontier and (start, b) not in found}
            if not frontier:
                break
            found |= {(start, node): hops for node in frontier}
    return found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")


@pytest.fixture
def warehouse(settings: Settings) -> SmallWarehouse:
    """Publish the graph as rows of silver."""
    made = SmallWarehouse(settings)
    rows = [(a, b) for a, b, weight in graph() for _ in range(weight)]
    made.write("silver", [silver_row(n, str(n), kind=a, shop=b) for n, (a, b) in enumerate(rows)])
    made.move()
    return made


@pytest.fixture
def declare(settings: Settings) -> Callable[[str, str], None]:
    def declared(name: str, text: str) -> None:
        path = settings.datasets / "sales" / "analysis" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return declared


Declare = Callable[[str, str], None]


def run(settings: Settings, name: str, report: Callable[[str], None] = lambda _: None) -> pl.DataFrame:
    """Run an analysis; return its table as a reader sees it."""
    run_analysis(settings, declared_analysis(settings, "sales", name), report)
    return pinned(settings).read(f"analysis.{name}").collect()


def test_pagerank_equals_plain_python(settings: Settings, warehouse: SmallWarehouse, declare: Declare) -> None:
    declare("ranks", f"algorithm: pagerank\n{QUERY}\ndamping: 0.5")
    found = run(settings, "ranks")
    assert dict(found.rows()) == pytest.approx(pagerank(graph(), 0.5), abs=1e-8)
    assert found["rank"].sum() == pytest.approx(1)
    assert found.equals(run(settings, "ranks")), "the same in each run, bit for bit"


def test_components_and_closure_equal_plain_python(
    settings: Settings, warehouse: SmallWarehouse, declare: Declare
) -> None:
    declare("parts", f"algorithm: components\n{QUERY}")
    declare("ways", f"algorithm: closure\n{QUERY}")
    parts: dict[str, set[str]] = {}
    for node, component in run(settings, "parts").rows():
        parts.setdefault(component, set()).add(node)
    assert parts == {"a": set("abcdefghz") & {n for a, b, _ in graph() for n in (a, b)}, "x": {"x", "y"}}
    assert {(a, b): hops for a, b, hops in run(settings, "ways").rows()} == reached(graph())


def test_graphs_of_routes_equal_networkx(settings: Settings, declare: Declare) -> None:
    numbers = random.Random(11)
    edges = {(numbers.randrange(60), numbers.randrange(60)): numbers.randrange(1, 5) for _ in range(110)}
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((f"n{a}", f"n{b}", weight) for (a, b), weight in edges.items())
    made = SmallWarehouse(settings)
    rows = [(a, b) for a, b, weight in graph.edges(data="weight") for _ in range(weight)]
    made.write("silver", [silver_row(n, str(n), kind=a, shop=b) for n, (a, b) in enumerate(rows)])
    made.move()
    declare("ranks", f"algorithm: pagerank\n{QUERY}")
    declare("parts", f"algorithm: components\n{QUERY}")
    declare("ways", f"algorithm: closure\n{QUERY}")
    expected = nx.pagerank(graph, alpha=0.85, tol=1e-12, max_iter=1000)
    assert dict(run(settings, "ranks").rows()) == pytest.approx(expected, abs=1e-8)
    parts = {min(part): part for part in nx.weakly_connected_components(graph)}
    assert run(settings, "parts").sort("node").rows() == sorted(
        (n, least) for least, part in parts.items() for n in part
    )
    hops = {(a, b): n for a, found in nx.all_pairs_shortest_path_length(graph) for b, n in found.items() if a != b}
    ways = {(a, b): n for a, b, n in run(settings, "ways").rows()}
    assert {pair: n for pair, n in ways.items() if pair[0] != pair[1]} == hops
    around = {node for cycle in nx.strongly_connected_components(graph) for node in cycle if len(cycle) > 1}
    assert {a for a, b in ways if a == b} == around | {node for node in graph if graph.has_edge(node, node)}


def test_killed_run_continues_with_the_rows_that_it_read(
    settings: Settings, warehouse: SmallWarehouse, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare("ranks", f"algorithm: pagerank\n{QUERY}\ndamping: 0.5")
    expected = run(settings, "ranks")
    step, steps = analysis_run.next_state, itertools.count()

    def dying(*arguments: object) -> float:
        if next(steps) == 5:
            raise KeyboardInterrupt
        return step(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(analysis_run, "next_state", dying)
    with pytest.raises(KeyboardInterrupt):
        run(settings, "ranks")
    warehouse.write("silver", [silver_row(99, "late", kind="new", shop="a")])
    warehouse.move(1)
    lines: list[str] = []
    assert run(settings, "ranks", lines.append).equals(expected)
    assert lines[0] == "continues run 2 after iteration 4"
    assert "new" in run(settings, "ranks")["node"].to_list(), "the next run reads what is published then"


def test_result_names_its_sources_and_is_published_once(
    settings: Settings, warehouse: SmallWarehouse, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare("parts", f"algorithm: components\n{QUERY}")
    analysis = declared_analysis(settings, "sales", "parts")
    with monkeypatch.context() as patch:
        patch.setattr(analysis_run, "publish_analysis", lambda *_: pytest.fail("killed before the publication"))
        with pytest.raises(pytest.fail.Exception):
            run_analysis(settings, analysis, lambda _: None)
    done = run_analysis(settings, analysis, lambda _: None)
    assert (done.run, done.version, dict(done.sources)) == (1, 0, {"silver.sales": (warehouse.release, 0)})
    assert not analysis_run_path(settings, "sales", "parts").exists()
    found = run_query(pinned(settings), "select count(distinct component) from analysis.parts")
    assert list(found.rows) == [(2,)]


def test_query_without_the_columns_or_rows_is_refused(
    settings: Settings, warehouse: SmallWarehouse, declare: Declare
) -> None:
    declare("ranks", "algorithm: pagerank\nquery: select kind as source, shop as target from silver.sales")
    with raises(Terminal, "analysis-refused", match="has no column weight"):
        run(settings, "ranks")
    declare("parts", "algorithm: components\nquery: select kind as source, shop as target from silver.sales limit 0")
    with raises(Terminal, "analysis-refused", match="has no rows"):
        run(settings, "parts")
    with raises(Refused, "analysis-unknown", match="parts, ranks"):
        declared_analysis(settings, "sales", "nothing")


def test_result_that_is_not_final_is_refused(settings: Settings, warehouse: SmallWarehouse, declare: Declare) -> None:
    declare("ways", f"algorithm: closure\n{QUERY}\niterations: 1")
    with raises(Terminal, "analysis-refused", match="iteration 1 still changed"):
        run(settings, "ways")
    assert "analysis.ways" not in pinned(settings).tables
    declare("ways", f"algorithm: closure\n{QUERY}\niterations: 50")
    assert run(settings, "ways").height == len(reached(graph()))


def test_edge_without_a_weight_is_refused(settings: Settings, warehouse: SmallWarehouse, declare: Declare) -> None:
    edges = "select kind as source, shop as target, if(kind = 'z', null, 0) as weight from silver.sales"
    declare("ranks", f"algorithm: pagerank\nquery: {edges}")
    with raises(Terminal, "analysis-refused", match="have no weight above 0"):
        run(settings, "ranks")


def test_changes_of_an_analysis_are_subscribed_to(
    settings: Settings, warehouse: SmallWarehouse, declare: Declare
) -> None:
    declare("parts", f"algorithm: components\n{QUERY}")
    whole = run(settings, "parts")
    change = next(subscribe("analysis.parts", settings=settings))
    assert change.added.num_rows == whole.height
    warehouse.write("silver", [silver_row(99, "late", kind="new", shop="x")])
    warehouse.move(1)
    run(settings, "parts")
    change = next(subscribe("analysis.parts", change.token, settings=settings))
    assert ("new", "new") in zip(*change.added.to_pydict().values(), strict=True)
    assert change.removed.num_rows == 2, "x and y are in another component"


def test_name_of_another_dataset_s_analysis_is_taken(settings: Settings, declare: Declare) -> None:
    shutil.copytree(CLONE / "include" / "datasets", settings.datasets, ignore=shutil.ignore_patterns("__pycache__"))
    (settings.datasets / "weather" / "analysis").mkdir()
    (settings.datasets / "weather" / "analysis" / "reaches.yaml").write_text(f"algorithm: components\n{QUERY}")
    (problem,) = dataset_problems(settings, "flights")
    assert (problem.file.name, "dataset weather has an analysis" in problem.why) == ("reaches.yaml", True)


def test_second_process_is_refused(settings: Settings, warehouse: SmallWarehouse, declare: Declare) -> None:
    declare("parts", f"algorithm: components\n{QUERY}")
    with take_lock(analyses_path(settings, "sales") / "lock", "another"), raises(Transient, "analysis-busy"):
        run(settings, "parts")


WRONG = {
    "algorithm: median\nquery: select 1": ("algorithm", "must be"),
    "algorithm: pagerank\nquery: select 1\ndampin: 0.9": ("dampin", "is not a known key"),
    "algorithm: pagerank\nquery: select 1\ndamping: 1.5": ("damping", "less than 1"),
    "algorithm: components\nquery: delete from silver.sales": ("query", "one query that reads"),
    "algorithm: components\nquery: select from where": ("query", "is not SQL"),
    "algorithm: kmeans\nquery: select 1\nkey: a\nfeatures: []\nclusters: 2": ("features", "at least 1"),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_declaration_is_refused_with_its_key(settings: Settings, declare: Declare, text: str) -> None:
    declare("wrong", text)
    (problem,) = analysis_problems(settings.datasets / "sales")
    assert (problem.key, WRONG[text][1] in problem.why) == (WRONG[text][0], True), problem
