"""A backfill of a derived dataset finds rows that are wrong, replaces them after approval, and can be rolled back."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from derived_site import DerivedSite, flight, opened, wind
from error_codes import raises
from fewer_gold_tables import small_flights
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from slice_patcher import copy_state
from small_release import SmallRelease, small_release

from include.change.kind import PlanConflict
from include.change.plan_parameters import BackfillParameters
from include.change.recompute import BackfillPlan, recomputes_everything
from include.change.stages import KINDS, approve, cancel, compare_built, confirm, stage_lines
from include.ground.errors import Terminal
from include.ground.paths import warehouse
from include.ground.settings import CLONE, Settings
from include.observe.ledger_reader import open_reader
from include.plans.comparison import EQUAL, NEEDS_APPROVAL
from include.plans.journal import record_result
from include.plans.plan import Applied, PlanRecord, RolledBack, SliceBuilt
from include.read.publication import publish, read_publication
from include.read.published_tables import pinned
from include.state.owner_requests import OwnerRequest, OwnerResponse, RequestKind, submit_request
from spark_jobs.jobs.audit_job import recomputed_tables
from spark_jobs.jobs.slice_job import rebuild
from spark_jobs.tables.failpoints import Step

NAME = "departures_in_wind"
HOURS = """
select date_trunc('hour', f.scheduled_departure) as hour, f.origin, count(*) as departures,
       sum(f.departure_delay) as delay, avg(w.wind_speed) as wind
from flights f left join weather w
  on w.station = f.origin and date_trunc('hour', w.observed_at) = date_trunc('hour', f.scheduled_departure)
group by 1, 2
"""
DAYS = """
select cast(scheduled_departure as date) as day, count(*) as departures,
       cast(sum(departure_delay) as double) / 3 as delay
from flights group by 1
"""
AIRPORTS = "select origin, count(*) as departures, sum(departure_delay) as delay from flights group by origin"
TOUCHED = {
    "hour": ("date_trunc('hour', scheduled_departure)", "date_trunc('hour', observed_at)"),
    "day": ("cast(scheduled_departure as date)", "cast(observed_at as date)"),
    "origin": ("origin", "station"),
}
GOLD = {
    "wind_hours": (HOURS, ("hour", "origin")),
    "wind_days": (DAYS, ("day",)),
    "wind_airports": (AIRPORTS, ("origin",)),
}
SECOND = (datetime(2013, 3, 2, tzinfo=UTC), datetime(2013, 3, 3, tzinfo=UTC))


def declare(datasets: Path, *tables: str) -> None:
    """Declare the derived dataset with some of its tables."""
    gold = dict[str, Any]()
    (datasets / NAME / "gold").mkdir(parents=True)
    for name in tables:
        query, grain = GOLD[name]
        sides = ({column: TOUCHED[column][side] for column in grain} for side in (0, 1))
        touched = dict(zip(("flights", "weather"), sides, strict=True))
        gold[name] = {"query": f"gold/{name}.sql", "grain": grain, "touched_by": touched}
        (datasets / NAME / "gold" / f"{name}.sql").write_text(query)
    declared = {"sources": {"flights": "silver.flights", "weather": "silver.weather"}, "gold": gold}
    (datasets / NAME / "derived.yaml").write_text(json.dumps(declared))


def followed(spark: SparkSession, folder: Path, *tables: str) -> DerivedSite:
    """Return a derived dataset over three days of flights and weather that has followed them."""
    datasets = folder / "datasets"
    shutil.copytree(CLONE / "include" / "datasets", datasets)
    declare(datasets, *tables)
    settings = Settings(state=folder / "state", datasets=datasets)
    flights = small_flights(spark, settings)
    weather = small_release(spark, settings, "weather")
    site = DerivedSite(spark, settings, flights, weather, opened(spark, settings, NAME))
    flights.take([flight(number, hour, 5 * number) for number, hour in enumerate((0, 1, 24, 25, 25, 26, 48))])
    weather.take([wind(hour, 3.3 + hour) for hour in (0, 24, 25, 48)])
    assert site.follow() == 1
    return site


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DerivedSite:
    """Return a site whose copies are changed by the tests."""
    return followed(spark, tmp_path_factory.mktemp("prepared"), "wind_hours", "wind_days")


@pytest.fixture
def site(prepared: DerivedSite, tmp_path: Path) -> DerivedSite:
    """Return the test's own copy."""
    settings = prepared.settings.model_copy(update={"state": tmp_path / "state"})
    copy_state(prepared.settings.state, settings.state)
    flights, weather = (
        SmallRelease(each.spark, settings, each.dataset, each.epoch, dict(each.ends), each.batches)
        for each in (prepared.flights, prepared.weather)
    )
    return DerivedSite(prepared.spark, settings, flights, weather, opened(prepared.spark, settings, NAME))


def planted(site: DerivedSite, table: str, where: str, **values: str) -> None:
    """Change published rows of a table by hand; without values delete them."""
    published = read_publication(site.settings, NAME)
    path = warehouse(site.settings) / published.tables[f"gold.{table}"].path
    delta = DeltaTable(str(path))
    if values:
        delta.update(values, predicate=where)
    else:
        delta.delete(where)
    tables = {**published.tables, f"gold.{table}": replace(published.tables[f"gold.{table}"], version=delta.version())}
    publish(site.settings, replace(published, tables=tables))
    site.restart()


def planned(site: DerivedSite, since: datetime, until: datetime, **given: Any) -> PlanRecord:
    parameters = BackfillParameters(start=since, end=until, **given)
    return BackfillPlan().plan(site.settings, NAME, parameters, "ann", datetime.now(UTC))


def compared(site: DerivedSite, record: PlanRecord) -> tuple[PlanRecord, dict[str, int]]:
    """Build and compare a plan; return it, and the keys that differ by table."""
    built = rebuild(site.settings, site.spark, NAME, record.plan.id)
    result = SliceBuilt.model_validate({"built": asdict(built), "seconds": 1.0})
    record = record_result(site.settings, record.plan.id, result, "ann")
    record, found = compare_built(site.settings, record, "ann", lambda _: None)
    assert found.verdict == (NEEDS_APPROVAL if any(built.differing.values()) else EQUAL)
    return record, {table.name: table.differing for table in found.tables}


def requested(site: DerivedSite, record: PlanRecord, kind: RequestKind = RequestKind.APPLY_PATCH) -> OwnerResponse:
    """Have the owner execute a request of a plan."""
    request = OwnerRequest(record.plan.id, kind, record.plan.release, record.last(SliceBuilt).attempt)
    submit_request(site.settings, NAME, request)
    try:
        return site.derived.answer(request)
    finally:
        (site.settings.state / "requests" / f"{NAME}.json").unlink(missing_ok=True)


def published_rows(site: DerivedSite) -> dict[str, list[dict[str, Any]]]:
    tables = read_publication(site.settings, NAME).tables
    return {name: site.rows(name.removeprefix("gold."), GOLD[name.removeprefix("gold.")][1]) for name in tables}


def differing(site: DerivedSite) -> dict[str, tuple[int, int]]:
    """Return what the audit finds missing and surplus."""
    found = recomputed_tables(site.settings, site.spark, read_publication(site.settings, NAME))
    return {name: (each["missing"], each["surplus"]) for name, each in found.items()}


def plant_errors(site: DerivedSite) -> None:
    """Make a row wrong, another one missing and a third one surplus on the second day, and one wrong on the third."""
    planted(site, "wind_hours", "hour = '2013-03-02T01:00:00Z'", departures="departures + 7")
    planted(site, "wind_hours", "hour = '2013-03-02T02:00:00Z'", hour="hour + interval '5 hours'")
    planted(site, "wind_hours", "hour = '2013-03-03T00:00:00Z'", departures="departures + 1")
    planted(site, "wind_days", "day = '2013-03-02'")


@pytest.mark.parametrize("backend", ["local", pytest.param("spark", marks=pytest.mark.extended)])
def test_wrong_missing_and_surplus_rows_of_a_range_are_replaced_after_approval_and_put_back(
    site: DerivedSite, backend: str
) -> None:
    site.restart(backend)
    right = published_rows(site)
    plant_errors(site)
    wrong = published_rows(site)
    record, found = compared(site, planned(site, *SECOND))
    assert found == {"gold.wind_hours": 3, "gold.wind_days": 1}
    assert published_rows(site) == wrong, "nothing is changed before the approval"
    record = approve(site.settings, record, "ann")
    response = requested(site, record)
    assert response.refused == ""
    record = record_result(site.settings, record.plan.id, Applied(batch=response.batch, seconds=1.0), "ann")
    assert confirm(site.settings, record).result == "corrected"
    assert differing(site) == {"gold.wind_hours": (1, 1), "gold.wind_days": (0, 0)}, "the third day is out of range"
    third = [row for row in right["gold.wind_hours"] if row["hour"].day != 3]
    assert [row for row in published_rows(site)["gold.wind_hours"] if row["hour"].day != 3] == third
    before = read_publication(site.settings, NAME)
    assert requested(site, record).refused == ""
    assert read_publication(site.settings, NAME).tables == before.tables, "applying twice applies once"
    assert requested(site, record, RequestKind.REVERT_PATCH).refused == ""
    record = record_result(site.settings, record.plan.id, RolledBack(batch=0, seconds=1.0), "ann")
    assert confirm(site.settings, record).result == "rolled back"
    assert published_rows(site) == wrong
    site.restart()
    assert site.follow() == 0, "no source has changed"
    site.flights.take([flight(20, 26, 1)])
    assert site.follow() == 1


def test_equal_range_is_recorded_as_verified_and_needs_no_request(site: DerivedSite) -> None:
    before = read_publication(site.settings, NAME)
    record, found = compared(site, planned(site, *SECOND))
    assert not any(found.values())
    assert record.last(SliceBuilt).records == 4, "three hours and a day"
    record = approve(site.settings, record, "ann")
    record = record_result(site.settings, record.plan.id, KINDS[record.plan.kind].apply(site.settings, record), "ann")
    assert confirm(site.settings, record).result == "verified"
    _, verified = open_reader(site.settings).event_times(NAME, before.release)
    assert [(each.since, each.until, each.batch) for each in verified] == [(*SECOND, before.batch)]
    assert read_publication(site.settings, NAME) == before


@pytest.mark.extended
@pytest.mark.parametrize(
    ("step", "passes", "backend"),
    [
        pytest.param(Step.PATCH_STARTED, 1, "local", marks=pytest.mark.extended),
        (Step.PATCH_GOLD_COMMITTED, 1, "local"),
        pytest.param(Step.PATCH_GOLD_COMMITTED, 2, "local", marks=pytest.mark.extended),
        pytest.param(Step.PATCH_PUBLISHED, 1, "local", marks=pytest.mark.extended),
        pytest.param(Step.PATCH_GOLD_COMMITTED, 1, "spark", marks=pytest.mark.extended),
    ],
)
def test_crash_while_a_patch_is_applied_or_reverted_is_finished_before_any_run(
    site: DerivedSite, step: Step, passes: int, backend: str
) -> None:
    site.restart(backend)
    right = published_rows(site)
    planted(site, "wind_hours", "hour = '2013-03-02T01:00:00Z'", departures="departures + 7")
    planted(site, "wind_days", "day = '2013-03-02'", departures="0")
    states = [published_rows(site), right]
    record = approve(site.settings, compared(site, planned(site, *SECOND))[0], "ann")
    for kind, before, after in (
        (RequestKind.APPLY_PATCH, states[0], states[1]),
        (RequestKind.REVERT_PATCH, states[1], states[0]),
    ):
        with pytest.raises(Died), dying_at(step, passes):
            requested(site, record, kind)
        assert published_rows(site) == (after if step is Step.PATCH_PUBLISHED else before)
        with raises(Terminal, "already-published"):
            cancel(site.settings, record, "ann")
        site.restart()
        site.derived.finish_patch()
        assert published_rows(site) == after
        assert requested(site, record, kind).refused == ""
        assert published_rows(site) == after


@pytest.mark.extended
def test_patch_of_rows_that_have_changed_since_is_refused_and_of_others_is_applied(site: DerivedSite) -> None:
    planted(site, "wind_hours", "hour = '2013-03-02T01:00:00Z'", departures="departures + 7")
    record = approve(site.settings, compared(site, planned(site, *SECOND))[0], "ann")
    before = published_rows(site)
    fresh = site.derived.current_sources()
    site.flights.take([flight(30, 25, 9)])
    assert site.derived.current_sources() != fresh
    publication = read_publication(site.settings, NAME)
    # The publication claims sources that no run has used: its rows are the compared ones, and a run gives others.
    publish(site.settings, replace(publication, sources=site.derived.current_sources()))
    refused = requested(site, record).refused
    assert "rows of its sources have changed since plan" in refused
    publish(site.settings, publication)
    assert published_rows(site) == before
    site.follow()
    refused = requested(site, record).refused
    assert "gold.wind_hours: rows have changed since plan" in refused
    assert differing(site) == {"gold.wind_hours": (0, 0), "gold.wind_days": (0, 0)}
    planted(site, "wind_hours", "hour = '2013-03-02T01:00:00Z'", departures="departures + 7")
    record, found = compared(site, record)
    assert found["gold.wind_hours"] == 1
    record = approve(site.settings, record, "ann")
    site.flights.take([flight(31, 26, 9)])
    site.follow()
    assert requested(site, record).refused == "", "another hour of the range has changed"
    assert differing(site)["gold.wind_hours"] == (0, 0)


@pytest.mark.extended
def test_run_that_was_begun_is_finished_before_a_patch(site: DerivedSite) -> None:
    planted(site, "wind_hours", "hour = '2013-03-02T01:00:00Z'", departures="departures + 7")
    record = approve(site.settings, compared(site, planned(site, *SECOND))[0], "ann")
    site.flights.take([flight(32, 47, 9)])
    with pytest.raises(Died), dying_at(Step.GOLD_COMMITTED):
        site.follow()
    site.restart()
    assert requested(site, record).refused == ""
    assert read_publication(site.settings, NAME).batch == 1
    assert differing(site) == {"gold.wind_hours": (0, 0), "gold.wind_days": (0, 0)}


def test_sums_of_doubles_that_differ_in_their_last_digit_are_equal(site: DerivedSite) -> None:
    planted(site, "wind_days", "day = '2013-03-02'", delay="delay + 1e-14")
    (changed,) = pinned(site.settings).read("gold.wind_days").filter(pl.col("day").dt.day() == 2).collect()["delay"]
    assert changed != (10 + 15 + 20 + 25) / 3
    _, found = compared(site, planned(site, *SECOND))
    assert found["gold.wind_days"] == 0


@pytest.mark.extended
def test_table_without_a_time_is_recomputed_whole_after_a_confirmation(spark: SparkSession, tmp_path: Path) -> None:
    site = followed(spark, tmp_path, "wind_airports", "wind_days")
    planted(site, "wind_airports", "origin = 'JFK'", delay="-1")
    record = planned(site, *SECOND)
    assert "and all of gold.wind_airports" in record.plan.requested
    assert recomputes_everything(site.settings, record.plan)
    assert any("wind_airports from its sources" in line for line in stage_lines(record))
    _, found = compared(site, record)
    assert found == {"gold.wind_airports": 1, "gold.wind_days": 0}


def test_range_is_whole_when_no_published_grain_lies_outside(site: DerivedSite) -> None:
    for since, until, whole in ((1, 4, True), (1, 3, False), (2, 4, False)):
        record = planned(site, datetime(2013, 3, since, tzinfo=UTC), datetime(2013, 3, until, tzinfo=UTC))
        assert recomputes_everything(site.settings, record.plan) is whole, (since, until)
        cancel(site.settings, record, "ann")


def test_second_plan_and_other_reference_tables_are_refused(site: DerivedSite) -> None:
    with raises(Terminal, "range-refused", match="joins no reference tables"):
        planned(site, *SECOND, reference="today")
    record = planned(site, *SECOND)
    with pytest.raises(PlanConflict):
        planned(site, *SECOND)
    assert planned(site, *SECOND, dry_run=True).plan.predicted.gold_rows == record.plan.predicted.gold_rows == 4


def test_days_that_a_range_begins_or_ends_in_are_recomputed(site: DerivedSite) -> None:
    planted(site, "wind_days", "day = '2013-03-02'", departures="0")
    record = planned(site, datetime(2013, 3, 2, 10, tzinfo=UTC), datetime(2013, 3, 2, 12, tzinfo=UTC))
    _, found = compared(site, record)
    assert found == {"gold.wind_hours": 0, "gold.wind_days": 1}


def test_recorded_patch_that_no_table_has_is_not_confirmed(site: DerivedSite) -> None:
    planted(site, "wind_days", "day = '2013-03-02'", departures="0")
    record = approve(site.settings, compared(site, planned(site, *SECOND))[0], "ann")
    record = record_result(site.settings, record.plan.id, Applied(batch=0, seconds=1.0), "ann")
    with raises(Terminal, "not-confirmed", match="has no commit of it"):
        confirm(site.settings, record)
