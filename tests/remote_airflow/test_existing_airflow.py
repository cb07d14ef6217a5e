"""An Airflow elsewhere keeps a stream, backfills with an approval, audits: by an Airflow connection alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from foreign_airflow import foreign_airflow
from recovery_site import TEMPLATE, Site, close_broker, copy_dataset, wait_until
from stack_tools.airflow_rest import AirflowRest

from include.ground.kafka import ensure_topic
from include.ground.ports import free_ports, is_open
from include.ground.settings import CLONE, Settings
from include.observe.processes import observe_stream
from include.plans.journal import load_plan
from include.plans.plan import Stage
from include.read.publication import read_publication, tables_of
from include.state.process_states import ProcessState
from include.state.streams import desired_stream

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]
DATASET = "meter"
RELEASE = f"release__{DATASET}"
TOKEN = "a token of more than twenty characters"
RANGE = {"start": "2024-02-27T00:00:00Z", "end": "2024-02-28T00:00:00Z"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A runner with a broker, and no stream."""
    root = tmp_path_factory.mktemp("platform")
    settings = Settings(state=root / "state", datasets=root / "datasets", driver_memory="1g")
    copy_dataset(TEMPLATE, settings.datasets / DATASET, DATASET)
    place = Site(settings, DATASET)
    try:
        for words in (("up", DATASET), ("down", DATASET)):
            done = place.command(*words)
            assert done.returncode == 0, done.stdout + done.stderr
        ensure_topic(place.bootstrap, DATASET, 2)
        yield place
    finally:
        close_broker(settings)


@pytest.fixture(scope="module")
def port(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a console with the API."""
    folder, chosen = tmp_path_factory.mktemp("console"), free_ports(1)[0]
    (folder / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "include.cli.main", "console", "--port", str(chosen)]
    environment = site.environment({"HEADRACE_API_TOKEN_FILE": str(folder / "token")})
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=CLONE, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_open(chosen), "the console answers", within=60)
        yield chosen
    finally:
        process.terminate()
        process.wait(60)
        print((folder / "log").read_text()[-4000:])


@pytest.fixture(scope="module")
def airflow(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowRest]:
    """Somebody's Airflow, which knows the console's address and the token."""
    connection: dict[str, object] = {"conn_type": "http", "host": "127.0.0.1", "port": port, "password": TOKEN}
    with foreign_airflow(tmp_path_factory.mktemp("airflow"), [DATASET], connection) as found:
        yield found


def state(site: Site) -> ProcessState:
    return observe_stream(site.settings, DATASET).state


def lose_rows(site: Site) -> None:
    """Delete rows of silver, as a user error would, while no stream runs; the next publication lacks them."""
    path: Path = tables_of(site.settings, read_publication(site.settings, DATASET))[f"silver.{DATASET}"].path
    DeltaTable(str(path)).delete("litres > 60")


def test_stream_is_requested_and_watched_by_a_run(site: Site, airflow: AirflowRest) -> None:
    assert state(site) is ProcessState.STOPPED
    airflow.call("PATCH", f"/dags/stream__{DATASET}", {"is_paused": False})
    wait_until(lambda: state(site) is ProcessState.RUNNING, "the stream runs", within=180)
    request = desired_stream(site.settings, DATASET)
    assert request is not None
    assert request.by.startswith(f"stream__{DATASET}/scheduled__")
    site.send(400)
    wait_until(site.is_published, "the records are published", within=120)
    (run,) = airflow.runs(f"stream__{DATASET}")
    airflow.await_task(f"stream__{DATASET}", run["dag_run_id"], "keep", "deferred")


def test_backfill_of_equal_rows_is_verified_without_approval(site: Site, airflow: AirflowRest) -> None:
    run = airflow.trigger(f"backfill__{DATASET}", RANGE)
    assert airflow.await_run(f"backfill__{DATASET}", run) == "success", airflow.story(f"backfill__{DATASET}", run)
    plan = airflow.result(f"backfill__{DATASET}", run, "plan")["plan"]
    record = load_plan(site.settings, plan)
    assert (record.stage, record.plan.origin) == (Stage.APPLIED, f"backfill__{DATASET}/{run}")


def test_audit_counts_every_record(site: Site, airflow: AirflowRest) -> None:
    run = airflow.trigger("audit")
    assert airflow.await_run("audit", run) == "success", airflow.story("audit", run)
    records = airflow.result("audit", run, "audit")[DATASET]
    assert records["kafka"] == records["bronze"] == len(site.sent)
    assert records["silver"] + records["rejected"] == len(site.sent)


def test_replay_of_batches_is_verified(site: Site, airflow: AirflowRest) -> None:
    dag = f"replay__{DATASET}"
    last = site.publication()["batch"]
    run = airflow.trigger(dag, {"by": "batches", "first_batch": 0, "last_batch": last})
    assert airflow.await_run(dag, run) == "success", airflow.story(dag, run)
    record = load_plan(site.settings, airflow.result(dag, run, "plan")["plan"])
    assert (record.stage, record.plan.requested) == (Stage.APPLIED, f"batches 0 to {last}")


def test_replay_whose_params_contradict_each_other_is_refused(airflow: AirflowRest) -> None:
    dag = f"replay__{DATASET}"
    run = airflow.trigger(dag, {"by": "batches", "first_batch": 1})
    assert airflow.await_run(dag, run) == "failed"
    assert "first_batch and last_batch belong together" in airflow.story(dag, run)


def test_release_that_only_adds_a_column_is_published_without_approval(site: Site, airflow: AirflowRest) -> None:
    change_code(site, "return accepted", 'return accepted.withColumn("tenths", accepted.litres * 10)')
    before = site.publication()["release"]
    run = airflow.trigger(RELEASE, {})
    assert airflow.await_run(RELEASE, run) == "success", airflow.story(RELEASE, run)
    record = load_plan(site.settings, airflow.result(RELEASE, run, "plan")["plan"])
    assert record.stage is Stage.APPLIED
    assert site.publication()["release"] == record.plan.release != before


def test_rejected_release_ends_its_run_without_a_failure(site: Site, airflow: AirflowRest) -> None:
    change_code(site, "accepted.litres * 10", "accepted.litres * 20")
    before = site.publication()["release"]
    run, plan = release_that_awaits_approval(airflow)
    airflow.answer(RELEASE, run, "approve", "Reject")
    assert airflow.await_run(RELEASE, run) == "success", airflow.story(RELEASE, run)
    assert airflow.states(RELEASE, run)["apply"] == "skipped"
    assert load_plan(site.settings, plan).stage is Stage.REJECTED
    assert site.publication()["release"] == before


def test_plan_of_a_run_that_is_marked_as_failed_is_cancelled(site: Site, airflow: AirflowRest) -> None:
    before = site.publication()["release"]
    run, plan = release_that_awaits_approval(airflow)
    airflow.call("PATCH", f"/dags/{RELEASE}/dagRuns/{run}", {"state": "failed"})
    wait_until(lambda: load_plan(site.settings, plan).stage is Stage.CANCELLED, "the plan is cancelled", within=120)
    assert airflow.await_run(RELEASE, run) == "failed"
    assert site.publication()["release"] == before


def release_that_awaits_approval(airflow: AirflowRest) -> tuple[str, str]:
    """Trigger a release of the changed folder; return the run and its plan when it waits for approval."""
    run = airflow.trigger(RELEASE, {})
    airflow.await_task(RELEASE, run, "approve", "awaiting_input")
    return run, airflow.result(RELEASE, run, "plan")["plan"]


def change_code(site: Site, before: str, after: str) -> None:
    """Change the dataset's folder on Headrace's host."""
    path = site.settings.datasets / DATASET / "silver.py"
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after))


def test_marked_run_releases_the_stream(site: Site, airflow: AirflowRest) -> None:
    dag = f"stream__{DATASET}"
    airflow.call("PATCH", f"/dags/{dag}", {"is_paused": True})
    (run,) = airflow.runs(dag)
    airflow.call("PATCH", f"/dags/{dag}/dagRuns/{run['dag_run_id']}", {"state": "success"})
    wait_until(lambda: state(site) is ProcessState.STOPPED, "the stream is drained", within=120)


def test_patch_of_lost_rows_waits_for_approval_and_is_applied(site: Site, airflow: AirflowRest) -> None:
    dag = f"backfill__{DATASET}"
    lose_rows(site)
    done = site.command("up", DATASET)
    assert done.returncode == 0, done.stdout + done.stderr
    site.send(50)
    wait_until(site.is_published, "the rows are missing in the publication", within=120)
    run = airflow.trigger(dag, RANGE)
    airflow.await_task(dag, run, "approve", "awaiting_input")
    plan = airflow.result(dag, run, "plan")["plan"]
    assert load_plan(site.settings, plan).stage is Stage.COMPARED
    airflow.answer(dag, run, "approve", "Approve")
    assert airflow.await_run(dag, run) == "success", airflow.story(dag, run)
    record = load_plan(site.settings, plan)
    assert record.stage is Stage.APPLIED
    assert {event.by for event in record.events if event.stage is Stage.APPROVED} == {"token token on behalf of admin"}


def test_wrong_token_is_refused(port: int) -> None:
    code = (
        "import sys, urllib.request, urllib.error\n"
        f"request = urllib.request.Request('http://127.0.0.1:{port}/api/v1/streams/{DATASET}?lag_seconds=1',"
        " headers={'Authorization': 'Bearer nonsense'})\n"
        "try: urllib.request.urlopen(request)\n"
        "except urllib.error.HTTPError as error: print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "401"
