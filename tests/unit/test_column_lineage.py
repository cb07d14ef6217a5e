"""Column lineage from declarations: what silver.py names, what gold declares, what SQL selects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lineage_receiver import edges
from typer.testing import CliRunner

from include.cli.main import app
from include.declare.column_lineage import ColumnOrigin, declared_columns, query_columns, topic_fields
from include.declare.dataset import dataset_names, declared_dataset
from include.declare.derived_dataset import declared_derived, derived_edges, derived_names, lineage_edges
from include.declare.silver_columns import RECORD, silver_columns
from include.declare.sql_checks import known_path
from include.ground.settings import CLONE, Settings, load_settings

WORKLOADS = CLONE / "tests" / "workloads" / "datasets"
ORDERS = {"orders": ["id", "customer", "amount", "placed_at"], "customers": ["id", "name", "region"]}


def shown(origins: tuple[ColumnOrigin, ...]) -> list[str]:
    return [f"{each.table}.{each.column} {each.use}" for each in origins]


def added(body: str) -> dict[str, set[tuple[str, str]]]:
    text = f"from pyspark.sql import functions as F\n\ndef silver(accepted, planes):\n{body}"
    return silver_columns(text, ["kind", "tail", "late"], {"planes": ["tail", "year", "kind"]}).added


def test_silver_names_the_fields_that_a_column_is_made_of() -> None:
    found = added('    return accepted.withColumn("score", F.col("late") * 2 + F.length("kind"))')
    assert found == {"score": {(RECORD, "late"), (RECORD, "kind")}}


def test_silver_reaches_fields_through_variables_and_earlier_columns() -> None:
    body = '    parts = F.split("kind", "/")\n'
    body += '    more = accepted.withColumn("first", parts[0])\n    return more.withColumn("again", F.upper("first"))'
    assert added(body) == {"first": {(RECORD, "kind")}, "again": {(RECORD, "kind")}}


def test_silver_tells_columns_of_a_reference_table_from_fields_of_the_same_name() -> None:
    body = '    built = planes.select("tail", F.col("year").alias("built_in"), F.col("kind").alias("plane_kind"))\n'
    body += '    return accepted.join(F.broadcast(built), "tail", "left")'
    assert added(body) == {"built_in": {("planes", "year")}, "plane_kind": {("planes", "kind")}}


def test_silver_whose_names_are_made_up_as_it_runs_has_no_known_origin() -> None:
    assert added('    return accepted.withColumn("odd", F.lit(1))') == {"odd": set()}
    assert added('    return accepted.withColumns({n + "_x": F.col(n) for n in ("kind",)})') == {}


def test_text_that_is_no_python_adds_nothing() -> None:
    assert silver_columns("def silver(:", ["a"], {}).added == {}


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("amount", "amount"),
        ("silver.amount", "amount"),
        ("Buyer.City", "Buyer.City"),
        ("silver.buyer.city", "buyer.city"),
        ("labels.k", "labels"),
        ("_batch_id", "_batch_id"),
    ],
)
def test_a_name_in_an_expression_is_the_longest_known_one(named: str, found: str) -> None:
    assert known_path(named.split("."), {"amount", "buyer", "buyer.city", "labels", "city"}) == found


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id from orders", {"id": ["orders.id identity"]}),
        ("select amount * 2 as double from orders", {"double": ["orders.amount transformation"]}),
        ("select sum(amount) as total from orders", {"total": ["orders.amount aggregation"]}),
        (
            "select case when region = 'x' then name end as n from customers",
            {"n": ["customers.name transformation", "customers.region conditional"]},
        ),
        (
            "select row_number() over (partition by customer order by placed_at) as n from orders",
            {"n": ["orders.customer window", "orders.placed_at window"]},
        ),
        ("select count(*) as n from orders group by customer", {"n": ["orders.customer group_by"]}),
        (
            "with t as (select id as k, sum(amount) as s from orders group by id) select k, s + 1 as more from t",
            {"k": ["orders.id identity"], "more": ["orders.amount aggregation"]},
        ),
        (
            "select id from orders union all select id from customers",
            {"id": ["customers.id identity", "orders.id identity"]},
        ),
        (
            "select o.*, c.name from orders o join customers c on o.customer = c.id",
            {
                "id": ["orders.id identity"],
                "customer": ["orders.customer identity"],
                "amount": ["orders.amount identity"],
                "placed_at": ["orders.placed_at identity"],
                "name": ["customers.name identity"],
            },
        ),
        (
            "select word from customers lateral view explode(split(name, ' ')) as word",
            {"word": ["customers.name transformation"]},
        ),
        ("select nowhere from orders", {"nowhere": ["orders.nowhere identity"]}),
        ("select ]", {}),
    ],
)
def test_query_columns_are_followed_to_tables(sql: str, expected: dict[str, list[str]]) -> None:
    found = query_columns(sql, ORDERS).columns
    assert {name: shown(origins) for name, origins in found.items()} == expected


def test_rows_of_a_query_depend_on_filters_joins_and_groups() -> None:
    sql = "select o.customer from orders o join customers c on o.customer = c.id where c.region = 'x' group by 1"
    assert shown(query_columns(sql, ORDERS).rows) == [
        "customers.id join",
        "customers.region filter",
        "orders.customer group_by",
        "orders.customer join",
    ]


@pytest.mark.parametrize("datasets", [CLONE / "include" / "datasets", WORKLOADS])
def test_each_declared_column_has_origins_in_the_tables_that_lineage_names(datasets: Path, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path, datasets=datasets)
    declared = [edge for name in dataset_names(settings) for edge in lineage_edges(declared_dataset(settings, name))]
    declared += [edge for name in derived_names(settings) for edge in derived_edges(declared_derived(settings, name))]
    sources: dict[str, set[str]] = {}
    for edge in declared:
        sources.setdefault(edge.target, set()).add(edge.source)
    found = declared_columns(settings)
    assert found.keys() == sources.keys()
    for table, columns in found.items():
        assert columns.columns, table
        for column, origins in columns.columns.items():
            assert origins, f"{table}.{column}"
            assert {each.table for each in origins} <= sources[table], f"{table}.{column}"
            for each in origins:
                if each.table in found:
                    kafka = each.column in ("topic", "partition", "offset", "timestamp", "_batch_id")
                    assert kafka or each.column in found[each.table].columns, f"{table}.{column} ← {each}"


def test_columns_of_flights_lead_back_to_fields_of_the_contract(tmp_path: Path) -> None:
    known = declared_columns(Settings(state=tmp_path))
    fields = {column.name for column in declared_dataset(Settings(state=tmp_path), "flights").contract.columns}
    for name in ("carrier_hours", "route_days", "flight_status", "worst_delays"):
        for column in known[f"gold.{name}"].columns:
            found = topic_fields(known, f"gold.{name}", column)
            assert found
            assert {each.column for each in found if each.table == "topic flights"} <= fields
    airline = topic_fields(known, "silver.flights", "airline")
    assert {(each.table, each.column) for each in airline} == {("reference flights.airlines", "name")}


def ran(monkeypatch: pytest.MonkeyPatch, state: Path, *arguments: str) -> str:
    """Run the command line; return what it prints."""
    monkeypatch.setenv("HEADRACE_STATE", str(state))
    load_settings.cache_clear()
    result = CliRunner().invoke(app, list(arguments))
    load_settings.cache_clear()
    assert result.exit_code == 0, result.output
    return result.stdout


def test_lineage_of_a_table_shows_columns_and_fields(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = ran(monkeypatch, tmp_path, "lineage", "gold.route_days").splitlines()
    (air,) = [line.split() for line in lines if line.split()[0] == "air_minutes"]
    assert air == ["air_minutes", "silver.flights.air_time", "(aggregation)", "air_time"]
    found = json.loads(ran(monkeypatch, tmp_path, "lineage", "gold.route_days", "--json"))
    assert {"table": "silver.flights", "column": "air_time", "use": "aggregation"} in found["columns"]["air_minutes"]


def exported(monkeypatch: pytest.MonkeyPatch, state: Path, *arguments: str) -> str:
    return ran(monkeypatch, state, "openlineage", *arguments)


def test_export_has_the_edges_of_headrace_lineage_and_the_analyses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events = [json.loads(line) for line in exported(monkeypatch, tmp_path, "--export", "-").splitlines()]
    graph = {target: {name for _, name in made_of} for (_, target), made_of in edges(events).items()}
    settings = Settings(state=tmp_path)
    declared = [edge for name in dataset_names(settings) for edge in lineage_edges(declared_dataset(settings, name))]
    declared += [edge for name in derived_names(settings) for edge in derived_edges(declared_derived(settings, name))]
    for edge in declared:
        source = edge.source.removeprefix("topic ").replace("reference ", "reference.")
        assert source in graph[edge.target], edge
    assert graph["analysis.airport_rank"] == {"gold.route_days"}
    assert {event.get("run") for event in events} == {None}


def test_export_writes_a_file_and_says_how_many_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "graph.jsonl"
    assert exported(monkeypatch, tmp_path, "--export", str(file)).split()[:2] == [
        str(len(file.read_text().splitlines())),
        "jobs:",
    ]
