"""Validate the published tables with Great Expectations, with a page of the results.

It evaluates the table rules in the contract of the published release, on silver, rejected and every gold table of one
publication. The run fails with the first failed rule with action `hold` or `fail`; a failed `warn` is logged. The
task's button *Rule results* shows every result.

**Reads** the published tables. **Writes** the page in the state folder. **Guarantee**: success means that no rule with
`hold` or `fail` failed. **After a crash** the retry validates again. **Does not** change the published tables.
"""

from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable
from headrace_airflow.declarations import DEFAULTS, datasets
from headrace_airflow.operators import ValidateTables

for dataset in datasets():
    with DAG(
        f"quality__{dataset.name}",
        doc_md=__doc__,
        description=f"Validate the published tables of {dataset.name}",
        # Rows that the stream adds are validated on the schedule, changes by a plan as soon as it is applied.
        schedule=AssetOrTimeSchedule(
            timetable=CronTriggerTimetable("47 */6 * * *", timezone="UTC"), assets=dataset.plans
        ),
        max_active_runs=1,
        default_args=DEFAULTS,
        tags=["quality", dataset.name],
    ) as dag:
        ValidateTables(task_id="validate", dataset=dataset.name)
    globals()[dag.dag_id] = dag
