"""Marking a run in Airflow releases its stream, or cancels its plan.

Airflow's web server calls this at the moment of the mark, also while triggerer, scheduler and workers are down; its
message distinguishes a person's mark from the end of a run. A run that ended by itself is not followed: a failed watch
leaves its stream requested, a failed plan can continue.
After a crash: a plan whose cancellation was interrupted stays open; `headrace plan cancel` or the next mark ends it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from airflow.listeners import hookimpl
from airflow.sdk.exceptions import AirflowException

from headrace_airflow.connection import DEFAULT_CONNECTION, HeadraceConnection

log = logging.getLogger(__name__)
BY_HAND = "was manually set"
STREAM = "stream__"
PLANS = ("backfill__", "replay__", "release__", "load__")
# The server ends the plan's job, and waits for its lock.
CANCELLED_WITHIN = 180.0


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """A run was marked as success."""
    if BY_HAND in msg:
        release_watched(dag_run.dag_id, dag_run.run_id)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """A run was marked as failed."""
    if BY_HAND in msg:
        release_watched(dag_run.dag_id, dag_run.run_id)
        cancel_plan(dag_run.dag_id, dag_run.run_id)


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """A task was marked as success: only then Airflow gives no previous state."""
    if previous_state is None:
        release_watched(task_instance.dag_id, task_instance.run_id)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """A task was marked as failed."""
    if previous_state is None and BY_HAND in str(error):
        release_watched(task_instance.dag_id, task_instance.run_id)


def release_watched(dag: str, run: str) -> threading.Thread | None:
    """Release the stream that this run has requested, unless somebody requested it since."""
    if not dag.startswith(STREAM):
        return None
    origin, dataset = f"{dag}/{run}", dag.removeprefix(STREAM)

    def release() -> None:
        answer = HeadraceConnection().request("DELETE", f"streams/{dataset}", None, by=origin)
        if answer["released"]:
            log.info("%s was marked: the stream of %s is released", origin, dataset)

    return _started(f"{origin} was marked, its stream was not released", release)


def cancel_plan(dag: str, run: str) -> threading.Thread | None:
    """End the job of a run's plan and cancel the plan, if it is open; one whose creation waits is not created."""
    if not dag.startswith(PLANS):
        return None
    origin = f"{dag}/{run}"

    def cancel() -> None:
        server = HeadraceConnection(DEFAULT_CONNECTION, CANCELLED_WITHIN)
        ended = server.request("POST", "ended-runs", {"origin": origin, "by": f"{origin}, marked as failed"})
        if ended["was_open"]:
            log.info("%s was marked as failed: plan %s is %s", origin, ended["plan"], ended["stage"])

    return _started(f"{origin} was marked as failed, its plan was not cancelled", cancel)


def _started(otherwise: str, act: Callable[[], None]) -> threading.Thread:
    """Act in a thread: the answer to the person does not wait for the server."""

    def acting() -> None:
        try:
            act()
        except AirflowException as error:
            log.error("%s: %s", otherwise, error)

    thread = threading.Thread(target=acting, name="headrace listener", daemon=True)
    thread.start()
    return thread
