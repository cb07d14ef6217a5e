"""A derived dataset follows its sources: whatever arrives when, and wherever it dies, its rows are right."""

from __future__ import annotations

import random
import shutil
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest
from compactable_release import EARLY
from derived_site import NAME, DerivedSite, flight, opened, wind
from error_codes import raises
from fewer_gold_tables import small_flights
from held_lease import HeldLease
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from small_release import SmallRelease, small_release

from include.audit.origin import OriginRefused, derived_origin
from include.change.plan_parameters import ReleaseParameters
from include.change.quality import validate_published
from include.change.release import DerivedReleasePlan, read_release_build
from include.change.stages import approve, compare_built
from include.declare.derived_dataset import snapshot_derived
from include.declare.yaml_declarations import DeclarationRefused
from include.ground import delta_log as table_files
from include.ground.errors import Terminal
from include.ground.paths import publication_path
from include.ground.settings import CLONE, Settings
from include.plans.journal import record_result
from include.plans.plan import Compared
from include.read.publication import find_publication, publication_json, publish, read_publication
from include.read.published_tables import pinned
from include.state.owner_requests import OwnerRequest, RequestKind, submit_request
from spark_jobs.backends.local.backend import LocalBackend
from spark_jobs.backends.spark.spark_backend import SparkBackend
from spark_jobs.jobs.audit_job import recomputed_tables
from spark_jobs.jobs.bounded_job import files_kept
from spark_jobs.layers.derived import open_sources
from spark_jobs.stream import expiry
from spark_jobs.stream.compaction import CompactionPolicy, compact_group, compact_tables, compactable_tables
from spark_jobs.stream.derived import DerivedRelease
from spark_jobs.stream.driver_loop import DriverLoop, Source
from spark_jobs.stream.expiry import files_to_delete, retained_tables
from spark_jobs.tables.delta_table import OwnershipLost
from spark_jobs.tables.failpoints import Step, step_listeners

STEPS = (Step.GOLD_WRITTEN, Step.GOLD_COMMITTED, Step.ALL_GOLD_COMMITTED, Step.PUBLISHED)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["hour"], row["origin"]


def expected(flights: pl.DataFrame, weather: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the table in plain Python, from the rows of both silvers."""
    hours: dict[Any, list[Any]] = {}
    for each in flights.to_dicts():
        hour = each["scheduled_departure"].replace(minute=0, second=0, microsecond=0), each["origin"]
        hours.setdefault(hour, []).append(each)
    conditions = {(w["observed_at"].replace(minute=0), w["station"]): w for w in weather.sort("observed_at").to_dicts()}
    found = []
    for (hour, origin), events in hours.items():
        left = [each for each in events if each["kind"] == "departed"]
        seen_weather = conditions.get((hour, origin), {})
        wind, rain, sight = (seen_weather.get(name) for name in ("wind_speed", "precip", "visib"))
        found.append(
            {
                "hour": hour,
                "origin": origin,
                "departures": len(left),
                "delayed": sum(each["departure_delay"] > 15 for each in left),
                "cancelled": sum(each["kind"] == "cancelled" for each in events),
                "delay_minutes": sum(each["departure_delay"] for each in left) if left else None,
                "temp": seen_weather.get("temp"),
                "wind": None if wind is None else "calm" if wind < 10 else "windy" if wind < 20 else "stormy",
                "rain": None if rain is None else "rain" if rain > 0 else "dry",
                "visibility": None if sight is None else "poor" if sight < 3 else "clear",
            }
        )
    return sorted(found, key=place)


@pytest.fixture
def site(spark: SparkSession, settings: Settings) -> DerivedSite:
    flights = small_flights(spark, settings)
    weather = small_release(spark, settings, "weather")
    return DerivedSite(spark, settings, flights, weather, opened(spark, settings))


def assert_right(site: DerivedSite) -> None:
    rows = site.rows()
    assert rows == expected(site.flights.silver(), site.weather.silver())
    assert rows


@pytest.mark.parametrize(
    "backends",
    [
        ("local",),
        pytest.param(("spark",), marks=pytest.mark.extended),
        pytest.param(("spark", "local"), marks=pytest.mark.extended),
    ],
    ids="-".join,
)
def test_a_derived_table_follows_both_sources_in_any_order_and_after_a_crash_at_each_step(
    site: DerivedSite, backends: tuple[str, ...]
) -> None:
    owners = cycle(backends)
    site.restart(next(owners))
    assert site.derived.missing_sources() == ["silver.flights", "silver.weather"]
    numbers = random.Random(5)
    hours = [numbers.randrange(72) for _ in range(40)]
    flights = [flight(n, hour, numbers.randrange(-5, 60)) for n, hour in enumerate(hours)]
    weather = [wind(hour, 4.5 * (hour % 7)) for hour in numbers.sample(range(72), 60)]
    site.flights.take(flights[:10])
    site.weather.take(weather[:15])
    for number, step in enumerate((None, *STEPS)):
        if number:
            site.flights.take(flights[number * 6 + 4 : number * 6 + 10])
            site.weather.take(weather[number * 11 + 4 : number * 11 + 15])
        if step is not None:
            with pytest.raises(Died), dying_at(step):
                site.follow()
            # The repeated run must not take what arrived after it began.
            site.flights.take([flight(100 + number, 10 + number, 45)])
            site.restart(next(owners))
            assert site.follow() == (1 if step is Step.PUBLISHED else 2)
        else:
            assert site.follow() == 1
        assert_right(site)
    publication = find_publication(site.settings, NAME)
    assert publication is not None
    assert publication.batch == 2 * len(STEPS)
    assert publication.sources["silver.flights"].batch == 2 * len(STEPS)
    assert backends == ("local",) or site.unfenced() == []


@pytest.mark.extended
def test_owner_that_was_suspended_before_its_commit_commits_nothing_after_a_claim(site: DerivedSite) -> None:
    site.flights.take([flight(1, 1, 20)])
    site.weather.take([wind(1, 3.0)])
    site.restart("spark")
    assert site.follow() == 1
    site.flights.take([flight(2, 1, 5), flight(3, 30, 20)])
    old, run = site.derived, site.derived.next_run()
    assert run is not None

    def taken_over(step: Step) -> None:
        if step is Step.GOLD_WRITTEN and site.derived is old:
            site.restart()
            site.derived.open_tables()

    step_listeners.append(taken_over)
    try:
        for _ in ("in flight", "again"):
            with pytest.raises(OwnershipLost):
                old.execute(run)
    finally:
        step_listeners.remove(taken_over)
    assert read_publication(site.settings, NAME).batch == 0
    assert site.follow() == 1
    assert_right(site)
    assert site.unfenced() == []


def test_a_run_computes_touched_grains_alone_and_files_moved_by_compaction_cause_none(site: DerivedSite) -> None:
    for hours in ((0, 30, 60), (1, 31), (2, 32)):
        site.flights.take([flight(hour, hour, 20) for hour in hours])
    site.weather.take([wind(0, 3.0)])
    assert site.follow() == 1
    site.weather.take([wind(31, 25.0)])
    assert site.follow() == 1
    table = pinned(site.settings).read(f"gold.{NAME}").collect()
    assert table.filter(pl.col("_last_batch") == 1)["hour"].dt.day().to_list() == [2]
    assert_right(site)
    before = site.flights.versions()
    compact(site.flights)
    site.flights.take([])
    assert site.flights.versions()["silver.flights"] > before["silver.flights"] + 1
    assert site.follow() == 0
    publication = find_publication(site.settings, NAME)
    assert publication is not None
    assert (publication.batch, publication.sources["silver.flights"].batch) == (1, 3)
    site.flights.take([flight(99, 31, 50)])
    assert site.follow() == 1
    assert_right(site)


@pytest.mark.extended
def test_small_files_are_compacted_on_request_also_by_a_process_that_has_just_started(site: DerivedSite) -> None:
    site.flights.take([flight(1, 1, 20)])
    site.weather.take([wind(1, 3.0)])
    site.follow()
    site.flights.take([flight(2, 12, 20)])
    site.follow()
    site.restart()
    response = site.derived.answer(OwnerRequest("", RequestKind.COMPACT, "any"))
    (done,) = response.done.values()
    assert (response.refused, done["files"], done["now"], done["left"]) == ("", 2, 2, 0), "two files are not many"
    (done,) = site.derived.compact(CompactionPolicy(min_files=2)).values()
    assert (done["files"], done["now"]) == (2, 1)
    site.flights.take([flight(9, 2, 50)])
    assert site.follow() == 1
    assert_right(site)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("backend", "rewriting"),
    [("local", LocalBackend), pytest.param("spark", SparkBackend, marks=pytest.mark.extended)],
)
def test_owner_compacts_derived_tables_by_itself_as_the_settings_say(
    site: DerivedSite, backend: str, rewriting: type[object]
) -> None:
    site.flights.take([flight(1, 1, 20)])
    site.weather.take([wind(1, 3.0)])
    site.follow()
    site.flights.take([flight(2, 12, 20)])
    site.follow()
    site.restart(backend)
    site.derived.open_tables()
    counts = []
    for least in (0, 2):
        site.derived.settings = site.settings.model_copy(update={"compaction_files": least})
        assert {type(table.backend) for table in site.derived.compactable()} == {rewriting}
        DriverLoop(site.derived, Source(), Mock(), Mock(), threading.Event()).keep_up()
        counts.append(site.derived.tables[0].target.table.file_count)
    assert counts == [2, 1], "with 0 only headrace maintain compacts"
    assert_right(site)


@pytest.mark.extended
def test_owner_deletes_obsolete_files_of_derived_tables_until_none_is_left(
    site: DerivedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.weather.take([wind(1, 3.0)])
    for number in range(5):
        site.flights.take([flight(number, 1, 20)])
        site.follow()
    table = site.derived.tables[0].target.table
    current = {table.spec.path / file.path for file in table.files()}
    upkeep = DriverLoop(site.derived, Source(), Mock(), Mock(), threading.Event())
    upkeep.deletion.next_check = 0
    assert not upkeep.keep_up()
    obsolete = set(table.spec.path.rglob("*.parquet")) - current
    assert len(obsolete) > 1, "files are deleted within the retention"
    original = table_files.obsolete_files
    monkeypatch.setattr(table_files, "obsolete_files", lambda path, kept, _, sweep: original(path, kept, timedelta()))
    unlink = Path.unlink
    monkeypatch.setattr(expiry, "SECONDS_AT_ONCE", 0.1)
    monkeypatch.setattr(Path, "unlink", lambda *path, **given: (time.sleep(0.11), unlink(*path, **given)))
    upkeep.deletion.next_check = 0
    lost = publication_path(site.settings, site.derived.derived.name)
    content = lost.read_bytes()
    lost.unlink()
    assert not upkeep.keep_up()
    assert site.derived.compact()[str(table.spec.path.relative_to(lost.parents[1]))]["removed"] == 0
    assert set(table.spec.path.rglob("*.parquet")) - current == obsolete, "nothing says which version was published"
    lost.write_bytes(content)
    upkeep.deletion.next_check = 0
    left = list[int]()
    while upkeep.keep_up():
        left.append(len(set(table.spec.path.rglob("*.parquet")) - current))
    assert left == list(range(len(obsolete) - 1, 0, -1)), "one file in each step"
    assert set(table.spec.path.rglob("*.parquet")) == current
    assert_right(site)


@pytest.mark.extended
def test_jobs_of_a_derived_dataset_keep_the_files_of_its_sources(
    site: DerivedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.weather.take([wind(1, 3.0)])
    for number in range(4):
        site.flights.take([flight(number, 1, 20)])
    site.follow()
    compact_tables(site.settings, [site.flights.release], 600, EARLY)
    site.flights.take([flight(5, 1, 20)])
    original = table_files.obsolete_files
    monkeypatch.setattr(table_files, "obsolete_files", lambda path, kept, _, sweep: original(path, kept, timedelta()))
    retained, silver = retained_tables(site.settings, [site.flights.release]), site.flights.release.writer.silver
    with files_kept(site.settings, NAME):
        assert files_to_delete(retained, silver) == []
    obsolete = {path.name for path in files_to_delete(retained, silver)}
    used = open_sources(site.settings, {"flights": "silver.flights"}, read_publication(site.settings, NAME).sources)
    assert {Path(file["path"]).name for file in used["flights"].files} & obsolete, "they would be deleted otherwise"


def test_rows_are_explained_by_their_sources_and_the_audit_finds_those_that_differ(site: DerivedSite) -> None:
    site.flights.take([flight(1, 0, 20), flight(2, 30, 5)])
    site.weather.take([wind(0, 3.0)])
    site.follow()
    found = recomputed_tables(site.settings, site.spark, read_publication(site.settings, NAME))[f"gold.{NAME}"]
    assert found == {"rows": 2, "grains": 2, "missing": 0, "surplus": 0, "sample": ""}
    keys = {"hour": "2013-03-01 00:00:00+00", "origin": "JFK"}
    origin = derived_origin(site.settings, pinned(site.settings), f"gold.{NAME}", keys)
    made = {
        source.table: [(r.partition, r.first, r.last, r.records) for r in source.ranges] for source in origin.sources
    }
    assert made == {"silver.flights": [(0, 100, 100, 1)], "silver.weather": [(0, 100, 100, 1)]}
    with pytest.raises(OriginRefused, match="--key is missing for origin"):
        derived_origin(site.settings, pinned(site.settings), f"gold.{NAME}", {"hour": "2013-03-01"})
    before = find_publication(site.settings, NAME)
    assert before is not None
    site.flights.take([flight(3, 30, 50), flight(4, 31, 50)])
    # The publication claims a version of a source that no run has used.
    publish(site.settings, replace(before, sources=site.derived.current_sources()))
    found = recomputed_tables(site.settings, site.spark, read_publication(site.settings, NAME))[f"gold.{NAME}"]
    assert (found["missing"], found["surplus"]) == (2, 1)
    assert "origin=JFK" in found["sample"]


@pytest.mark.extended
def test_a_changed_release_is_built_promoted_over_newer_sources_and_rolled_back(
    site: DerivedSite, tmp_path: Path
) -> None:
    site.flights.take([flight(1, 0, 20), flight(2, 30, 5)])
    site.weather.take([wind(0, 9.0)])
    site.follow()
    published = find_publication(site.settings, NAME)
    assert published is not None
    shutil.copytree(CLONE / "include" / "datasets" / NAME, tmp_path / NAME)
    query = tmp_path / NAME / "gold" / f"{NAME}.sql"
    query.write_text(query.read_text().replace("wind_speed < 10", "wind_speed < 8"))
    changed = Settings(state=site.settings.state, datasets=tmp_path)
    fresh = DerivedRelease(changed, snapshot_derived(changed, NAME), site.spark, HeldLease(), is_published=False)
    built = fresh.build(published.sources)
    assert fresh.build(published.sources) == built
    assert find_publication(site.settings, NAME) == published
    site.flights.take([flight(3, 0, 50)])
    assert site.follow() == 1
    before = site.rows()
    promote = OwnerRequest("plan", RequestKind.PROMOTE, fresh.derived.release)
    submit_request(site.settings, NAME, promote)
    response = site.derived.answer(promote)
    assert (response.refused, site.derived.derived.release) == ("", fresh.derived.release)
    winds = [(row["hour"].hour, row["departures"], row["wind"]) for row in site.rows()]
    assert winds == [(0, 2, "windy"), (6, 1, None)]
    site.flights.take([flight(4, 30, 50)])
    assert site.follow() == 1
    back = OwnerRequest("plan", RequestKind.PROMOTE, published.release)
    (site.settings.state / "requests" / f"{NAME}.json").unlink()
    submit_request(site.settings, NAME, back)
    response = site.derived.answer(back)
    assert response.refused == ""
    assert_right(site)
    assert site.rows() != before
    response = site.derived.answer(OwnerRequest("", RequestKind.REBUILD_IDENTITIES, "any"))
    assert "executes no rebuild_identities request" in response.refused


@pytest.mark.extended
def test_a_release_whose_table_breaks_a_rule_is_held_and_quality_of_published_tables_says_which(
    site: DerivedSite, tmp_path: Path
) -> None:
    site.flights.take([flight(1, 0, 20), flight(2, 30, 5)])
    site.weather.take([wind(0, 9.0)])
    site.follow()
    now, state = datetime.now(UTC), site.settings.state
    found = validate_published(site.settings, NAME, now)
    assert [(check.rule, check.passed) for check in found.checks] == [
        ("delayed_flights_have_left", True),
        ("one_row_for_each_hour_and_airport", True),
    ]
    shutil.copytree(CLONE / "include" / "datasets", tmp_path / "datasets")
    query = tmp_path / "datasets" / NAME / "gold" / f"{NAME}.sql"
    query.write_text(query.read_text().replace("as delayed,", "+ 7 as delayed,"))
    changed = Settings(state=state, datasets=tmp_path / "datasets")
    record = DerivedReleasePlan().plan(changed, NAME, ReleaseParameters(threshold=1), "ann", now)
    published = find_publication(changed, NAME)
    assert published is not None
    fresh = DerivedRelease(changed, snapshot_derived(changed, NAME), site.spark, HeldLease(), is_published=False)
    built = fresh.build(published.sources)
    output = {"built": publication_json(built), "published": publication_json(published)}
    record = record_result(changed, record.plan.id, read_release_build(output, 1.0), "ann")
    record, _ = compare_built(changed, record, "ann", lambda _: None)
    assert record.last(Compared).blocked_by == [f"gold.{NAME}: delayed_flights_have_left"]
    with raises(Terminal, "plan-held", match="delayed_flights_have_left"):
        approve(changed, record, "ann")


def test_promised_types_of_an_output_are_those_of_its_query(site: DerivedSite, tmp_path: Path) -> None:
    shutil.copytree(CLONE / "include" / "datasets" / NAME, tmp_path / NAME)
    declared = tmp_path / NAME / "derived.yaml"
    declared.write_text(declared.read_text().replace("departures: {type: bigint", "departures: {type: int"))
    changed = Settings(state=site.settings.state, datasets=tmp_path)
    site.flights.take([flight(1, 0, 20)])
    site.weather.take([wind(0, 9.0)])
    fresh = DerivedRelease(changed, snapshot_derived(changed, NAME), site.spark, HeldLease())
    run = fresh.next_run()
    assert run is not None
    with pytest.raises(DeclarationRefused, match=r"columns\.departures: the query's column is bigint, not int"):
        fresh.execute(run)


@pytest.mark.extended
def test_a_source_whose_changes_are_unknown_is_computed_whole(site: DerivedSite) -> None:
    site.flights.take([flight(1, 0, 20), flight(2, 30, 5)])
    site.weather.take([wind(0, 3.0)])
    site.follow()
    publication = find_publication(site.settings, NAME)
    assert publication is not None
    replaced = site.settings.state / "warehouse" / publication.tables[f"gold.{NAME}"].path
    text = (site.settings.state / "warehouse" / NAME / "publication.json").read_text()
    commit = publication.sources["silver.flights"].commit
    # Another commit got the version that this one had: what a power cut and a new start may leave.
    (site.settings.state / "warehouse" / NAME / "publication.json").write_text(text.replace(commit, "0" * 64))
    site.restart()
    assert site.follow() == 1
    assert replaced.is_dir()
    assert_right(site)


def compact(release: SmallRelease) -> None:
    tables = [each for each in compactable_tables([release.release]) if each.table.spec.name == "silver.flights"]
    for each in tables:
        for group in each.groups(CompactionPolicy(min_files=2)):
            compact_group(each, group)
