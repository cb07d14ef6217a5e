"""DAGs for datasets of a Headrace elsewhere. In a file of the DAGs' folder:

    from headrace_airflow.dag_factory import headrace_dags

    globals().update(headrace_dags(["flights", "weather"], headrace_connection="headrace_default"))

The datasets are named here: a DAG file is read every few seconds and must not ask a server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronPartitionTimetable, CronTriggerTimetable, Param

from headrace_airflow.headrace_connection import DEFAULT_CONNECTION
from headrace_airflow.remote_operators import (
    ApproveRemotePlan,
    CloseRemotePlan,
    PlanRemoteBackfill,
    PlanRemotely,
    PlanRemoteRelease,
    PlanRemoteReplay,
    RemoteAudit,
    RunRemotePlan,
    RunRemoteStream,
)

DEFAULTS: dict[str, Any] = {"owner": "headrace", "retries": 2, "retry_delay": timedelta(seconds=20)}
THRESHOLD = Param(0, type="number", minimum=0, maximum=1, title="Differing keys that need no approval")
REFERENCE = Param("as-of", type="string", enum=["as-of", "today"], title="Reference tables")
MOMENT = {"type": ["null", "string"], "format": "date-time"}


def headrace_dags(datasets: Sequence[str], headrace_connection: str = DEFAULT_CONNECTION) -> dict[str, DAG]:
    """Return by id the DAGs of streams, backfills, replays, releases for each dataset, and of the audit for all."""
    kinds: tuple[Callable[[str, str], DAG], ...] = (stream_dag, backfill_dag, replay_dag, release_dag)
    dags = [kind(name, headrace_connection) for kind in kinds for name in datasets]
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
            "reference": REFERENCE,
            "threshold": THRESHOLD,
        },
        tags=["headrace", "history", dataset],
    ) as dag:
        plan_tasks(PlanRemoteBackfill, dataset, headrace_connection)
    return dag


def replay_dag(dataset: str, headrace_connection: str = DEFAULT_CONNECTION) -> DAG:
    """Return the DAG that recomputes Kafka records: verified, or a patch after approval."""
    with DAG(
        f"replay__{dataset}",
        description=f"Recompute Kafka records of {dataset}: verify or patch",
        schedule=None,
        default_args=DEFAULTS,
        params={
            "by": Param("time", type="string", enum=["time", "batches", "offsets"], title="Which records"),
            "start": Param(None, **MOMENT, title="First time in Kafka", description="By time."),
            "end": Param(None, **MOMENT, title="End of the times in Kafka", description="By time: exclusive."),
            "first_batch": Param(None, type=["null", "integer"], minimum=0, title="First batch"),
            "last_batch": Param(None, type=["null", "integer"], minimum=0, title="Last batch, included"),
            "offsets": Param(
                None,
                type=["null", "object"],
                title="Offsets by partition",
                description='Half-open, for instance {"0": [100, 200]}.',
            ),
            "source": Param("auto", type="string", enum=["auto", "kafka", "bronze"], title="Read from"),
            "reference": REFERENCE,
            "threshold": THRESHOLD,
        },
        tags=["headrace", "history", dataset],
    ) as dag:
        plan_tasks(PlanRemoteReplay, dataset, headrace_connection)
    return dag


def release_dag(dataset: str, headrace_connection: str = DEFAULT_CONNECTION) -> DAG:
    """Return the DAG that ships the dataset's changed folder, which is on Headrace's host."""
    with DAG(
        f"release__{dataset}",
        description=f"Ship the changed folder of {dataset}",
        schedule=None,
        default_args=DEFAULTS,
        params={
            "with": Param(
                [], type="array", items={"type": "string"}, title="Together with", description="Derived ones."
            ),
            "threshold": THRESHOLD,
        },
        tags=["headrace", "history", dataset],
    ) as dag:
        plan_tasks(PlanRemoteRelease, dataset, headrace_connection)
    return dag


def plan_tasks(plan: type[PlanRemotely], dataset: str, headrace_connection: str) -> None:
    """Add the tasks of a plan to the DAG. `close` also runs after a failure, and when a person marks the run."""
    given = {"dataset": dataset, "headrace_connection": headrace_connection}
    (
        plan(task_id="plan", **given)
        >> RunRemotePlan(task_id="compare", upto="compared", **given)
        >> ApproveRemotePlan(task_id="approve", **given)
        >> RunRemotePlan(task_id="apply", upto="applied", **given)
        >> CloseRemotePlan(task_id="close", **given).as_teardown(on_failure_fail_dagrun=True)
    )


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
