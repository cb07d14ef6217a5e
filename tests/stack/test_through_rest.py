"""The platform through Airflow's REST API: a stream, a backfill, a replay and a load with approval, rollbacks.

The tests of this file are one story on one platform, in this order; each of a replay goes on from the one before.
What runs alone (`-k`, `-m extended`) gets the stream with its days of flights from the fixture `streaming`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from site_of_stack import DATASET, Stack, await_that

from include.ground.errors import Refused
from include.ground.record_coordinates import FIRST_FILE_SET
from include.observe.ledger_reader import open_reader
from include.plans.plan import Stage
from include.producers.feed import events
from include.producers.flights import FLIGHTS

STREAM, BACKFILL, REPLAY, ROLLBACK = (f"{verb}__{DATASET}" for verb in ("stream", "backfill", "replay", "rollback"))
LOAD, QUALITY = f"load__{DATASET}", f"quality__{DATASET}"
DAGS = {STREAM, BACKFILL, REPLAY, LOAD, ROLLBACK, f"release__{DATASET}", QUALITY, "audit", "maintain"}
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def streaming(stack: Stack) -> str:
    """Unpause the DAG of the stream, which publishes four days of flights; return its run."""
    await_dags(stack)
    stack.page.call("PATCH", f"/dags/{STREAM}", {"is_paused": False})
    run = last_run(stack, STREAM)
    stack.page.await_task(STREAM, run, "keep", "deferred")
    await_that(lambda: stack.status()[f"stream:{DATASET}"]["state"] == "running", "the stream runs")
    # In several batches, as the stream makes of one feed on a busy machine.
    stack.feed("2013-01-01", "2013-01-03")
    stack.feed("2013-01-03", "2013-01-05")
    return run


def last_run(stack: Stack, dag: str) -> str:
    """Return a DAG's last run; the first is waited for."""
    await_that(lambda: bool(stack.page.runs(dag)), f"{dag} has a run", 60)
    return str(stack.page.runs(dag)[-1]["dag_run_id"])


def loaded_dags(stack: Stack) -> dict[str, Any]:
    """Return the DAGs that Airflow has loaded by now, by name."""
    return {dag["dag_id"]: dag for dag in stack.page.call("GET", "/dags")["dags"]}


def await_dags(stack: Stack) -> None:
    """Wait until every DAG is loaded: the API answers before the DAG processor has read the last file."""
    await_that(lambda: set(loaded_dags(stack)) >= DAGS, "every DAG is loaded", 60)


def test_every_dag_is_loaded_and_the_api_requires_a_login(stack: Stack) -> None:
    await_dags(stack)
    assert stack.page.call("GET", "/importErrors")["total_entries"] == 0
    dags = loaded_dags(stack)
    # What only a person triggers needs no switch first.
    assert {name for name, dag in dags.items() if name.endswith(DATASET) and not dag["is_paused"]} == {
        REPLAY,
        ROLLBACK,
        f"release__{DATASET}",
        LOAD,
    }
    anonymous = type(stack.page)(stack.settings, token="nobody")
    with pytest.raises(Refused) as refused:
        anonymous.call("GET", "/dags")
    assert refused.value.facts["status"] in (401, 403)
    assert stack.status()["airflow"]["state"] == "running"


def test_unpausing_the_dag_starts_the_stream_and_shows_its_health(stack: Stack, streaming: str) -> None:
    await_that(lambda: "running, batch" in stack.page.log(STREAM, streaming, "keep"), "the log shows its health", 90)
    assert stack.drivers() == [stack.stream_pid()]
    assert stack.page.run(STREAM, streaming)["state"] == "running"


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_restarting_airflow_neither_stops_nor_doubles_the_stream(stack: Stack) -> None:
    run, pid = last_run(stack, STREAM), stack.stream_pid()
    for part in ("scheduler", "triggerer", "api-server", "dag-processor"):
        before = stack.part(part)
        before.kill()
        await_that(lambda name=part, old=before.pid: stack.pid_of(name) not in (None, old), f"{part} is back", 60)
    await_that(lambda: all(healthy(stack).values()), "all parts are healthy again", 120)
    assert stack.page.states(STREAM, run) == {"keep": "deferred"}
    assert stack.drivers() == [stack.stream_pid()] == [pid]


def healthy(stack: Stack) -> dict[str, bool]:
    """Return which parts Airflow reports as healthy."""
    parts = stack.page.call("GET", "/monitor/health")
    return {name: part["status"] == "healthy" for name, part in parts.items()}


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_backfilled_days_are_verified_one_by_one(stack: Stack) -> None:
    stack.page.call("PATCH", f"/dags/{BACKFILL}", {"is_paused": False})
    days = ["2013-01-02", "2013-01-03"]
    request = {"dag_id": BACKFILL, "from_date": f"{days[0]}T00:00:00Z", "to_date": f"{days[-1]}T00:00:00Z"}
    stack.page.call("POST", "/backfills", request)
    runs = {
        run["partition_key"]: run["dag_run_id"] for run in stack.page.runs(BACKFILL) if run["partition_key"] in days
    }
    assert sorted(runs) == days
    published = stack.publication()
    for run in runs.values():
        assert stack.page.await_run(BACKFILL, run, 800) == "success", stack.page.story(BACKFILL, run)
        assert stack.page.result(BACKFILL, run, "apply")["result"] == "verified"
        (record,) = stack.plans(f"{BACKFILL}/{run}")
        assert (record.stage, record.plan.planned_by) == (Stage.APPLIED, "admin")
    _, verified = open_reader(stack.settings).event_times(DATASET, published.release)
    midnights = [datetime.fromisoformat(day).replace(tzinfo=UTC) for day in days]
    assert sorted(found.since for found in verified) == midnights
    assert stack.publication().tables == published.tables, "nothing differed, so no table was touched"
    events = stack.page.call("GET", "/assets/events?limit=100")["asset_events"]
    assert {event["partition_key"] for event in events if event["name"] == "gold.carrier_hours"} >= set(days)


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_published_tables_are_validated_and_compacted(stack: Stack) -> None:
    run = stack.page.trigger(QUALITY)
    assert stack.page.await_run(QUALITY, run) == "success", stack.page.story(QUALITY, run)
    answer = stack.page.result(QUALITY, run, "validate")
    assert (answer["evaluated"] > 0, answer["failed"], answer["batch"]) == (True, [], stack.publication().batch)
    links = stack.page.call("GET", f"/dags/{QUALITY}/dagRuns/{run}/taskInstances/validate/links")["extra_links"]
    assert links == {"Rule results": f"/headrace/docs/{DATASET}/overview.html"}
    published = stack.publication()
    run = stack.page.trigger("maintain")
    assert stack.page.await_run("maintain", run) == "success", stack.page.story("maintain", run)
    assert f"{DATASET}/bronze" in stack.page.result("maintain", run, f"tables__{DATASET}")
    assert stack.page.states("maintain", run)["tables__weather"] == "skipped", "nothing of it is published"
    assert stack.publication() == published


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_scheduled_day_without_events_is_skipped(stack: Stack) -> None:
    run = stack.page.trigger(BACKFILL, partition_key="2012-12-01")
    assert stack.page.await_run(BACKFILL, run) == "success"
    assert set(stack.page.states(BACKFILL, run).values()) == {"skipped"}


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_dry_run_only_explains(stack: Stack) -> None:
    before = stack.plan_files()
    run = stack.page.trigger(REPLAY, {"by": "batches", "first_batch": 1, "last_batch": 1, "dry_run": True})
    assert stack.page.await_run(REPLAY, run) == "success"
    assert stack.page.states(REPLAY, run) == {"plan": "success"} | dict.fromkeys(
        ("build", "compare", "approve", "apply"), "skipped"
    )
    # Which partitions a batch has records of depends on when they were taken.
    assert re.search(r"partition [01] offsets", stack.page.log(REPLAY, run, "plan"))
    assert stack.plan_files() == before


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        ({"by": "batches", "first_batch": 1, "last_batch": 1, "table": "silver; DROP TABLE x"}, "'table'"),
        ({"start": "2013-01-03T00:00:00Z", "end": "2013-01-02T00:00:00Z"}, "start is not before end"),
        ({"by": "offsets", "offsets": {"7": [0, 5]}}, "no partition 7"),
        ({"by": "batches", "first_batch": 900, "last_batch": 901}, "no record is published there"),
    ],
)
def test_impossible_replay_is_refused_before_anything_is_written(
    stack: Stack, conf: dict[str, object], reason: str
) -> None:
    before = stack.plan_files()
    run = stack.page.trigger(REPLAY, conf)
    assert stack.page.await_run(REPLAY, run) == "failed"
    states = stack.page.states(REPLAY, run)
    assert states.pop("plan") == "failed"
    assert set(states.values()) == {"upstream_failed"}
    log = stack.page.log(REPLAY, run, "plan")
    assert reason in log
    assert stack.plan_files() == before


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize(
    "conf",
    [
        {"threshold": "a lot"},
        {"by": "predicate"},
        {"first_batch": -1},
        {"last_batch": 99999999999999999999},
        {"dry_run": "no"},
        {"start": "2013-01-02T00:00:00", "end": "2013-01-03T00:00:00"},
        {"start": "{{ macros.datetime.now() }}", "end": "{{ 7191*7193 }}"},
        {"by": "offsets", "offsets": {"../../etc/passwd": [0, 5]}},
    ],
)
def test_form_refuses_a_value_of_the_wrong_type(stack: Stack, conf: dict[str, object]) -> None:
    before = stack.plan_files()
    with pytest.raises(Refused) as refused:
        stack.page.trigger(REPLAY, conf)
    assert refused.value.facts["status"] == 400
    assert stack.plan_files() == before


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_replay_is_approved_published_and_rolled_back(stack: Stack) -> None:
    """Rows of gold are lost while no stream runs; a replay finds the loss, needs approval, and restores them."""
    drain_stream(stack)
    request = {"by": "batches", "first_batch": 0, "last_batch": stack.publication().batch}
    stack.lose("gold.carrier_hours", "carrier = 'UA'")
    request_stream_again(stack)
    stack.feed("2013-01-05", "2013-01-06")
    assert not stack.is_balanced()
    run = stack.page.trigger(REPLAY, request)
    stack.page.await_task(REPLAY, run, "approve", "awaiting_input")
    question = stack.page.call("GET", f"/dags/{REPLAY}/dagRuns/{run}/hitlDetails")["hitl_details"][0]
    assert "needs approval" in question["body"]
    assert "`gold.carrier_hours`" in question["body"]
    assert not stack.is_balanced(), "nothing is published before the approval"

    second = stack.page.trigger(REPLAY, request)
    assert stack.page.await_run(REPLAY, second) == "failed"
    (record,) = stack.plans(f"{REPLAY}/{run}")
    assert f"plan {record.plan.id} is compared" in stack.page.log(REPLAY, second, "plan")
    assert stack.plans(f"{REPLAY}/{second}") == []

    stack.page.answer(REPLAY, run, "approve", "Approve")
    assert stack.page.await_run(REPLAY, run) == "success", stack.page.story(REPLAY, run)
    (record,) = stack.plans(f"{REPLAY}/{run}")
    assert [(event.stage, event.by) for event in record.events][-2:] == [
        (Stage.APPROVED, "admin"),
        (Stage.APPLIED, "admin"),
    ]
    assert stack.page.result(REPLAY, run, "apply")["result"] == "corrected"
    audit = stack.page.trigger("audit", {"datasets": [DATASET]})
    assert stack.page.await_run("audit", audit) == "success", stack.page.story("audit", audit)
    # Flights may be two days late, and the fifth day's last event is of a minute before midnight.
    stack.page.await_that(lambda: "2013-01-02" in announced_days(stack), "a day is complete", "audit", audit)
    assert max(announced_days(stack)) == "2013-01-02"
    counted = stack.page.result("audit", audit, "audit")[DATASET]
    assert counted["kafka"] == counted["bronze"] == counted["silver"] + counted["rejected"] > 0

    back = stack.page.trigger(ROLLBACK)
    assert stack.page.await_run(ROLLBACK, back) == "success", stack.page.story(ROLLBACK, back)
    assert stack.page.result(ROLLBACK, back, "roll_back")["plan"] == record.plan.id
    assert stack.plans(f"{REPLAY}/{run}")[0].stage is Stage.ROLLED_BACK
    # Gold is computed from silver: what was wrong in gold alone does not come back.
    assert stack.is_balanced()


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_rejected_replay_changes_nothing_and_skips_its_apply(stack: Stack) -> None:
    drain_stream(stack)
    stack.lose("gold.carrier_hours", "carrier = 'AA'")
    request_stream_again(stack)
    stack.feed("2013-01-06", "2013-01-07")
    run = stack.page.trigger(REPLAY, {"by": "batches", "first_batch": 1, "last_batch": 1})
    stack.page.await_task(REPLAY, run, "approve", "awaiting_input")
    stack.page.answer(REPLAY, run, "approve", "Reject")
    assert stack.page.await_run(REPLAY, run) == "success"
    assert stack.page.states(REPLAY, run)["apply"] == "skipped"
    assert stack.plans(f"{REPLAY}/{run}")[0].stage is Stage.REJECTED
    audit = stack.page.trigger("audit")
    assert stack.page.await_run("audit", audit) == "failed"
    assert "gold.carrier_hours" in stack.page.log("audit", audit, "audit")


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_cleared_run_repeats_nothing(stack: Stack) -> None:
    everything = {"by": "batches", "first_batch": 0, "last_batch": stack.publication().batch}
    run = stack.page.trigger(REPLAY, everything | {"threshold": 1})
    assert stack.page.await_run(REPLAY, run) == "success", stack.page.story(REPLAY, run)
    assert stack.is_balanced(), "the rows that the previous test deleted are restored"
    before, published = stack.plans(f"{REPLAY}/{run}"), stack.publication()
    cleared = {"dag_run_id": run, "only_failed": False, "dry_run": False}
    stack.page.call("POST", f"/dags/{REPLAY}/clearTaskInstances", cleared)
    await_that(lambda: stack.page.tasks(REPLAY, run)["plan"]["try_number"] > 1, "the run begins anew", 60)
    assert stack.page.await_run(REPLAY, run) == "success", stack.page.story(REPLAY, run)
    assert stack.plans(f"{REPLAY}/{run}") == before
    assert stack.publication() == published
    assert "build: " in stack.page.log(REPLAY, run, "build", 1)
    assert "build: " not in stack.page.log(REPLAY, run, "build", 2)


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_stop_is_not_lost_while_the_triggerer_is_dead(stack: Stack) -> None:
    stack.part("triggerer").kill()
    drain_stream(stack)
    request_stream_again(stack)


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_run_marked_as_failed_cancels_its_plan_so_that_the_next_replay_is_not_refused(stack: Stack) -> None:
    drain_stream(stack)
    stack.lose("gold.carrier_hours", "carrier = 'DL'")
    request_stream_again(stack)
    stack.feed("2013-01-07", "2013-01-08")
    parameters = {"by": "batches", "first_batch": 0, "last_batch": stack.publication().batch}
    run = stack.page.trigger(REPLAY, parameters)
    stack.page.await_task(REPLAY, run, "approve", "awaiting_input")
    stack.page.call("PATCH", f"/dags/{REPLAY}/dagRuns/{run}", {"state": "failed"})
    await_that(lambda: stack.plans(f"{REPLAY}/{run}")[0].stage is Stage.CANCELLED, "the plan is cancelled", 60)
    again = stack.page.trigger(REPLAY, parameters | {"threshold": 1})
    assert stack.page.await_run(REPLAY, again) == "success", stack.page.story(REPLAY, again)
    assert stack.is_balanced()


@pytest.mark.extended
@pytest.mark.usefixtures("streaming")
def test_history_from_files_is_approved_published_and_rolled_back(stack: Stack) -> None:
    day = events(FLIGHTS, datetime(2013, 2, 1, tzinfo=UTC), datetime(2013, 2, 2, tzinfo=UTC))["value"].to_list()
    write_file(stack, "2013/february.jsonl.gz", day[:-100])
    write_file(stack, "2013/february-rest.jsonl.gz", [*day[-100:], day[0], b'{"flight_id": 7}'])
    elsewhere = stack.page.trigger(LOAD, {"files": ["../state/*"]})
    assert stack.page.await_run(LOAD, elsewhere) == "failed"
    assert "is not in" in stack.page.log(LOAD, elsewhere, "plan")

    run = stack.page.trigger(LOAD, {"files": ["2013/*.jsonl.gz"]})
    stack.page.await_task(LOAD, run, "approve", "awaiting_input")
    question = stack.page.call("GET", f"/dags/{LOAD}/dagRuns/{run}/hitlDetails")["hitl_details"][0]
    assert "needs approval" in question["body"]
    assert loaded_rows(stack) == 0, "nothing is published before the approval"
    stack.page.answer(LOAD, run, "approve", "Approve")
    assert stack.page.await_run(LOAD, run) == "success", stack.page.story(LOAD, run)
    (record,) = stack.plans(f"{LOAD}/{run}")
    assert (record.stage, record.plan.planned_by, record.events[-2].by) == (Stage.APPLIED, "admin", "admin")
    assert loaded_rows(stack) == len(day)
    assert stack.is_balanced()

    back = stack.page.trigger(ROLLBACK)
    assert stack.page.await_run(ROLLBACK, back) == "success", stack.page.story(ROLLBACK, back)
    assert stack.page.result(ROLLBACK, back, "roll_back")["plan"] == record.plan.id
    assert loaded_rows(stack) == 0
    assert stack.is_balanced()


def write_file(stack: Stack, name: str, lines: Sequence[bytes]) -> None:
    """Write a file into the folder from which requests load."""
    path = stack.settings.files / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(b"\n".join(lines)))


def loaded_rows(stack: Stack) -> int:
    """Return how many published rows of silver come from files."""
    query = f"select count(*) as n from silver.{DATASET} where _partition >= {FIRST_FILE_SET}"
    return int(json.loads(stack.output_of("query", query, "--format", "json"))[0]["n"])


@pytest.mark.usefixtures("streaming")
def test_stopping_the_run_drains_the_stream(stack: Stack) -> None:
    drain_stream(stack)
    process = stack.status()[f"stream:{DATASET}"]
    assert process["state"] == "stopped"


def announced_days(stack: Stack) -> list[str]:
    """Return the days that audits have announced as complete, each by one run: Airflow also starts the hourly one."""
    task, runs = f"days__{DATASET}", [each["dag_run_id"] for each in stack.page.runs("audit")]
    announced = [run for run in runs if stack.page.states("audit", run).get(task) == "success"]
    return [day for run in announced for day in stack.page.result("audit", run, task)]


def drain_stream(stack: Stack) -> None:
    """Stop the stream as documented in the DAG: pause it, then end its run."""
    stack.page.call("PATCH", f"/dags/{STREAM}", {"is_paused": True})
    run = last_run(stack, STREAM)
    stack.page.call("PATCH", f"/dags/{STREAM}/dagRuns/{run}", {"state": "success"})
    await_that(lambda: stack.drivers() == [], "the stream has drained", 60)


def request_stream_again(stack: Stack) -> None:
    """Unpause the DAG: its next run requests the stream again."""
    stack.page.call("PATCH", f"/dags/{STREAM}", {"is_paused": False})
    await_that(lambda: stack.status()[f"stream:{DATASET}"]["state"] == "running", "the stream runs again")
