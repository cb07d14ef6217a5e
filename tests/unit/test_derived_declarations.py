"""Derived datasets as declared: every problem by file, line and key."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from include.change.kind import refuse_unknown_dataset
from include.declare.dataset import IsDerived, ReleaseUnknown, declared_dataset, released_dataset
from include.declare.dataset_checks import dataset_problems, validate_datasets
from include.declare.derived_dataset import as_dataset, origin_datasets, released_derived, snapshot_derived
from include.declare.yaml_declarations import DeclarationRefused, Problem
from include.ground.settings import CLONE, Settings

NAME = "delays_by_weather"
DECLARED = """\
sources:
  flights: silver.flights
  weather: silver.weather
gold:
  hourly_delays:
    query: gold/hourly_delays.sql
    grain: [hour, origin]
    partition: date_format(hour, 'yyyy-MM')
    touched_by:
      flights: {hour: "date_trunc('hour', scheduled_departure)", origin: origin}
      weather: {hour: "date_trunc('hour', observed_at)", origin: station}
"""
QUERY = """\
select date_trunc('hour', f.scheduled_departure) as hour, f.origin, count(*) as departures from flights f
left join weather w on w.station = f.origin
and date_trunc('hour', w.observed_at) = date_trunc('hour', f.scheduled_departure) group by all
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CLONE / "include" / "datasets", tmp_path / "datasets", ignore=ignored)
    (tmp_path / "datasets" / NAME / "gold").mkdir(parents=True)
    return Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")


def problems(settings: Settings, declared: str = DECLARED, query: str = QUERY) -> list[Problem]:
    """Return what is wrong with a declaration."""
    folder = settings.datasets / NAME
    (folder / "derived.yaml").write_text(declared)
    (folder / "gold" / "hourly_delays.sql").write_text(query)
    return dataset_problems(settings, NAME)


def test_a_correct_derived_dataset_has_no_problems(settings: Settings) -> None:
    assert problems(settings) == []


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("silver.weather", "silver.wether", "sources.weather", "there is no table silver.wether; tables: gold."),
        ("silver.weather", "bronze.weather", "sources.weather", "must be silver.<dataset> or gold.<table>"),
        ("silver.weather", "gold.hourly_delays", "sources.weather", "a source is a table of another one"),
        ("silver.weather", f"silver.{NAME}", "sources.weather", "a source is a table of another one"),
        ("weather: silver", "Weather: silver", "sources.Weather", "must be lower-case letters"),
        ("  hourly_delays:", "  weather_delays:", "gold.weather_delays", "dataset weather_delays has a gold table"),
        ("[hour, origin]", "[]", "gold.hourly_delays.grain", "must name at least one column"),
        ("hour, 'yyyy-MM'", "day, 'yyyy-MM'", "gold.hourly_delays.partition", "over hour, origin alone"),
        ("      weather: {", "      wether: {", "gold.hourly_delays.touched_by", "add weather: {…}"),
        ("      weather: {", "      wether: {", "gold.hourly_delays.touched_by.wether", "is not a source"),
        (", origin: station", "", "gold.hourly_delays.touched_by.weather", "gives hour"),
        ("origin: station", "origin: max(station)", "gold.hourly_delays.touched_by.weather.origin", "needs many"),
        ("origin: station", "origin: station)", "gold.hourly_delays.touched_by.weather.origin", "are not balanced"),
        ("gold/hourly_delays.sql", "gold/other.sql", "gold.hourly_delays.query", "there is no file"),
        ("    grain:", "    grains:", "gold.hourly_delays.grains", "is not a known key"),
    ],
)
def test_a_derived_declaration_is_refused_by_file_line_and_key(
    settings: Settings, old: str, new: str, key: str, words: str
) -> None:
    declared = DECLARED.replace(old, new, 1)
    assert declared != DECLARED
    found = next(each for each in problems(settings, declared) if words in each.why)
    assert (found.file.name, found.key) == ("derived.yaml", key)
    assert key.rsplit(".", 1)[-1] in declared.splitlines()[found.line - 1]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select hour, origin from planes", "reads planes, which is not a source"),
        ("select hour, origin from other.flights", "reads other.flights, which is not a source"),
        ("select origin, count(*) as n from flights", "must include hour"),
        ("select hour, origin from flights; drop table x", "one query and no other statement"),
        ("select from where", "is not SQL of Spark"),
    ],
)
def test_a_query_over_sources_is_refused(settings: Settings, query: str, words: str) -> None:
    assert any(words in each.why and each.key == "gold.hourly_delays.query" for each in problems(settings, query=query))


RULES = """\
    columns: {hour: {type: timestamp, description: Start of the hour.}, departures: {type: bigint}}
    quality:
      - type: custom
        engine: greatExpectations
        name: counts_are_counts
        customProperties: [{property: action, value: hold}]
        implementation: {type: expect_column_values_to_be_between, kwargs: {column: departures, min_value: 0}}
"""


def test_rules_and_promised_types_of_an_output_are_part_of_the_declaration(settings: Settings) -> None:
    assert problems(settings, DECLARED + RULES) == []
    (rule,) = as_dataset(snapshot_derived(settings, NAME)).contract.checks("gold.hourly_delays")
    assert (rule.name, rule.action, rule.columns) == ("counts_are_counts", "hold", ("departures",))


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("column: departures", "column: arrivals", "quality[0].implementation", "'arrivals' is not a column of the"),
        ("value: hold", "value: reject", "quality[0].implementation.type", "cannot reject a record"),
        ("value: hold", "value: halt", "quality[0].customProperties[0].value", "must be 'reject', 'warn', 'hold'"),
        ("values_to_be_between", "values_to_be_nice", "quality[0].implementation.type", "contract rules lists them"),
        ("counts_are_counts", "Counts", "quality[0].name", "must be lower-case letters"),
        ("departures: {type", "arrivals: {type", "columns.arrivals", "is not a column of the query"),
        ("{type: bigint}", "{kind: bigint}", "columns.departures", "is required and missing"),
    ],
)
def test_rules_over_other_columns_or_of_no_table_are_refused(
    settings: Settings, old: str, new: str, key: str, words: str
) -> None:
    found = problems(settings, DECLARED + RULES.replace(old, new, 1))
    assert any(each.key.startswith(f"gold.hourly_delays.{key}") and words in each.why for each in found), found


def test_gold_of_another_dataset_may_be_a_source(settings: Settings) -> None:
    assert problems(settings, DECLARED.replace("silver.flights", "gold.flight_status")) == []


def test_derived_datasets_that_form_a_circle_are_refused(settings: Settings) -> None:
    declared = settings.datasets / "weather_delays" / "derived.yaml"
    declared.write_text(declared.read_text().replace("silver.weather", "gold.hourly_delays"))
    found = problems(settings, DECLARED.replace("silver.weather", "gold.weather_delays"))
    assert [each.key for each in found] == ["sources.weather"]
    assert "must not form a circle" in found[0].why


def test_a_folder_that_also_declares_a_topic_is_refused(settings: Settings) -> None:
    (settings.datasets / NAME / "silver.py").write_text("")
    assert any("has no silver.py" in each.why for each in problems(settings))


def test_a_wrong_derived_dataset_is_not_started(settings: Settings) -> None:
    problems(settings, DECLARED.replace("silver.weather", "silver.wether"))
    with pytest.raises(DeclarationRefused, match=r"there is no table silver\.wether"):
        validate_datasets(settings, ["flights", NAME])
    validate_datasets(settings, ["flights", "weather"])


def test_what_needs_records_of_its_own_is_refused_for_a_derived_dataset(settings: Settings) -> None:
    problems(settings)
    release = snapshot_derived(settings, NAME).release
    for refused in (
        lambda: declared_dataset(settings, NAME),
        lambda: released_dataset(settings, NAME, release),
        lambda: refuse_unknown_dataset(settings, NAME),
    ):
        with pytest.raises(IsDerived, match="no records of its own"):
            refused()


def test_refused_plan_of_a_derived_dataset_names_its_source_datasets(settings: Settings) -> None:
    problems(settings)
    with pytest.raises(IsDerived) as refused:
        refuse_unknown_dataset(settings, NAME)
    assert refused.value.remedy.startswith("--dataset flights or weather in the same command")
    assert f"headrace backfill run --dataset {NAME}" in refused.value.remedy


@pytest.mark.parametrize(
    ("name", "origins"), [("customer_revenue", ["lineitem", "orders"]), ("auction_prices", ["auction"])]
)
def test_origins_of_gold_of_gold_are_datasets_with_a_topic(tmp_path: Path, name: str, origins: list[str]) -> None:
    workloads = CLONE / "tests" / "workloads" / "datasets"
    assert origin_datasets(Settings(state=tmp_path, datasets=workloads), name) == origins


def test_the_snapshot_of_a_release_keeps_what_was_declared(settings: Settings) -> None:
    problems(settings)
    first = snapshot_derived(settings, NAME)
    problems(settings, query=QUERY + "-- changed")
    second = snapshot_derived(settings, NAME)
    assert first.release != second.release
    assert released_derived(settings, NAME, first.release).pipeline == first.pipeline
    assert "changed" in second.pipeline.gold[0].query
    with pytest.raises(ReleaseUnknown):
        released_derived(settings, NAME, "other")
