"""Derived datasets as declared: every problem by file, line and key, and a refusal because no driver computes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from include.catalog.dataset_checks import dataset_problems, validate_datasets
from include.catalog.pipeline import load_pipeline
from include.catalog.yaml_declarations import DeclarationRefused, Problem
from include.settings import CLONE, Settings

NAME = "delays_by_weather"
DECLARED = """\
sources:
  flights: silver.flights
  weather: silver.weather
gold:
  hourly_delays:
    kind: query
    query: gold/hourly_delays.sql
    grain: [hour, origin]
    partition: date_format(hour, 'yyyy-MM')
    touched_by:
      flights: {hour: "date_trunc('hour', scheduled_departure)", origin: origin}
      weather: {hour: "date_trunc('hour', observed_at)", origin: station}
"""
QUERY = """\
select date_trunc('hour', f.scheduled_departure) as hour, f.origin, count(*) as departures from flights f
left join weather w on w.station = f.origin and w.observed_at <= f.occurred_at group by all
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CLONE / "include" / "datasets", tmp_path / "datasets", ignore=ignored)
    (tmp_path / "datasets" / NAME / "gold").mkdir(parents=True)
    return Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")


def problems(settings: Settings, declared: str = DECLARED, query: str = QUERY) -> list[Problem]:
    """Return what is wrong with a declaration, besides that no driver computes it."""
    folder = settings.datasets / NAME
    (folder / "pipeline.yaml").write_text(declared)
    (folder / "gold" / "hourly_delays.sql").write_text(query)
    found = dataset_problems(settings, NAME)
    assert sum("no driver computes" in each.why for each in found) == 1
    return [each for each in found if "no driver computes" not in each.why]


def test_a_correct_derived_dataset_is_refused_only_because_no_driver_computes_it(settings: Settings) -> None:
    assert problems(settings) == []


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("silver.weather", "silver.wether", "sources.weather", "there is no table silver.wether; tables: gold."),
        ("silver.weather", "bronze.weather", "sources.weather", "must be silver.<dataset> or gold.<table>"),
        ("silver.weather", "gold.hourly_delays", "sources.weather", "a source is a table of another one"),
        ("silver.weather", f"silver.{NAME}", "sources.weather", "a source is a table of another one"),
        ("weather: silver", "Weather: silver", "sources.Weather", "must be lower-case letters"),
        ("kind: query", "kind: additive", "gold.hourly_delays.kind", "must be query in a derived dataset"),
        ("[hour, origin]", "[]", "gold.hourly_delays.grain", "must name at least one column"),
        ("hour, 'yyyy-MM'", "day, 'yyyy-MM'", "gold.hourly_delays.partition", "over hour, origin alone"),
        ("      weather: {", "      wether: {", "gold.hourly_delays.touched_by", "add weather: {…}"),
        ("      weather: {", "      wether: {", "gold.hourly_delays.touched_by.wether", "is not a source"),
        (", origin: station", "", "gold.hourly_delays.touched_by.weather", "gives hour"),
        ("origin: station", "origin: max(station)", "gold.hourly_delays.touched_by.weather.origin", "needs many"),
        ("origin: station", "origin: station)", "gold.hourly_delays.touched_by.weather.origin", "one SQL expression"),
        ("gold/hourly_delays.sql", "gold/other.sql", "gold.hourly_delays.query", "there is no file"),
        ("    kind: query", "    kinds: query", "gold.hourly_delays.kinds", "is not a known key"),
    ],
)
def test_a_derived_declaration_is_refused_by_file_line_and_key(
    settings: Settings, old: str, new: str, key: str, words: str
) -> None:
    declared = DECLARED.replace(old, new, 1)
    assert declared != DECLARED
    found = next(each for each in problems(settings, declared) if words in each.why)
    assert (found.file.name, found.key) == ("pipeline.yaml", key)
    assert key.rsplit(".", 1)[-1] in declared.splitlines()[found.line - 1]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select hour, origin from planes", "reads planes, which is not a source"),
        ("select hour, origin from other.flights", "reads other.flights, which is not a source"),
        ("select origin, hour from flights", "must begin with hour, origin"),
        ("select hour, origin from flights; drop table x", "one query and no other statement"),
        ("select from where", "is not SQL of Spark"),
    ],
)
def test_a_query_over_sources_is_refused(settings: Settings, query: str, words: str) -> None:
    assert any(words in each.why and each.key == "gold.hourly_delays.query" for each in problems(settings, query=query))


def test_gold_of_another_dataset_may_be_a_source(settings: Settings) -> None:
    assert problems(settings, DECLARED.replace("silver.flights", "gold.flight_status")) == []


def test_a_derived_dataset_is_not_started_and_others_are(settings: Settings) -> None:
    assert problems(settings) == []
    validate_datasets(settings, ["flights", "weather"])
    with pytest.raises(DeclarationRefused, match="no driver computes them"):
        validate_datasets(settings, ["flights", NAME])
    with pytest.raises(DeclarationRefused, match="no driver computes them"):
        load_pipeline(settings.datasets / NAME)
