"""DAGs for datasets of a Headrace elsewhere. In a file of the DAGs' folder:

    from headrace_airflow.dag_factory import headrace_dags

    globals().update(headrace_dags(["flights", "weather"], headrace_connection="headrace_default"))

The datasets are named here: a DAG file is read every few seconds and must not ask a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronPartitionTimetable, CronTriggerTimetable, Param

from headrace_airflow.headrace_connection import DEFAULT_CONNECTION
from headrace_airflow.remote_operators import (
    ApproveRemotePlan,
    PlanRemoteBackfill,
    RemoteAudit,
    RunRemotePlan,
    RunRemoteStream,
)

DEFAULTS: dict[str, Any] = {"owner": "headrace", "retries": 2, "retry_delay": timedelta(seconds=20)}
MOMENT = {"type": ["null", "string"], "format": "date-time"}


def headrace_dags(datasets: Sequence[str], headrace_connection: str = DEFAULT_CONNECTION) -> dict[str, DAG]:
    """Return `stream__D` and `backfill__D` for each dataset, and `audit__headrace` for all, by id."""
    dags = [stream_dag(name, headrace_connection) for name in datasets]
    dags += [backfill_dag(name, headrace_connection) for name in datasets]
    return {dag.dag_id: dag for dag in [*dags, audit_dag(datasets, headrace_connection)]}


def stream_dag(dataset: str, headrace_connection: str = DEFAULT_CONNECTION) -> DAG:
    """Return the DAG that keeps a stream requested while it has a run; to stop it, pause it and mark the run."""
    with DAG(
        f"stream__{dataset}",
        description=f"Keep the stream of {dataset} running",
        schedule="@continuous",
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        max_active_runs=1,
        max_consecutive_failed_dag_runs=3,
        default_args=DEFAULTS,
        params={
            "lag_seconds": Param(300, type="number", exclusiveMinimum=0, title="Maximum lag, seconds"),
            "grace_seconds": Param(180, type="number", minimum=0, title="Grace period, seconds"),
        },
        tags=["headrace", "stream", dataset],
    ) as dag:
        RunRemoteStream(task_id="keep", dataset=dataset, headrace_connection=headrace_connection)
    return dag


def backfill_dag(dataset: str, headrace_connection: str = DEFAULT_CONNECTION, complete_after_days: int = 1) -> DAG:
    """Return the DAG that recomputes days of event time: verified, or a patch after approval."""
    given = {"dataset": dataset, "headrace_connection": headrace_connection}
    with DAG(
        f"backfill__{dataset}",
        description=f"Recompute days of {dataset}: verify or patch",
        schedule=CronPartitionTimetable(
            "0 0 * * *", timezone="UTC", run_offset=-complete_after_days, key_format="%Y-%m-%d"
        ),
        max_active_runs=4,
        default_args=DEFAULTS,
        params={
            "start": Param(None, **MOMENT, title="First event time", description="Empty: the day of the partition."),
            "end": Param(None, **MOMENT, title="End of the event times", description="Exclusive."),
            "threshold": Param(0, type="number", minimum=0, maximum=1, title="Differing keys that need no approval"),
        },
        tags=["headrace", "history", dataset],
    ) as dag:
        (
            PlanRemoteBackfill(task_id="plan", **given)
            >> RunRemotePlan(task_id="compare", upto="compared", **given)
            >> ApproveRemotePlan(task_id="approve", **given)
            >> RunRemotePlan(task_id="apply", upto="applied", **given)
        )
    return dag


def audit_dag(datasets: Sequence[str], headrace_connection: str = DEFAULT_CONNECTION) -> DAG:
    """Return the DAG that checks every hour that each Kafka record is in the tables exactly once."""
    with DAG(
        "audit__headrace",
        description="Check that every Kafka record is accounted for",
        schedule=CronTriggerTimetable("17 * * * *", timezone="UTC"),
        max_active_runs=1,
        default_args=DEFAULTS,
        params={"full": Param(False, type="boolean", title="Also what an audit before verified")},
        tags=["headrace", "quality"],
    ) as dag:
        RemoteAudit(task_id="audit", datasets=list(datasets), headrace_connection=headrace_connection)
    return dag
