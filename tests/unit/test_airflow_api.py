"""The API for an Airflow elsewhere, without a broker: tokens, streams, plans that do not exist, work and its errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from console_client import console_client, published_state
from error_codes import raises
from fastapi.testclient import TestClient
from plan_samples import plan_at

from include.ground.errors import Refused, Terminal, Transient
from include.ground.paths import log_path
from include.ground.settings import Settings
from include.plans.journal import load_plan, planning_lock
from include.plans.plan import Stage
from include.read.record_stores import file_within
from include.run.airflow_process import own_api_token
from include.serve.action_log import last_actions
from include.serve.api import FAILURES
from include.serve.console import refuse_exposed
from include.serve.work import RemoteWork, WorkState
from include.state.streams import desired_stream, request_stream

TOKEN = "a token of more than twenty characters"
AUDIT = {"by": "stream__flights/scheduled__1", "parameters": {"datasets": ["fligths"], "full": False}}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
RUN = "stream__flights/scheduled__1"
STREAM = "/api/v1/streams/flights"
UNKNOWN = "backfill-flights-1"


@pytest.fixture
def given(settings: Settings, tmp_path: Path) -> Settings:
    """Settings with a token."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return settings.model_copy(update={"api_token_file": tmp_path / "token", "files": tmp_path / "files"})


@pytest.fixture
def client(given: Settings) -> Iterator[TestClient]:
    """A client of the console."""
    published_state(given)
    with console_client(given) as found:
        yield found


def test_requests_without_the_token_are_refused(client: TestClient) -> None:
    for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": TOKEN + "x"}):
        answer = client.put(STREAM, json={"by": RUN}, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (401, "the token is wrong")


def test_server_without_a_token_file_has_no_api(settings: Settings) -> None:
    with console_client(settings) as client:
        assert client.put(STREAM, json={"by": RUN}, headers=BEARER).status_code == 404
    assert desired_stream(settings, "flights") is None


def test_airflow_of_the_state_folder_has_a_token_of_its_own(settings: Settings) -> None:
    """Its requests are recorded as those of whom it names: it is part of the platform."""
    with console_client(settings) as client:
        own = {"Authorization": f"Bearer {own_api_token(settings)}"}
        assert client.put(STREAM, json={"by": RUN}, headers=BEARER).status_code == 401
        assert client.put(STREAM, json={"by": RUN}, headers=own).status_code == 200
    assert {each.user for each in last_actions(settings, 5)} == {RUN}


def test_short_token_admits_nobody(given: Settings) -> None:
    assert given.api_token_file is not None
    given.api_token_file.write_text("short")
    with console_client(given) as client:
        answer = client.put(STREAM, json={"by": RUN}, headers={"Authorization": "Bearer short"})
    assert (answer.status_code, answer.json()["is_terminal"]) == (409, True)


def test_unusable_token_file_does_not_lock_out_the_airflow_of_the_state_folder(given: Settings) -> None:
    assert given.api_token_file is not None
    given.api_token_file.write_text("short")
    own = {"Authorization": f"Bearer {own_api_token(given)}"}
    with console_client(given) as client:
        assert client.put(STREAM, json={"by": RUN}, headers=own).status_code == 200


def test_longest_names_of_a_dag_and_its_run_name_work(client: TestClient) -> None:
    by = f"{'d' * 250}/{'r' * 250}"
    key = client.post("/api/v1/audits", json={**AUDIT, "by": by}, headers=BEARER).json()["work"]
    assert client.get("/api/v1/work", params={"key": key}, headers=BEARER).status_code == 200


def test_secret_in_the_error_of_a_task_is_masked(client: TestClient, given: Settings) -> None:
    body = {"by": RUN, "task": "build", "attempt": 1, "error": "postgresql://ann:hunter2@db/x does not answer"}
    assert client.post("/api/v1/failures", json=body, headers=BEARER).status_code == 200
    assert "hunter2" not in log_path(given, FAILURES).read_text()


def test_stream_is_requested_and_released_by_its_run(client: TestClient, given: Settings) -> None:
    since = client.put(STREAM, json={"by": RUN}, headers=BEARER).json()["since"]
    request = desired_stream(given, "flights")
    assert request is not None
    assert (request.desired, request.by, request.since.isoformat()) == (True, RUN, since)
    health = client.get(STREAM, params={"lag_seconds": 5}, headers=BEARER).json()
    assert health["line"].startswith("flights: stopped")
    assert (health["ended"], "state" in health["breaches"]) == (None, True)
    answer = client.delete(STREAM, params={"by": RUN, "since": since}, headers=BEARER)
    assert answer.json() == {"released": True}
    assert client.get(STREAM, params={"lag_seconds": 5}, headers=BEARER).json()["ended"]["outcome"] == "released"


def test_run_does_not_release_a_later_runs_stream(client: TestClient, given: Settings) -> None:
    since = client.put(STREAM, json={"by": RUN}, headers=BEARER).json()["since"]
    time.sleep(0.01)
    request_stream(given, "flights", "stream__flights/scheduled__2")
    answer = client.delete(STREAM, params={"by": RUN, "since": since}, headers=BEARER)
    assert answer.json() == {"released": False}
    request = desired_stream(given, "flights")
    assert request is not None
    assert request.desired


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/streams/fligths", {"by": "stream__fligths/1"}, 404),
        ("/api/v1/streams/flights", {}, 422),
        ("/api/v1/streams/flights", {"by": RUN, "more": 1}, 422),
    ],
)
def test_wrong_requests_are_refused_as_json(client: TestClient, path: str, body: dict[str, Any], status: int) -> None:
    answer = client.put(path, json=body, headers=BEARER)
    assert (answer.status_code, answer.json()["is_terminal"]) == (status, True)


@pytest.mark.parametrize("by", ["alice", "stream__weather/scheduled__1", "a\nb", "", "x" * 1000, f"{RUN}\0"])
def test_stream_is_requested_in_the_name_of_its_run_alone(client: TestClient, given: Settings, by: str) -> None:
    assert client.put(STREAM, json={"by": by}, headers=BEARER).status_code == 422
    since = "2026-01-01T00:00:00Z"
    assert client.delete(STREAM, params={"by": by, "since": since}, headers=BEARER).status_code == 422
    assert desired_stream(given, "flights") is None


@pytest.mark.parametrize("path", ["plans/backfill-flights-1", "work?key=audit-1", "nothing"])
def test_what_does_not_exist_is_404_as_json(client: TestClient, path: str) -> None:
    answer = client.get(f"/api/v1/{path}", headers=BEARER)
    assert (answer.status_code, answer.json()["is_terminal"]) == (404, True)


def test_backfill_of_a_dataset_without_events_there_is_refused(client: TestClient) -> None:
    parameters = {"start": "1990-01-01T00:00:00Z", "end": "1990-01-02T00:00:00Z", "threshold": 0}
    body = {"dataset": "flights", "by": "a", "origin": "backfill__flights/1", "parameters": parameters}
    answer = client.post("/api/v1/backfills", json=body, headers=BEARER)
    assert (answer.status_code, answer.json()["is_terminal"]) == (409, True)
    for start in ("1990", "1990-01-01T00:00:00", "1991-01-01T00:00:00Z", 631152000):
        wrong = {**body, "parameters": {**parameters, "start": start}}
        assert client.post("/api/v1/backfills", json=wrong, headers=BEARER).status_code == 422, start


def test_log_of_actions_names_each_request_and_how_it_ended(client: TestClient, given: Settings) -> None:
    client.put(STREAM, json={"by": RUN}, headers=BEARER)
    client.put("/api/v1/streams/fligths", json={"by": "stream__fligths/1"}, headers=BEARER)
    client.post(f"/api/v1/plans/{UNKNOWN}/approve", json={"by": RUN}, headers=BEARER)
    audit = client.post("/api/v1/audits", json=AUDIT, headers=BEARER).json()["work"]
    awaited(work_of(client), audit)
    plan = plan_at(given, Stage.BUILT, Stage.COMPARED).plan.id
    client.post(f"/api/v1/plans/{plan}/reject", json={"by": RUN}, headers=BEARER)
    client.post(f"/api/v1/plans/{plan}/run", json={"by": RUN, "upto": "applied"}, headers=BEARER)
    awaited(work_of(client), f"run {plan} applied")
    logged = [(each.user, each.what, each.about, each.outcome) for each in reversed(last_actions(given, 20))]
    assert logged[::2] == [(*each[:3], "requested") for each in logged[1::2]]
    assert [(what, about, outcome == "done") for _, what, about, outcome in logged[1::2]] == [
        *(("request", "flights", True), ("request", "fligths", False), ("approve", UNKNOWN, False)),
        *(("audit", RUN, False), ("reject", plan, True), ("run", plan, False)),
    ]
    assert {user for user, *_ in logged} == {f"token token on behalf of {by}" for by in (RUN, "stream__fligths/1")}


def work_of(client: TestClient) -> RemoteWork:
    app: Any = client.app
    work: RemoteWork = app.state.work
    return work


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"by": "batches", "first_batch": 1}, 422),
        ({"by": "batches", "first_batch": 0, "last_batch": 0, "more": 1}, 422),
        ({"by": "time", "start": "1990-01-01", "end": "1990-01-02"}, 422),
        ({"by": "batches", "first_batch": 900, "last_batch": 901}, 409),
        ({"by": "offsets", "offsets": {"0": [100000, 100001]}}, 409),
    ],
)
def test_replay_that_is_not_possible_is_refused(client: TestClient, parameters: dict[str, Any], status: int) -> None:
    body = {"dataset": "flights", "by": "a", "origin": "replay__flights/1", "parameters": parameters}
    answer = client.post("/api/v1/replays", json=body, headers=BEARER)
    assert (answer.status_code, answer.json()["is_terminal"]) == (status, True), answer.json()


@pytest.mark.parametrize(
    "file", ["/etc/hostname", "../a.jsonl", "file:///etc/hostname", "x/../../*", "there/a", "ther?/a", "link*"]
)
def test_files_outside_of_their_folder_are_not_loaded(client: TestClient, given: Settings, file: str) -> None:
    elsewhere = given.files.with_name("elsewhere")
    given.files.mkdir()
    elsewhere.mkdir()
    (elsewhere / "a").write_text("{}\n")
    (given.files / "there").symlink_to(elsewhere)
    (given.files / "link").symlink_to(elsewhere / "a")
    body = {"dataset": "flights", "by": "a", "origin": "load__flights/1", "parameters": {"files": [file]}}
    answer = client.post("/api/v1/loads", json=body, headers=BEARER)
    assert (answer.status_code, answer.json()["code"]) == (409, "file-elsewhere")
    assert file in answer.json()["error"]


@pytest.mark.parametrize("file", ["a/*.jsonl", "*.jsonl", "**"])
def test_files_in_their_folder_are_looked_for(client: TestClient, given: Settings, file: str) -> None:
    body = {"dataset": "flights", "by": "a", "origin": "load__flights/1", "parameters": {"files": [file]}}
    answer = client.post("/api/v1/loads", json=body, headers=BEARER)
    # It got as far as the release, of which this state has the publication alone.
    assert answer.json()["code"] == "release-unknown"
    assert file_within(given, file) == str(given.files.resolve() / file)
    assert file_within(given, "s3://bucket/*.csv") == "s3://bucket/*.csv"


def test_release_without_a_publication_is_refused(client: TestClient) -> None:
    body = {"dataset": "flights", "by": "a", "origin": "release__flights/1", "parameters": {"threshold": 0}}
    answer = client.post("/api/v1/releases", json=body, headers=BEARER)
    assert (answer.status_code, answer.json()["is_terminal"]) == (409, True), answer.json()


def test_plan_of_an_ended_run_is_cancelled_once(client: TestClient, given: Settings) -> None:
    origin = "backfill__flights/manual__1"
    body = {"by": "ann", "origin": origin}
    assert client.post("/api/v1/ended-runs", json=body, headers=BEARER).json() == {
        "plan": None,
        "stage": None,
        "was_open": False,
    }
    plan = plan_at(given, Stage.BUILT, origin=origin).plan
    for was_open in (True, False):
        answer = client.post("/api/v1/ended-runs", json=body, headers=BEARER)
        assert answer.json() == {"plan": plan.id, "stage": "cancelled", "was_open": was_open}
    record = load_plan(given, plan.id)
    assert [(event.stage, event.by) for event in record.events][-1] == (Stage.CANCELLED, "token token on behalf of ann")


def test_plan_that_is_created_while_its_run_is_ended_is_cancelled(client: TestClient, given: Settings) -> None:
    origin = "backfill__flights/manual__2"
    is_locked = threading.Event()

    def create_plan() -> None:
        with planning_lock(given):
            is_locked.set()
            time.sleep(0.5)
            plan_at(given, Stage.BUILT, origin=origin)

    with ThreadPoolExecutor(1) as pool:
        created = pool.submit(create_plan)
        assert is_locked.wait(10)
        answer = client.post("/api/v1/ended-runs", json={"by": "ann", "origin": origin}, headers=BEARER)
        created.result()
    assert (answer.json()["stage"], answer.json()["was_open"]) == ("cancelled", True)


def test_work_that_fails_says_whether_a_retry_helps() -> None:
    work = RemoteWork()

    def fail(error: Exception) -> Any:
        raise error

    for key, error in (("a", Terminal("no")), ("b", Transient("later")), ("c", ValueError("x"))):
        work.begin(key, lambda _, error=error: fail(error))
    assert [(s.error, s.is_terminal) for s in (awaited(work, key) for key in "abc")] == [
        ("no", True),
        ("later", False),
        ("it failed unexpectedly: ValueError: x", False),
    ]


def test_work_that_runs_is_not_begun_twice() -> None:
    work, begun, go = RemoteWork(), list[int](), list[int]()

    def run(report: Any) -> dict[str, int]:
        begun.append(1)
        report("one")
        while not go:
            time.sleep(0.01)
        return {"n": 1}

    work.begin("a", run)
    work.begin("a", run)
    go.append(1)
    assert awaited(work, "a").result == {"n": 1}
    work.begin("a", run)
    assert awaited(work, "a").done
    assert begun == [1, 1]


def awaited(work: RemoteWork, key: str) -> WorkState:
    end = time.monotonic() + 10
    while (state := work.state(key)) is None or not state.done:
        assert time.monotonic() < end
        time.sleep(0.01)
    return state


def test_console_with_a_token_alone_may_be_reached_from_elsewhere(given: Settings, settings: Settings) -> None:
    refuse_exposed(given, "0.0.0.0")
    with raises(Refused, "console-exposed"):
        refuse_exposed(settings, "0.0.0.0")
    with console_client(given, "0.0.0.0") as client:
        assert client.get("/", headers=BEARER).headers["location"] == "/log-in"
        assert client.put(STREAM, json={"by": RUN}, headers=BEARER).status_code == 200
