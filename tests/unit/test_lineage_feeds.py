"""OpenLineage events of plans, derived datasets, validations and drivers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from ledgered_stream import Stream, commit
from lineage_receiver import LineageReceiver, column_edges, edges, reached
from plan_samples import NOON, SLICE, TO_APPLIED, advanced, sample_plan

from include.declare.column_lineage import dataset_columns
from include.declare.contract_rules import RuleResult
from include.declare.dataset import declared_dataset, snapshot_dataset
from include.declare.derived_dataset import snapshot_derived
from include.declare.history_slice import KAFKA, Slice, Span
from include.ground.app_ids import release_app_id
from include.ground.paths import gold_path, silver_path, warehouse
from include.ground.settings import CLONE, Settings
from include.observe.ledger_writer import open_writer, project_dataset
from include.observe.lineage_sender import EventFollower, receiver
from include.observe.plan_feed import FOLLOWED
from include.observe.run_feeds import cursors_file
from include.observe.stream_history import StoredValidation, store_validation
from include.plans import journal as plan_journal
from include.plans.index import index_path
from include.plans.journal import record_failure, save_plan
from include.plans.plan import BACKFILL, DERIVED_RELEASE, RELEASE, REPLAY, Member, ReleaseBuilt, Stage
from include.read.publication import Publication, SourceVersion, TableVersion, publish, read_publication
from include.state.process_states import stream_name
from include.state.run_files import RunFile, identity_of, started_at, write_run_file
from include.state.streams import DriverStatus, status_file

GOLD = ("carrier_hours", "route_days", "flight_status", "worst_delays")


class FollowedSite:
    """A published stream of flights, and one follower of its state folder."""

    def __init__(self, settings: Settings, http: LineageReceiver) -> None:
        self.settings = settings.model_copy(update={"openlineage_url": http.url, "kafka_bootstrap": "kafka-1:9092"})
        self.http, self.lines = http, list[str]()
        self.release = snapshot_dataset(settings, "flights").release
        self.stream = Stream(self.settings, release=self.release, gold=GOLD)
        self.writer = open_writer(self.settings)
        silver = silver_path(self.settings, "flights", self.release)
        silver.mkdir(parents=True)
        columns = dataset_columns(declared_dataset(settings, "flights"))["silver.flights"].columns
        DeltaTable.create(str(silver), pa.schema([(name, pa.string()) for name in columns]))
        self.run(0)

    def run(self, batch: int) -> None:
        self.stream.run(batch, batch)
        project_dataset(self.writer, self.settings, "flights")

    def poll(self) -> list[tuple[str, str]]:
        """Look once with a new follower; return job and state of each event."""
        before = len(self.http.events)
        EventFollower(self.settings, receiver(self.settings), self.lines.append).poll()
        return [(event["job"]["name"], event["eventType"]) for event in self.http.events[before:]]


@pytest.fixture
def site(settings: Settings) -> Iterator[FollowedSite]:
    http = LineageReceiver()
    with http.up():
        found = FollowedSite(settings, http)
        found.poll()
        yield found


def saved(site: FollowedSite, kind: str, **fields: Any) -> Any:
    return save_plan(
        site.settings, sample_plan(site.settings, kind, **{"base": site.release, "release": site.release} | fields)
    )


def correct(site: FollowedSite, plan: str) -> int:
    """Commit what a plan corrects in silver, as its owner does; return the version."""
    app = f"flights/{site.release}/plan/{plan}"
    facts = {"dataset": "flights", "release": site.release, "table": "silver.flights", "app_id": app, "plan": plan}
    counts = {"direction": 1, "batch": 0, "epoch": 1, "rows_removed": 5, "rows_added": 5, "total": 17}
    version = commit(silver_path(site.settings, "flights", site.release), app, 1, facts | counts)
    project_dataset(site.writer, site.settings, "flights")
    return version


def test_plan_is_one_run_from_planned_to_applied_for_any_number_of_polls(site: FollowedSite) -> None:
    day = replace(SLICE, since=NOON, until=NOON + timedelta(days=1))
    record = saved(site, BACKFILL, slice=day, origin="backfill__flights/manual__1")
    assert site.poll() == [("flights.backfill", "START")]
    record = advanced(site.settings, record, Stage.BUILT, Stage.COMPARED)
    site.poll()
    version = correct(site, record.plan.id)
    advanced(site.settings, record, Stage.APPROVED, Stage.APPLIED)
    site.poll()
    events = site.http.events[-5:]
    assert [event["eventType"] for event in events] == ["START", "RUNNING", "RUNNING", "RUNNING", "COMPLETE"]
    assert len(site.http.run_ids("flights.backfill")) == 1
    done = events[-1]
    assert {each["name"] for each in done["inputs"]} >= {"bronze.flights", "reference.flights.airlines"}
    assert {"silver.flights", "rejected.flights", "gold.route_days"} <= {each["name"] for each in done["outputs"]}
    (silver,) = [each for each in done["outputs"] if each["name"] == "silver.flights"]
    assert silver["facets"]["version"]["datasetVersion"] == str(version)
    assert silver["outputFacets"]["outputStatistics"]["rowCount"] == 5
    assert done["run"]["facets"]["nominalTime"]["nominalStartTime"] == "2026-01-01T12:00:00.000Z"
    assert done["run"]["facets"]["parent"]["job"]["name"] == "backfill__flights"
    assert site.poll() == []


def test_columns_that_a_plan_writes_lead_to_bronze(site: FollowedSite) -> None:
    advanced(site.settings, saved(site, BACKFILL), *TO_APPLIED)
    site.poll()
    graph, tables = column_edges(site.http.of("flights.backfill")), site.settings.state.as_uri()
    assert graph[tables, "gold.route_days", "air_minutes"] == {(tables, "bronze.flights", "value.air_time")}


def test_replay_from_kafka_reads_the_topic(site: FollowedSite) -> None:
    saved(site, REPLAY, slice=Slice([Span(0, 10, 20, KAFKA)]))
    site.poll()
    (start,) = site.http.of("flights.replay", "START")
    assert ("kafka://kafka-1:9092", "flights") in {(each["namespace"], each["name"]) for each in start["inputs"]}


def test_rejected_plan_aborts_and_is_not_followed_any_more(site: FollowedSite) -> None:
    record = advanced(site.settings, saved(site, BACKFILL), Stage.BUILT, Stage.COMPARED, Stage.REJECTED)
    assert site.poll()[-1] == ("flights.backfill", "ABORT")
    stored = cursors_file(site.settings).read()
    assert stored is not None
    assert f"plan {record.plan.id}" not in stored.cursors
    assert site.poll() == []


def test_failed_attempt_is_sent_once_with_its_reason_and_the_plan_may_complete(site: FollowedSite) -> None:
    record = saved(site, BACKFILL)
    record_failure(site.settings, record.plan.id, "no space left on device")
    assert site.poll() == [("flights.backfill", "START"), ("flights.backfill", "FAIL")]
    assert "no space left" in site.http.events[-1]["run"]["facets"]["errorMessage"]["message"]
    assert site.poll() == []
    advanced(site.settings, record, *TO_APPLIED)
    assert site.poll()[-1] == ("flights.backfill", "COMPLETE")
    assert len(site.http.run_ids("flights.backfill")) == 1


def test_rollback_is_a_run_of_its_own(site: FollowedSite) -> None:
    record = advanced(site.settings, saved(site, BACKFILL), *TO_APPLIED)
    site.poll()
    advanced(site.settings, record, Stage.ROLLED_BACK)
    assert site.poll() == [("flights.rollback", "START"), ("flights.rollback", "COMPLETE")]
    assert not set(site.http.run_ids("flights.rollback")) & set(site.http.run_ids("flights.backfill"))


def test_plans_that_began_and_ended_between_two_looks_are_sent(site: FollowedSite) -> None:
    for _ in range(2):
        advanced(site.settings, saved(site, BACKFILL), *TO_APPLIED, Stage.ROLLED_BACK)
    site.poll()
    assert len(site.http.run_ids("flights.backfill")) == 2
    assert len(site.http.run_ids("flights.rollback")) == 2


def test_plan_that_has_a_folder_and_no_file_during_a_look_is_followed_later(
    site: FollowedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of plans changed only before the poll, so the plan was never listed again."""
    saved(site, BACKFILL)
    follower = EventFollower(site.settings, receiver(site.settings), site.lines.append)
    write, polls = plan_journal.write_atomically, []

    def look_before_it_is_written(path: Path, content: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        polls.append(follower.poll())
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(plan_journal, "write_atomically", look_before_it_is_written)
        saved(site, REPLAY)
    assert [*polls, follower.poll(), follower.poll()] == [1, 1, 0]


def test_plans_are_followed_when_their_index_is_built_again(site: FollowedSite) -> None:
    follower = EventFollower(site.settings, receiver(site.settings), site.lines.append)
    for _ in range(3):
        saved(site, BACKFILL)
    assert follower.poll() == 3
    shutil.rmtree(index_path(site.settings).parent)
    saved(site, BACKFILL)
    assert [follower.poll(), follower.poll()] == [1, 0]


def test_plans_of_before_the_first_look_are_left_out_unless_open(settings: Settings) -> None:
    http = LineageReceiver()
    with http.up():
        site = FollowedSite(settings, http)
        advanced(site.settings, saved(site, BACKFILL), *TO_APPLIED)
        saved(site, REPLAY)
        site.poll()
    assert http.run_ids("flights.backfill") == []
    assert len(http.run_ids("flights.replay")) == 1


def test_applied_plan_is_forgotten_in_time(site: FollowedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    record = advanced(site.settings, saved(site, BACKFILL), *TO_APPLIED)
    site.poll()
    monkeypatch.setattr("include.observe.plan_feed.FOLLOWED", -FOLLOWED)
    site.poll()
    stored = cursors_file(site.settings).read()
    assert stored is not None
    assert f"plan {record.plan.id}" not in stored.cursors
    assert site.poll() == []


def test_plan_whose_release_was_deleted_still_ends(site: FollowedSite) -> None:
    record = saved(site, RELEASE, release="ffffffffffff")
    advanced(site.settings, record, Stage.BUILT, Stage.COMPARED, Stage.REJECTED)
    assert site.poll()[-1] == ("flights.release", "ABORT")
    assert site.lines == []


def test_release_plan_names_the_versions_of_its_build(site: FollowedSite) -> None:
    built = read_publication(site.settings, "flights")
    record = advanced(site.settings, saved(site, RELEASE), Stage.BUILT, built=built, published=built)
    advanced(site.settings, record, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED)
    site.poll()
    (done,) = site.http.of("flights.release")
    versions = {each["name"]: each["facets"]["version"]["datasetVersion"] for each in done["outputs"]}
    assert versions["gold.route_days"] == str(built.tables["gold.route_days"].version)


def test_release_of_several_datasets_is_a_run_for_each_of_them(site: FollowedSite) -> None:
    built = read_publication(site.settings, "flights")
    derived = snapshot_derived(site.settings, "weather_delays")
    (name,) = (f"gold.{gold.name}" for gold in derived.pipeline.gold)
    tables = {name: TableVersion(f"weather_delays/{derived.release}/{name}", 7)}
    delays = replace(built, dataset="weather_delays", release=derived.release, tables=tables)
    parts = {"weather_delays": ReleaseBuilt(batch=3, built=delays, published=delays)}
    record = saved(site, RELEASE, members=[Member("weather_delays", "aaa", derived.release)])
    record = advanced(site.settings, record, Stage.BUILT, built=built, published=built, members=parts)
    record_failure(site.settings, record.plan.id, "no space left on device")
    assert site.poll() == [
        (f"{dataset}.{kind}", state)
        for state in ("START", "RUNNING", "FAIL")
        for dataset, kind in (("flights", RELEASE), ("weather_delays", DERIVED_RELEASE))
    ]
    advanced(site.settings, record, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED, Stage.ROLLED_BACK)
    site.poll()
    (done,) = site.http.of(f"weather_delays.{DERIVED_RELEASE}")
    assert {each["name"] for each in done["inputs"]} == set(derived.pipeline.sources.values())
    (output,) = done["outputs"]
    assert (output["name"], output["facets"]["version"]["datasetVersion"]) == (name, "7")
    for dataset in ("flights", "weather_delays"):
        assert len(site.http.run_ids(f"{dataset}.rollback")) == 1
    assert site.http.run_ids("flights.release") != site.http.run_ids(f"weather_delays.{DERIVED_RELEASE}")


def test_stream_continues_with_a_release_that_was_published(site: FollowedSite, tmp_path: Path) -> None:
    site.run(1)
    folder = tmp_path / "datasets"
    shutil.copytree(CLONE / "include" / "datasets", folder)
    (folder / "flights" / "silver.py").open("a").write("# another release\n")
    changed = site.settings.model_copy(update={"datasets": folder})
    other = snapshot_dataset(changed, "flights").release
    assert other != site.release
    later = replace(site.stream, release=other, tables=dict(site.stream.tables))
    later.refine(0, 1)
    later.publish(1)
    project_dataset(site.writer, site.settings, "flights")
    site.poll()
    later.run(2, 2)
    project_dataset(site.writer, site.settings, "flights")
    site.poll()
    assert len(site.http.run_ids("flights.refine")) == 3
    names = {output["name"] for event in site.http.events for output in event["outputs"]}
    assert {name for name in names if name.startswith("silver")} == {"silver.flights"}


def derived_commit(site: FollowedSite, release: str, number: int) -> None:
    """A run of weather_delays over flights alone, and its publication."""
    path = gold_path(site.settings, "weather_delays", release, "weather_delays")
    app = release_app_id("weather_delays", release, "gold/weather_delays")
    source = read_publication(site.settings, "flights").tables["silver.flights"]
    used = {"silver.flights": [site.release, number, source.version]}
    facts = {"dataset": "weather_delays", "release": release, "app_id": app, "batches": [number, number]}
    version = commit(path, app, number, {**facts, "rows": 7, "sources": used})
    root = warehouse(site.settings)
    tables = {"gold.weather_delays": TableVersion(str(path.relative_to(root)), version)}
    sources = {"silver.flights": SourceVersion(source.path, source.version, site.release, number, "")}
    publish(site.settings, Publication("weather_delays", release, number, datetime.now(UTC), {}, tables, sources))


def test_derived_table_is_connected_to_the_topic_of_its_source(site: FollowedSite) -> None:
    release = snapshot_derived(site.settings, "weather_delays").release
    derived_commit(site, release, 0)
    job = "weather_delays.gold.weather_delays"
    assert site.poll() == [(job, "START"), (job, "COMPLETE")]
    derived_commit(site, release, 1)
    derived_commit(site, release, 2)
    site.poll()
    first, second = site.http.of(job)
    rows = [each["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] for each in (first, second)]
    assert rows == [7, 14]
    graph, tables = edges(site.http.events), site.settings.state.as_uri()
    assert ("kafka://kafka-1:9092", "flights") in reached((tables, "gold.weather_delays"), graph)
    columns = column_edges(site.http.events)
    made = reached((tables, "gold.weather_delays", "delayed"), columns)
    assert {field for _, name, field in made if name == "flights"} == {"departure_delay", "kind"}
    assert "with departed" in second["job"]["facets"]["sql"]["query"]


def test_validation_is_a_run_with_the_result_of_each_rule(site: FollowedSite) -> None:
    checks = [
        RuleResult("gold.route_days", "counts_are_counts", "expect_x", "hold", "critical", True, "0"),
        RuleResult("gold.route_days", "no_more_arrived", "expect_y", "warn", "warning", False, "3"),
        RuleResult("silver.flights", "not_evaluated", "expect_z", "hold", "critical", None, ""),
    ]
    store_validation(site.settings, "flights", StoredValidation(site.release, 0, NOON, checks))
    assert site.poll() == [("flights.quality", "START"), ("flights.quality", "COMPLETE")]
    tables = {each["name"]: each for each in site.http.events[-1]["inputs"]}
    found = tables["gold.route_days"]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(each["name"], each["success"], each["severity"]) for each in found] == [
        ("counts_are_counts", True, "error"),
        ("no_more_arrived", False, "warn"),
    ]
    assert site.poll() == []
    store_validation(site.settings, "flights", StoredValidation(site.release, 1, NOON + timedelta(hours=1), checks))
    assert len(site.poll()) == 2


def driver(site: FollowedSite, status: DriverStatus | None = None) -> None:
    """Record this process as the driver of flights, or that it reported its end and another pid is gone."""
    pid = os.getpid() if status is None else 2**22 - 1
    name = stream_name("flights")
    write_run_file(site.settings, RunFile(name, pid, started_at(os.getpid()), [], identity=identity_of(pid)))
    if status is not None:
        status_file(site.settings, name).write(replace(status, pid=pid, at=datetime.now(UTC)))


def test_driver_is_the_parent_run_of_what_it_publishes(site: FollowedSite) -> None:
    driver(site)
    site.run(1)
    states = site.poll()
    assert states[0] == ("flights", "START")
    assert states[-1] == ("flights", "RUNNING")
    (run_id,) = site.http.run_ids("flights")
    parents = {e["run"]["facets"]["parent"]["run"]["runId"] for e in site.http.events if "parent" in e["run"]["facets"]}
    assert parents == {run_id}
    started = psutil.Process().create_time()
    (start,) = site.http.of("flights", "START")
    assert abs(datetime.fromisoformat(start["eventTime"]).timestamp() - started) < 1


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        (DriverStatus(state="stopped"), "COMPLETE", ""),
        (DriverStatus(state="failed", reason="the disk is full"), "FAIL", "the disk is full"),
    ],
)
def test_event_of_a_drivers_end_names_its_failure(
    site: FollowedSite, status: DriverStatus, state: str, reason: str
) -> None:
    driver(site)
    site.poll()
    driver(site, status)
    assert site.poll() == [("flights", state)]
    facets = site.http.events[-1]["run"]["facets"]
    assert facets.get("errorMessage", {"message": ""})["message"] == reason
    assert len(site.http.run_ids("flights")) == 1
    assert site.poll() == []
