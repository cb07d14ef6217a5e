"""Derived tables of each kind of join, and gold of gold of gold, after late rows on both sides and a correction."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from held_lease import HeldLease
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_events import departed, observation
from small_release import Record, SmallRelease, small_release

from include.audit.origin import DerivedOrigin, derived_origin
from include.declare.dataset_checks import dataset_problems
from include.declare.derived_dataset import declared_derived, derived_edges, snapshot_derived
from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import CLONE, Settings
from include.read.publication import read_publication
from include.read.published_tables import pinned
from spark_jobs.jobs.audit_job import recomputed_tables
from spark_jobs.stream.derived import DerivedRelease

HOUR = timedelta(hours=1)
# As of event time: each departure with the last observation of the two hours before it.
AS_OF = """
select date_trunc('hour', f.scheduled_departure) as hour, f.origin, count(*) as departures,
       sum(f.departure_delay) as delay, sum(case when w.wind >= 20 then 1 else 0 end) as in_storm
from flights f
left join (
  select f.event_id, max_by(w.wind_speed, struct(w.observed_at, w._offset)) as wind
  from flights f join weather w
  on w.station = f.origin and w.observed_at <= f.scheduled_departure
     and w.observed_at > f.scheduled_departure - interval 2 hours
  group by f.event_id
) w on w.event_id = f.event_id
where f.kind = 'departed'
group by 1, 2
"""
UNION = """
select hour, origin, sum(events) as events from (
  select date_trunc('hour', scheduled_departure) as hour, origin, 1 as events from flights
  union all select date_trunc('hour', observed_at), station, 1 from weather
) as both group by hour, origin
"""
# Unbounded in time: the grain has no time in it.
BY_KEY = """
select f.origin, count(distinct f.event_id) as departures, count(*) as pairs
from flights f join weather w on w.station = f.origin and w.observed_at <= f.scheduled_departure
group by f.origin
"""
# By keys and bounds of time on both sides.
NEAR = """
select date_trunc('hour', f.scheduled_departure) as hour, f.origin, count(*) as pairs,
       sum(case when w.wind_speed >= 20 then 1 else 0 end) as in_storm
from flights f join weather w
on w.station = f.origin
   and w.observed_at between f.scheduled_departure - interval 1 hour and f.scheduled_departure + interval 1 hour
group by 1, 2
"""
DECLARED = """\
sources: {flights: silver.flights, weather: silver.weather}
gold:
  departures_in_wind:
    query: gold/as_of.sql
    grain: [hour, origin]
    touched_by:
      flights: {hour: "date_trunc('hour', scheduled_departure)", origin: origin}
      weather:
        hour: >-
          sequence(date_trunc('hour', observed_at), date_trunc('hour', observed_at) + interval 2 hours, interval 1 hour)
        origin: station
  airport_events:
    query: gold/union.sql
    grain: [hour, origin]
    touched_by:
      flights: {hour: "date_trunc('hour', scheduled_departure)", origin: origin}
      weather: {hour: "date_trunc('hour', observed_at)", origin: station}
  near_observations:
    query: gold/near.sql
    grain: [hour, origin]
    touched_by:
      flights: {hour: "date_trunc('hour', scheduled_departure)", origin: origin}
      weather:
        hour: >-
          sequence(date_trunc('hour', observed_at) - interval 1 hour,
          date_trunc('hour', observed_at) + interval 1 hour, interval 1 hour)
        origin: station
  earlier_observations:
    query: gold/by_key.sql
    grain: [origin]
    touched_by: {flights: {origin: origin}, weather: {origin: station}}
"""
DAYS = """\
sources: {hours: gold.departures_in_wind}
gold:
  wind_days:
    query: gold/days.sql
    grain: [day]
    touched_by: {hours: {day: "cast(hour as date)"}}
"""
TOTAL = """\
sources: {days: gold.wind_days}
gold:
  wind_total:
    query: gold/total.sql
    grain: [year]
    touched_by: {days: {year: "year(day)"}}
"""
FOLDERS = {
    "winds": {"derived.yaml": DECLARED, "as_of.sql": AS_OF, "union.sql": UNION, "near.sql": NEAR, "by_key.sql": BY_KEY},
    "wind_of_days": {
        "derived.yaml": DAYS,
        "days.sql": "select cast(hour as date) as day, sum(departures) as departures, sum(delay) as delay, "
        "sum(in_storm) as in_storm from hours group by 1",
    },
    "wind_of_years": {
        "derived.yaml": TOTAL,
        "total.sql": "select year(day) as year, sum(departures) as departures, sum(delay) as delay "
        "from days group by 1",
    },
}


@dataclass
class Chain:
    """Two sources, a derived dataset over them, and two that follow one another."""

    spark: SparkSession
    settings: Settings
    flights: SmallRelease
    weather: SmallRelease

    def follow(self) -> list[int]:
        """Let each derived dataset follow as a new process; return the number of runs of each."""
        counts = []
        for name in FOLDERS:
            release = DerivedRelease(self.settings, snapshot_derived(self.settings, name), self.spark, HeldLease())
            count = 0
            while (run := release.next_run()) is not None:
                release.execute(run)
                count += 1
            counts.append(count)
        return counts

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the published rows without provenance."""
        found = pinned(self.settings).read(f"gold.{table}").collect()
        return found.select(column for column in found.columns if not column.startswith("_")).to_dicts()

    def assert_right(self) -> None:
        """Assert that each table is its query over its sources, and joins and the last one what plain Python says."""
        for name in FOLDERS:
            found = recomputed_tables(self.settings, self.spark, read_publication(self.settings, name))
            assert {table: (each["missing"], each["surplus"]) for table, each in found.items()} == dict.fromkeys(
                found, (0, 0)
            )
        expected = in_wind(self.flights.silver(), self.weather.silver())
        hours = {
            (row["hour"], row["origin"]): (row["departures"], row["in_storm"])
            for row in self.rows("departures_in_wind")
        }
        assert hours == expected
        self._assert_joined()
        (year,) = self.rows("wind_total")
        assert year["departures"] == sum(count for count, _ in expected.values())
        left = self.flights.silver().filter(pl.col("kind") == "departed")
        assert year["delay"] == left["departure_delay"].sum()

    def _assert_joined(self) -> None:
        """Assert the join with bounds, the one without, and the union, in plain Python."""
        flights, weather = self.flights.silver().to_dicts(), self.weather.silver().to_dicts()
        pairs = [(f, w, f["scheduled_departure"] - w["observed_at"]) for f in flights for w in weather]
        near = [(hour_of(f["scheduled_departure"]), w["wind_speed"] >= 20) for f, w, gap in pairs if abs(gap) <= HOUR]
        counted = Counter(hour for hour, _ in near), Counter(hour for hour, in_storm in near if in_storm)
        rows = self.rows("near_observations")
        assert {row["hour"]: (row["pairs"], row["in_storm"]) for row in rows} == {
            hour: (count, counted[1][hour]) for hour, count in counted[0].items()
        }
        earlier = [f["event_id"] for f, _, gap in pairs if gap >= timedelta()]
        (total,) = self.rows("earlier_observations")
        assert (total["departures"], total["pairs"]) == (len(set(earlier)), len(earlier))
        times = [f["scheduled_departure"] for f in flights] + [w["observed_at"] for w in weather]
        assert {row["hour"]: row["events"] for row in self.rows("airport_events")} == Counter(map(hour_of, times))


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def in_wind(flights: pl.DataFrame, weather: pl.DataFrame) -> dict[tuple[datetime, str], tuple[int, int]]:
    """Return departures, and those in a storm, by hour and airport, in plain Python."""
    found: dict[tuple[datetime, str], tuple[int, int]] = {}
    seen = weather.sort("observed_at").to_dicts()
    for each in flights.filter(pl.col("kind") == "departed").to_dicts():
        at = each["scheduled_departure"]
        earlier = [
            w["wind_speed"] for w in seen if w["station"] == each["origin"] and at - 2 * HOUR < w["observed_at"] <= at
        ]
        storm = bool(earlier) and earlier[-1] >= 20
        key = hour_of(at), each["origin"]
        count, storms = found.get(key, (0, 0))
        found[key] = count + 1, storms + storm
    return found


@pytest.fixture
def chain(spark: SparkSession, tmp_path: Path) -> Chain:
    datasets = tmp_path / "datasets"
    for name in ("flights", "weather"):
        shutil.copytree(CLONE / "include" / "datasets" / name, datasets / name)
    for name, files in FOLDERS.items():
        (datasets / name / "gold").mkdir(parents=True)
        for file, text in files.items():
            (datasets / name / ("" if file.endswith("yaml") else "gold") / file).write_text(text)
    settings = Settings(state=tmp_path / "state", datasets=datasets)
    return Chain(spark, settings, small_release(spark, settings, "flights"), small_release(spark, settings, "weather"))


def flight(number: int, hour: int, delay: int) -> Record:
    return departed(
        number, delay, f"2013-03-01T{hour:02}:50:00Z", scheduled=f"2013-03-01T{hour:02}:30:00Z", origin="JFK"
    )


def wind(hour: int, speed: float) -> Record:
    return observation(f"2013-03-01T{hour:02}", wind_speed=str(speed), temp="40.5", visib="9.0", precip="0.1")


def an_hour_more_delay(folder: Path) -> None:
    """Edit silver of flights: each departure is an hour later."""
    code = folder / "silver.py"
    shown = "return known.select(*accepted.columns"
    more = 'known = known.withColumn("departure_delay", F.col("departure_delay") + 60)'
    code.write_text(code.read_text().replace(shown, f"{more}\n    {shown}"))


@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_joins_of_each_kind_and_a_chain_follow_late_rows_and_a_correction(chain: Chain, tmp_path: Path) -> None:
    assert [dataset_problems(chain.settings, name) for name in FOLDERS] == [[], [], []]
    chain.flights.take([flight(number, hour, 20) for number, hour in enumerate((5, 6, 9, 12), 1)])
    chain.weather.take([wind(4, 10.0), wind(9, 30.0)])
    assert chain.follow() == [1, 1, 1]
    # A late observation changes the departures of two hours; a late flight those of one.
    chain.weather.take([wind(5, 25.0), wind(11, 22.0)])
    chain.flights.take([flight(10, 6, 45)])
    assert chain.follow() == [1, 1, 1]
    chain.assert_right()
    assert chain.follow() == [0, 0, 0]
    patcher = SlicePatcher(chain.flights, tmp_path / "edited")
    assert_replay_changes_nothing(chain, [patcher, SlicePatcher(chain.weather, tmp_path)])
    before = chain.rows("wind_total")
    patch, _, _ = patcher.rebuild(Slice([Span(0, 100, 102, BRONZE)]), an_hour_more_delay)
    patcher.apply(patch)
    assert chain.follow() == [1, 1, 1]
    chain.assert_right()
    (after,) = chain.rows("wind_total")
    assert after["delay"] == before[0]["delay"] + 2 * 60
    declared = [declared_derived(chain.settings, name) for name in FOLDERS]
    edges = [(edge.source, edge.target) for each in declared for edge in derived_edges(each)]
    assert edges[-2:] == [("gold.departures_in_wind", "gold.wind_days"), ("gold.wind_days", "gold.wind_total")]
    assert_explained(chain)


def assert_replay_changes_nothing(chain: Chain, sources: list[SlicePatcher]) -> None:
    """Compute all records of both sources again and apply that: no row differs, and nothing follows."""
    for patcher in sources:
        patch, _, differing = patcher.rebuild(Slice([Span(0, 0, 10_000, BRONZE)]))
        assert not any(differing.values())
        patcher.apply(patch)
    assert chain.follow() == [0, 0, 0]


def assert_explained(chain: Chain) -> None:
    """Assert that the last table of the chain is explained down to the records of both topics."""
    total = derived_origin(chain.settings, pinned(chain.settings), "gold.wind_total", {"year": "2013"})
    (days,) = total.sources[0].below
    assert isinstance(days, DerivedOrigin)
    hours = days.sources[0].below
    assert [each.rows[0]["hour"].hour for each in hours] == [5, 6, 9, 12]
    records: dict[str, int] = {}
    for hour in hours:
        assert isinstance(hour, DerivedOrigin)
        for source in hour.sources:
            records[source.table] = records.get(source.table, 0) + sum(r.records for r in source.ranges)
    # The observations of 4 and 5 touch the hours 5 and 6, that of 9 the hour 9, that of 11 the hour 12.
    assert records == {"silver.flights": 5, "silver.weather": 6}
