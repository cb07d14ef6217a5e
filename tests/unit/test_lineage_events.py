"""OpenLineage events of streams: connected from topic to gold, sent at least once, each run with one id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledgered_stream import Stream
from lineage_receiver import LineageReceiver, column_edges, edges, reached
from openlineage_schemas import schema_problems

from include.declare.dataset import snapshot_dataset
from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.observe.ledger_writer import open_writer, project_dataset
from include.observe.lineage_sender import EventFollower, ReceiverUnavailable, receiver, split_address
from include.observe.run_feeds import cursors_file
from include.state.lease import LockHeld

GOLD = ("carrier_hours", "route_days", "flight_status", "worst_delays")
JOBS = ["flights.ingest", "flights.refine", *(f"flights.gold.{name}" for name in GOLD)]


class LineageSite:
    """A stream whose publications are followed; `poll` is one poll of a follower that begins anew."""

    def __init__(self, settings: Settings, http: LineageReceiver) -> None:
        self.settings = settings.model_copy(update={"openlineage_url": http.url, "kafka_bootstrap": "kafka-1:9092"})
        self.http, self.lines = http, list[str]()
        self.stream = Stream(self.settings, release=snapshot_dataset(settings, "flights").release, gold=GOLD)
        self.writer = open_writer(self.settings)

    def publish(self, first: int, last: int) -> None:
        for batch in range(first, last + 1):
            self.stream.bronze(batch, reference={"airlines": 3})
        self.stream.refine(first, last)
        self.stream.publish(last)
        project_dataset(self.writer, self.settings, "flights")

    def poll(self) -> int:
        return EventFollower(self.settings, receiver(self.settings), self.lines.append).poll()


@pytest.fixture
def http() -> Iterator[LineageReceiver]:
    found = LineageReceiver()
    with found.up():
        yield found


@pytest.fixture
def site(settings: Settings, http: LineageReceiver) -> LineageSite:
    return LineageSite(settings, http)


def test_first_poll_sends_the_last_publication_as_one_run_of_each_job(site: LineageSite) -> None:
    site.publish(0, 1)
    site.publish(2, 2)
    assert site.poll() == 2 * len(JOBS)
    assert site.http.jobs == JOBS
    assert [event["eventType"] for event in site.http.events] == ["START", "COMPLETE"] * len(JOBS)
    assert site.http.paths == {"/api/v1/lineage"}
    assert site.poll() == 0


def test_topic_and_gold_are_connected_by_the_names_of_datasets(site: LineageSite) -> None:
    site.publish(0, 0)
    site.poll()
    graph, tables = edges(site.http.events), site.settings.state.as_uri()
    topic = ("kafka://kafka-1:9092", "flights")
    path = [topic, *((tables, f"{name}") for name in ("bronze.flights", "silver.flights"))]
    assert graph[path[1]] == {topic}
    assert path[1] in graph[path[2]]
    for name in GOLD:
        assert graph[tables, f"gold.{name}"] == {path[2]}
        assert topic in reached((tables, f"gold.{name}"), graph)
    assert topic in reached((tables, "rejected.flights"), graph)


def test_each_column_of_gold_leads_back_to_fields_of_the_topic(site: LineageSite) -> None:
    site.publish(0, 0)
    site.poll()
    graph, tables = column_edges(site.http.events), site.settings.state.as_uri()
    declared = {"carrier_hours": 10, "route_days": 10, "flight_status": 8, "worst_delays": 5}
    for table, count in declared.items():
        columns = [key for key in graph if key[:2] == (tables, f"gold.{table}")]
        assert len(columns) == count
        for column in columns:
            assert any(name == "flights" for _, name, _ in reached(column, graph)), column
    delay = reached((tables, "gold.carrier_hours", "departure_delay_minutes"), graph)
    assert {field for _, name, field in delay if name == "flights"} == {"departure_delay"}
    delayed = reached((tables, "gold.carrier_hours", "delayed"), graph)
    assert {field for _, name, field in delayed if name == "flights"} == {"departure_delay", "kind"}


def test_run_has_rows_versions_and_results_of_rules(site: LineageSite) -> None:
    site.publish(0, 1)
    site.publish(2, 4)
    site.poll()
    (ingest,), (refine,), (hours,) = map(
        site.http.of, ("flights.ingest", "flights.refine", "flights.gold.carrier_hours")
    )
    assert ingest["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 60
    rows = {each["name"]: each["outputFacets"]["outputStatistics"]["rowCount"] for each in refine["outputs"]}
    assert rows == {"silver.flights": 51, "rejected.flights": 9}
    found = {a["name"]: a for a in refine["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]}
    assert (found["type"]["actual"], found["type"]["success"], found["late"]["severity"]) == ("6", False, "warn")
    assert hours["outputs"][0]["facets"]["version"]["datasetVersion"] == str(
        site.stream.tables["gold.carrier_hours"].version
    )
    assert hours["outputs"][0]["facets"]["symlinks"]["identifiers"][0]["name"].endswith("/gold/carrier_hours")
    (airlines,) = [each for each in refine["inputs"] if each["name"] == "reference.flights.airlines"]
    assert airlines["facets"]["version"]["datasetVersion"] == "3"
    assert [each["name"] for each in airlines["facets"]["schema"]["fields"]] == ["carrier", "name"]
    assert hours["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    (worst,) = site.http.of("flights.gold.worst_delays")
    assert "row_number()" in worst["job"]["facets"]["sql"]["query"]


def test_publications_between_two_polls_are_one_run(site: LineageSite) -> None:
    site.publish(0, 0)
    site.poll()
    for batch in range(1, 6):
        site.publish(batch, batch)
    site.poll()
    runs = site.http.of("flights.ingest")
    assert [run["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] for run in runs] == [20, 100]


def test_receiver_that_was_down_gets_every_publication_when_it_is_back(settings: Settings) -> None:
    http = LineageReceiver()
    with http.up():
        site = LineageSite(settings, http)
        site.publish(0, 0)
        site.poll()
    for batch in range(1, 4):
        site.publish(batch, batch)
        with pytest.raises(ReceiverUnavailable, match="Connection refused"):
            site.poll()
    with http.up():
        site.poll()
    rows = [run["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] for run in http.of("flights.ingest")]
    assert sum(rows) == 80


def test_unfinished_run_keeps_its_id_after_newer_publications(settings: Settings) -> None:
    http = LineageReceiver()
    with http.up():
        site = LineageSite(settings, http)
        site.publish(0, 0)
        site.poll()
        site.publish(1, 1)
        # The events of the third job are not taken any more.
        http.codes = [201] * 5 + [503]
        with pytest.raises(ReceiverUnavailable, match="503"):
            site.poll()
        begun = {job: http.run_ids(job) for job in JOBS}
        site.publish(2, 2)
        site.poll()
    for job in JOBS:
        assert http.run_ids(job)[: len(begun[job])] == begun[job]
        assert len(http.run_ids(job)) == 3
        done = [event["run"]["runId"] for event in http.of(job)]
        assert list(dict.fromkeys(done)) == http.run_ids(job), "each run has completed, in order"


def test_killed_follower_sends_the_same_runs_again(site: LineageSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.publish(0, 0)
    site.poll()
    before = cursors_file(site.settings).read()
    assert before is not None
    site.publish(1, 1)
    site.poll()
    first = [(e["run"]["runId"], e["eventType"]) for e in site.http.events[2 * len(JOBS) :]]
    cursors_file(site.settings).write(before)
    site.poll()
    assert [(e["run"]["runId"], e["eventType"]) for e in site.http.events[4 * len(JOBS) :]] == first


def test_event_that_the_receiver_refuses_is_named_and_left_out(site: LineageSite) -> None:
    site.publish(0, 0)
    site.http.codes = [201, 422]
    assert site.poll() == 2 * len(JOBS) - 1
    assert site.lines == [
        f"{site.http.url} refuses an event of job flights.ingest: HTTP 422; it was left out, the others follow"
    ]


def test_events_are_lines_of_a_file_and_a_line_cut_off_is_ended(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"cut')
    site = LineageSite(settings, LineageReceiver())
    site.settings = site.settings.model_copy(update={"openlineage_url": file.as_uri()})
    site.publish(0, 0)
    site.poll()
    lines = file.read_text().splitlines()
    assert (lines[0], len(lines)) == ('{"cut', 1 + 2 * len(JOBS))
    assert {json.loads(line)["job"]["name"] for line in lines[1:]} == set(JOBS)


def test_key_comes_from_a_file_and_goes_into_no_text(site: LineageSite, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cr3t\n")
    site.settings = site.settings.model_copy(update={"openlineage_key_file": key})
    site.publish(0, 0)
    site.poll()
    assert site.http.keys == {"Bearer s3cr3t"}
    assert "s3cr3t" not in json.dumps(site.http.events) + "".join(site.lines)


def test_event_that_breaks_the_specification_is_found(site: LineageSite) -> None:
    site.publish(0, 0)
    site.poll()
    event = json.loads(json.dumps(site.http.events[1]))
    assert schema_problems(event) == []
    event["outputs"][0]["facets"]["columnLineage"]["fields"]["value"] = {}
    del event["run"]["runId"]
    assert [each.split(": ")[1] for each in schema_problems(event)] == ["event", "columnLineage"]


def test_second_follower_of_a_state_folder_is_refused(site: LineageSite) -> None:
    first, second = (EventFollower(site.settings, receiver(site.settings), print) for _ in range(2))
    with first.alone(), pytest.raises(LockHeld), second.alone():
        pass


def test_no_receiver_is_an_error_that_says_which_setting_lacks(settings: Settings) -> None:
    with pytest.raises(Terminal, match="HEADRACE_OPENLINEAGE_URL"):
        receiver(settings)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://marquez:5000", ("http://marquez:5000/", "api/v1/lineage")),
        ("http://marquez:5000/", ("http://marquez:5000/", "api/v1/lineage")),
        ("https://datahub/openapi/openlineage", ("https://datahub/", "openapi/openlineage/api/v1/lineage")),
        (
            "https://datahub/openapi/openlineage/api/v1/lineage",
            ("https://datahub/", "openapi/openlineage/api/v1/lineage"),
        ),
    ],
)
def test_address_of_a_receiver_may_have_a_path(address: str, expected: tuple[str, str]) -> None:
    assert split_address(address) == expected


def test_cost_of_a_look_does_not_grow_with_history(site: LineageSite, monkeypatch: pytest.MonkeyPatch) -> None:
    from include.ground import delta_log

    reads = list[Any]()
    read = delta_log.commit_content
    monkeypatch.setattr(delta_log, "commit_content", lambda *args: reads.append(args) or read(*args))
    follower = EventFollower(site.settings, receiver(site.settings), site.lines.append)
    site.publish(0, 0)
    follower.poll()
    counts = []
    for batch in (1, 2, 3, 40, 41):
        site.publish(batch, batch)
        reads.clear()
        follower.poll()
        counts.append(len(reads))
    assert counts == [0] * 5
