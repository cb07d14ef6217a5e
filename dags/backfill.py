"""Recompute a day of a dataset from bronze, of a derived one from its sources; verify it, or patch what differs.

Each run covers one day of event time (its *partition*, like `2013-01-02`): the schedule takes the last complete day,
*Backfill* (here, `airflow backfill create`, `POST /api/v2/backfills`) each day of a range. A manual run takes any range
of event time, with `start` and `end`. A day is one by the calendars of the windows: from its earliest beginning to its
latest end when they have several time zones. A day with equal rows is recorded as **verified**; different rows become a
**patch**, which needs approval unless the difference is within `threshold`. A day without events is skipped. Plans with
overlapping records run one at a time; the others wait, deferred. One run is one plan: to verify a day again, trigger a
run with its partition. Of a derived dataset the grains of the day are recomputed, and a table without a time in its
grain whole; a day is complete when it is in all its source datasets, and its plans run one at a time.

**Reads** bronze or the published sources, and the published tables. **Writes** the plan; after approval the stream
replaces the rows that differ.
**Guarantee**: success is read from the tables. **After a crash** a retry continues the plan.
**Does not** change published rows before approval.
"""

from airflow.sdk import DAG, CronPartitionTimetable
from headrace_airflow.declarations import DEFAULTS, datasets, form
from headrace_airflow.operators import ApplyPlan, ApprovePlan, BuildPlan, ComparePlan, PlanBackfill

for dataset in datasets():
    with DAG(
        f"backfill__{dataset.name}",
        doc_md=__doc__,
        description=f"Recompute days of {dataset.name}: verify or patch",
        schedule=CronPartitionTimetable(
            "0 0 * * *", timezone="UTC", run_offset=-dataset.complete_after, key_format="%Y-%m-%d"
        ),
        max_active_runs=4,
        default_args=DEFAULTS,
        params=form("backfill"),
        tags=["history", dataset.name],
    ) as dag:
        (
            PlanBackfill(task_id="plan", dataset=dataset.name)
            >> BuildPlan(task_id="build", dataset=dataset.name)
            >> ComparePlan(task_id="compare", dataset=dataset.name)
            >> ApprovePlan(task_id="approve", dataset=dataset.name)
            >> ApplyPlan(task_id="apply", dataset=dataset.name, outlets=[*dataset.tables, dataset.plans])
        )
    globals()[dag.dag_id] = dag
