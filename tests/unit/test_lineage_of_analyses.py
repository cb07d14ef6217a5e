"""OpenLineage events of analyses."""

from __future__ import annotations

from pathlib import Path

from lineage_receiver import LineageReceiver, column_edges, edges
from small_warehouse import SmallWarehouse, silver_row

from include.change.analysis import run_analysis
from include.declare.analyses import declared_analysis
from include.ground.settings import Settings
from include.observe.lineage_sender import EventFollower, receiver


def test_analysis_is_a_run_over_the_tables_of_its_query(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    made = SmallWarehouse(settings)
    made.write("silver", [silver_row(n, str(n), kind=a, shop=b) for n, (a, b) in enumerate([("a", "b"), ("b", "c")])])
    made.move()
    folder = settings.datasets / "sales" / "analysis"
    folder.mkdir(parents=True)
    (folder / "parts.yaml").write_text(
        "algorithm: components\nquery: select kind as source, shop as target from silver.sales\n"
    )
    http = LineageReceiver()
    with http.up():
        settings = settings.model_copy(update={"openlineage_url": http.url})
        follower = EventFollower(settings, receiver(settings), print)
        for _ in range(3):
            run_analysis(settings, declared_analysis(settings, "sales", "parts"), lambda _: None)
        follower.poll()
        assert len(http.of("sales.analysis.parts")) == 1, "history of before the first poll is left out"
        for _ in range(2):
            run_analysis(settings, declared_analysis(settings, "sales", "parts"), lambda _: None)
        follower.poll()
    runs = http.of("sales.analysis.parts")
    assert len(http.run_ids("sales.analysis.parts")) == 3
    versions = [run["outputs"][0]["facets"]["version"]["datasetVersion"] for run in runs]
    assert versions == sorted(set(versions))
    tables = settings.state.as_uri()
    assert edges(runs)[tables, "analysis.parts"] == {(tables, "silver.sales")}
    for made_of in column_edges(runs).values():
        assert made_of == {(tables, "silver.sales", "kind"), (tables, "silver.sales", "shop")}
    assert "from silver.sales" in runs[0]["job"]["facets"]["sql"]["query"]
