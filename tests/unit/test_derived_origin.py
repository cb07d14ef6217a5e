"""`explain` of gold of gold: from the last table through the one before it to the records of the topics."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from include.audit.origin import DerivedOrigin, OriginRefused, derived_origin
from include.declare.derived_dataset import snapshot_derived
from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.read.publication import Publication, SourceVersion, TableVersion, publish
from include.read.published_tables import pinned

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOURS = """\
sources: {flights: silver.flights, weather: silver.weather}
gold:
  hours:
    query: gold/any.sql
    grain: [hour, origin]
    touched_by:
      flights: {hour: "date_trunc('hour', left_at)", origin: origin}
      weather:
        hour: "sequence(date_trunc('hour', at), date_trunc('hour', at) + interval 2 hours, interval 1 hour)"
        origin: station
"""
DAYS = """\
sources: {hours: gold.hours}
gold:
  days:
    query: gold/any.sql
    grain: [day]
    touched_by: {hours: {day: "cast(date_trunc('day', hour) as date)"}}
"""


def moment(hour: int, minute: int = 0) -> datetime:
    return datetime(2013, 3, 1, hour, minute, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    for name, declared in {"by_hour": HOURS, "by_day": DAYS}.items():
        (settings.datasets / name / "gold").mkdir(parents=True)
        (settings.datasets / name / "derived.yaml").write_text(declared)
        (settings.datasets / name / "gold" / "any.sql").write_text("select 1")
    record = {"_partition": 0, "_batch_id": 0}
    flights = [{"left_at": moment(h, 30), "origin": "JFK", "_offset": n, **record} for n, h in enumerate((5, 9))]
    weather = [{"at": moment(h), "station": "JFK", "_offset": n, **record} for n, h in enumerate((4, 9))]
    published(settings, "flights", {"silver.flights": flights})
    published(settings, "weather", {"silver.weather": weather})
    hours = [{"hour": moment(h), "origin": "JFK", "departures": 1} for h in (5, 9)]
    published(settings, "by_hour", {"gold.hours": hours}, "silver.flights", "silver.weather")
    published(settings, "by_day", {"gold.days": [{"day": date(2013, 3, 1), "departures": 2}]}, "gold.hours")
    return settings


def published(settings: Settings, dataset: str, tables: dict[str, list[dict[str, Any]]], *sources: str) -> None:
    """Write tables and publish them as those of a dataset, derived when it has sources."""
    release = snapshot_derived(settings, dataset).release if sources else "r"
    versions = {}
    for name, rows in tables.items():
        path = f"{dataset}/{release}/{name.replace('.', '/')}"
        pl.DataFrame(rows).write_delta(warehouse(settings) / path)
        versions[name] = TableVersion(path, 0)
    used = {name: SourceVersion("-", 0, "r", 0, "-") for name in sources}
    publish(settings, Publication(dataset, release, 0, NOON, {}, versions, used))


def test_gold_of_gold_is_explained_down_to_the_records(settings: Settings) -> None:
    day = derived_origin(settings, pinned(settings), "gold.days", {"day": "2013-03-01"})
    (source,) = day.sources
    assert (source.table, source.count) == ("gold.hours", 2)
    made = []
    for hour in source.below:
        assert isinstance(hour, DerivedOrigin)
        ranges = {each.table: [(r.first, r.last) for r in each.ranges] for each in hour.sources}
        made.append((hour.rows[0]["hour"].hour, ranges))
    # The observation of 4 touches the hours 4 to 6, that of 9 the hours 9 to 11.
    assert made == [
        (5, {"silver.flights": [(0, 0)], "silver.weather": [(0, 0)]}),
        (9, {"silver.flights": [(1, 1)], "silver.weather": [(1, 1)]}),
    ]


def test_a_row_that_is_not_there_is_refused(settings: Settings) -> None:
    with pytest.raises(OriginRefused, match="has no row with day=2014-03-01"):
        derived_origin(settings, pinned(settings), "gold.days", {"day": "2014-03-01"})
