"""A plan is not created for a run of Airflow that has ended since it requested the plan: nobody would continue it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import test_derived_plan_thresholds
from console_client import console_client
from error_codes import raises
from fastapi.testclient import TestClient
from test_airflow_api import BEARER, TOKEN
from test_derived_plan_thresholds import NAME, NOON

from include.change.plan_parameters import BackfillParameters
from include.change.recompute import BackfillPlan
from include.ground.errors import Terminal
from include.ground.paths import ended_runs_path
from include.ground.settings import Settings
from include.plans.journal import find_plan, open_plans, plan_of_ended_run, planning_lock
from include.serve.action_log import last_actions

settings = test_derived_plan_thresholds.settings
RUN = f"backfill__{NAME}/manual__1"
BACKFILL = {
    "dataset": NAME,
    "parameters": {"start": NOON.isoformat(), "end": (NOON + timedelta(hours=1)).isoformat()},
    "by": "ann",
    "origin": RUN,
}


@pytest.fixture
def given(settings: Settings, tmp_path: Path) -> Settings:
    (tmp_path / "token").write_text(TOKEN)
    return settings.model_copy(update={"api_token_file": tmp_path / "token"})


@pytest.fixture
def client(given: Settings) -> Iterator[TestClient]:
    with console_client(given) as found:
        yield found


def test_plan_that_waits_for_another_one_is_not_left_open_when_its_run_ends(
    client: TestClient, given: Settings
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with planning_lock(given):
            waiting = pool.submit(client.post, "/api/v1/backfills", json=BACKFILL, headers=BEARER)
            while not any(each.what == "backfill" for each in last_actions(given, 10)):
                assert not waiting.done(), waiting.result().text
                time.sleep(0.01)
            time.sleep(0.3)
        # The request that ends the run overtakes the one that waits, which looks every 0.2 s.
        ended = client.post("/api/v1/ended-runs", json={"by": "ann", "origin": RUN}, headers=BEARER)
        assert ended.status_code == 200
        refused = waiting.result()
    assert open_plans(given) == []
    assert refused.status_code == 200 or "has ended" in refused.json()["error"]


def test_cleared_run_gets_a_plan_after_it_was_ended(client: TestClient, given: Settings) -> None:
    client.post("/api/v1/ended-runs", json={"by": "ann", "origin": RUN}, headers=BEARER)
    answer = client.post("/api/v1/backfills", json=BACKFILL, headers=BEARER)
    assert (answer.status_code, answer.json()["is_open"]) == (200, True)
    other = client.post("/api/v1/ended-runs", json={"by": "ann", "origin": f"{RUN}2"}, headers=BEARER).json()
    assert (other["plan"], len(open_plans(given))) == (None, 1)


def test_run_that_is_marked_as_failed_gets_no_plan_that_it_requested_before(
    client: TestClient, settings: Settings
) -> None:
    before, ended = datetime.now(UTC), {"by": "ann", "origin": RUN}
    client.post("/api/v1/ended-runs", json=ended, headers=BEARER)
    hour = BackfillParameters(start=NOON, end=NOON + timedelta(hours=1))
    with raises(Terminal, "run-ended", match=f"run {RUN} has ended"):
        BackfillPlan().plan(settings, NAME, hour, "ann", before, RUN)
    assert (open_plans(settings), find_plan(settings, RUN)) == ([], None)
    assert BackfillPlan().plan(settings, NAME, hour, "ann", datetime.now(UTC), RUN).is_open, "the run was cleared"
    client.post("/api/v1/ended-runs", json=ended, headers=BEARER)
    assert open_plans(settings) == []


def test_visible_plan_of_an_ended_run_is_found_while_another_plan_is_created(settings: Settings) -> None:
    hour = BackfillParameters(start=NOON, end=NOON + timedelta(hours=1))
    record = BackfillPlan().plan(settings, NAME, hour, "ann", datetime.now(UTC), RUN)
    with planning_lock(settings):
        found = plan_of_ended_run(settings, RUN, datetime.now(UTC))
    assert found is not None
    assert found.plan.id == record.plan.id


def test_commands_have_no_run_that_could_end(settings: Settings) -> None:
    assert plan_of_ended_run(settings, "", datetime.now(UTC)) is None
    assert not ended_runs_path(settings).exists()


def test_runs_that_ended_long_ago_are_forgotten(settings: Settings) -> None:
    for hour in range(3):
        assert plan_of_ended_run(settings, f"{RUN}{hour}", NOON + timedelta(hours=hour)) is None
    (kept,) = json.loads(ended_runs_path(settings).read_text())
    assert kept == f"{RUN}2"
    ended_runs_path(settings).write_text("{")
    assert plan_of_ended_run(settings, RUN, NOON) is None, "a damaged file is replaced"
