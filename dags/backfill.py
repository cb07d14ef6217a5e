"""Do a day of a dataset again, from bronze, and verify it or correct it.

Each run is a day of event time (its *partition*, like `2013-01-02`): by schedule the last one that is complete, by
*Backfill* (here, `airflow backfill create`, `POST /api/v2/backfills`) each day of a range. By hand any range of event
time, with `start` and `end`. What comes out equal is noted as **verified**; what differs is a **correction**, which is
asked about unless it is within `threshold`. A day without events is skipped. One plan of the same records at a time:
the others wait, deferred. One run is one plan: to verify a day again, trigger a run with its partition.

**Reads** bronze, the published tables. **Writes** the plan; once approved, the stream replaces the rows that differ.
**Guarantee**: the result is what the tables say. **After a crash** a retry goes on where the plan is.
**Does not** touch what readers see before it is approved.
"""

from airflow.sdk import DAG, CronPartitionTimetable

from include.operators.approval_operator import ApprovePlan
from include.operators.dag_defaults import DEFAULTS, declared_datasets
from include.operators.dag_forms import backfill_form
from include.operators.plan_operators import PlanBackfill
from include.operators.stage_operators import ApplyPlan, BuildPlan, ComparePlan

for dataset in declared_datasets():
    with DAG(
        f"backfill__{dataset.name}",
        doc_md=__doc__,
        description=f"Do days of {dataset.name} again: verified, or corrected",
        schedule=CronPartitionTimetable(
            "0 0 * * *", timezone="UTC", run_offset=-dataset.complete_after, key_format="%Y-%m-%d"
        ),
        max_active_runs=4,
        default_args=DEFAULTS,
        params=backfill_form(),
        tags=["history", dataset.name],
    ) as dag:
        (
            PlanBackfill(task_id="plan", dataset=dataset.name)
            >> BuildPlan(task_id="build", dataset=dataset.name)
            >> ComparePlan(task_id="compare", dataset=dataset.name)
            >> ApprovePlan(task_id="approve", dataset=dataset.name)
            >> ApplyPlan(task_id="apply", dataset=dataset.name, outlets=dataset.tables)
        )
    globals()[dag.dag_id] = dag
