"""Marking a run in Airflow releases its stream, or cancels its plan.

Reads: the message of Airflow's web server, which distinguishes a person's mark from the end of a run. Writes: the
request for the stream, the plan's events, the runs that ended without a plan.
Guarantee: it happens in the web server at the moment of the mark, also while triggerer, scheduler and workers are down.
After a crash: a plan whose cancellation was interrupted stays open; `headrace plan cancel` or the next mark ends it.
Does not: follow a run that ended by itself: a failed watch leaves its stream requested, a failed plan can continue.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import Any

from airflow.listeners import hookimpl

from include.ground.errors import HeadraceError
from include.ground.settings import load_settings

log = logging.getLogger(__name__)
BY_HAND = "was manually set"
STREAM = "stream__"
PLANS = ("backfill__", "replay__", "release__")
# The task that a mark ends may hold the plan's lock until it is gone.
LOCK_TIMEOUT = 120.0


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
        start_cancelling(dag_run.dag_id, dag_run.run_id)


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


def release_watched(dag: str, run: str) -> bool:
    """Release the stream that this run has requested, unless somebody requested it since; return whether it did."""
    from include.state.streams import desired_stream, release_stream

    if not dag.startswith(STREAM):
        return False
    settings, dataset, origin = load_settings(), dag.removeprefix(STREAM), f"{dag}/{run}"
    try:
        desired = desired_stream(settings, dataset)
        if desired is None or not desired.desired or desired.by != origin:
            return False
        release_stream(settings, dataset, f"{origin}, stopped")
    except HeadraceError as error:
        log.error("%s: its stream was not released: %s", origin, error)
        return False
    log.info("%s was marked: the stream of %s is released", origin, dataset)
    return True


def start_cancelling(dag: str, run: str) -> threading.Thread | None:
    """Cancel the open plan of a run, in a thread: the answer to the person does not wait for the plan's lock."""
    if not dag.startswith(PLANS):
        return None
    thread = threading.Thread(target=cancel_plan_of, args=(f"{dag}/{run}",), name=f"cancel {run}", daemon=True)
    thread.start()
    return thread


def cancel_plan_of(origin: str) -> None:
    """End the job of a run's plan and cancel the plan, if it is open; one whose creation waits is not created."""
    from include.change.stages import end_and_cancel
    from include.plans.lookup import plan_of_ended_run

    settings = load_settings()
    try:
        record = plan_of_ended_run(settings, origin, datetime.now(UTC))
        if record is None or not record.is_open:
            return
        end_and_cancel(settings, record.plan.id, f"{origin}, marked as failed", LOCK_TIMEOUT)
        log.info("%s was marked as failed: plan %s is cancelled", origin, record.plan.id)
    except HeadraceError as error:
        log.error("%s was marked as failed, its plan was not cancelled: %s", origin, error)
