"""What operators need of an Airflow run: its params, its origin, and the mapping of errors to Airflow's."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from include.ground.errors import HeadraceError, Terminal
from include.ground.paths import log_path
from include.ground.settings import load_settings

log = logging.getLogger(__name__)
FAILURES = "airflow-failures"


def run_params(context: Context) -> dict[str, Any]:
    """Return the run's params unrendered, including those that the DAG does not declare."""
    return {**dict(context["params"]), **(context["dag_run"].conf or {})}


def origin(context: Context) -> str:
    """Return the run's origin, `dag/run`: the same in a retry and in a cleared task."""
    run = context["dag_run"]
    return f"{run.dag_id}/{run.run_id}"


def triggered_by(context: Context) -> str:
    """Return who triggered the run; `airflow` for its schedule."""
    return str(getattr(context["dag_run"], "triggering_user_name", None) or "airflow")


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Map errors: Terminal fails the task without a retry, any other HeadraceError allows retries.

    The log of the task gets the sentence alone, without the chain of errors that led to it.
    """
    try:
        yield
    except Terminal as error:
        raise AirflowFailException(str(error)) from None
    except HeadraceError as error:
        raise AirflowException(str(error)) from None


def log_failure(context: Context) -> None:
    """Append a failed task to the state folder's log as one JSON line, so that it is found without Airflow."""
    task: Any = context["ti"]
    entry: Mapping[str, Any] = {
        "at": datetime.now(UTC).isoformat(),
        "run": origin(context),
        "task": task.task_id,
        "try": task.try_number,
        "error": str(context.get("exception") or "")[:2000],
    }
    path = log_path(load_settings(), FAILURES)
    # A full disk must not hide the error that the task failed with.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
