"""A mark of a person in Airflow reaches the stream or the plan of the run, whoever watches it or does not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow._shared.listeners.spec import taskinstance
from airflow.listeners.spec import dagrun
from airflow_server import served
from deltalake import write_deltalake
from headrace_airflow import listener
from headrace_airflow.listener import cancel_plan, release_watched
from headrace_airflow.plugin import HeadracePlugin
from plan_samples import plan_at
from pluggy import PluginManager

from include.ground.paths import silver_path
from include.ground.settings import Settings
from include.plans.journal import load_plan
from include.plans.plan import REPLAY, Stage
from include.state.streams import desired_stream, request_stream

STREAM, RUN = "stream__flights", "scheduled__1"
REPLAY_DAG = "replay__flights"
MANUALLY = "Dag Run's state was manually set to `success`."


@pytest.fixture(autouse=True)
def own_settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    write_deltalake(silver_path(settings, "flights", "aaa"), pa.table({"x": [1]}))
    with served(settings, monkeypatch):
        yield settings


def waited() -> None:
    """Wait until the listener has done what it began."""
    for thread in threading.enumerate():
        if thread.name == "headrace listener":
            thread.join(30)


def run_of(dag: str, run: str = RUN) -> Any:
    return SimpleNamespace(dag_id=dag, run_id=run)


def is_desired(settings: Settings) -> bool:
    waited()
    desired = desired_stream(settings, "flights")
    return desired is not None and desired.desired


@pytest.mark.parametrize("hook", ["on_dag_run_success", "on_dag_run_failed"])
def test_marked_run_releases_its_stream_without_a_triggerer(own_settings: Settings, hook: str) -> None:
    """The stop was lost while the triggerer was dead: Airflow showed success, and the stream ran on."""
    request_stream(own_settings, "flights", f"{STREAM}/{RUN}")
    getattr(listener, hook)(run_of(STREAM), MANUALLY)
    assert not is_desired(own_settings)


def test_marked_task_releases_the_stream_too(own_settings: Settings) -> None:
    for mark in (
        lambda: listener.on_task_instance_success(None, run_of(STREAM)),
        lambda: listener.on_task_instance_failed(
            None, run_of(STREAM), "TaskInstance's state was manually set to `failed`."
        ),
    ):
        request_stream(own_settings, "flights", f"{STREAM}/{RUN}")
        mark()
        assert not is_desired(own_settings)


def test_run_that_ended_by_itself_leaves_its_stream_requested(own_settings: Settings) -> None:
    request_stream(own_settings, "flights", f"{STREAM}/{RUN}")
    listener.on_dag_run_failed(run_of(STREAM), "task_failure")
    listener.on_dag_run_success(run_of(STREAM), "success")
    listener.on_task_instance_success("running", run_of(STREAM))
    listener.on_task_instance_failed("running", run_of(STREAM), ValueError("the stream failed"))
    assert is_desired(own_settings)


def test_stream_that_somebody_requested_since_stays(own_settings: Settings) -> None:
    request_stream(own_settings, "flights", f"{STREAM}/{RUN}")
    request_stream(own_settings, "flights", f"{STREAM}/the next one")
    release_watched(STREAM, RUN)
    assert is_desired(own_settings)
    assert release_watched("audit", RUN) is None


@pytest.mark.parametrize("stage", [None, Stage.BUILT, Stage.COMPARED, Stage.APPROVED])
def test_plan_of_a_run_marked_as_failed_is_cancelled(own_settings: Settings, stage: Stage | None) -> None:
    """The plan stayed open, so that later replays were refused."""
    stages = (Stage.BUILT, Stage.COMPARED, Stage.APPROVED)
    upto = stages[: stages.index(stage) + 1] if stage else ()
    record = plan_at(own_settings, *upto, kind=REPLAY, origin=f"{REPLAY_DAG}/{RUN}")
    cancel_plan(REPLAY_DAG, RUN)
    waited()
    record = load_plan(own_settings, record.plan.id)
    assert (record.stage, record.events[-1].by) == (Stage.CANCELLED, f"{REPLAY_DAG}/{RUN}, marked as failed")


def test_only_a_failed_mark_of_a_plans_run_cancels(own_settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    record = plan_at(own_settings, Stage.BUILT, kind=REPLAY, origin=f"{REPLAY_DAG}/{RUN}")
    listener.on_dag_run_success(run_of(REPLAY_DAG), MANUALLY)
    listener.on_dag_run_failed(run_of(REPLAY_DAG), "task_failure")
    waited()
    assert cancel_plan(STREAM, RUN) is None
    assert load_plan(own_settings, record.plan.id).is_open
    cancel_plan(REPLAY_DAG, "unknown")
    thread = cancel_plan(REPLAY_DAG, RUN)
    assert thread is not None
    thread.join(30)
    assert load_plan(own_settings, record.plan.id).stage is Stage.CANCELLED
    cancel_plan(REPLAY_DAG, RUN)
    waited()
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_airflow_calls_the_listener(own_settings: Settings) -> None:
    """Of the plugin, by the names and arguments of Airflow's own specification."""
    assert HeadracePlugin.listeners == [listener]
    manager = PluginManager("airflow")
    for specification in (dagrun, taskinstance):
        manager.add_hookspecs(specification)
    manager.register(listener)
    manager.check_pending()
    request_stream(own_settings, "flights", f"{STREAM}/{RUN}")
    manager.hook.on_dag_run_success(dag_run=run_of(STREAM), msg=MANUALLY)
    assert not is_desired(own_settings)
