"""Do the tables that readers see keep their rules? Asked by Great Expectations, with Data Docs.

Asked are the rules of whole tables that stand in the contract of the published release, of silver, rejected and every
gold table of one publication. The run fails with the first broken rule whose action is `hold` or `fail`; a broken
`warn` is logged. The task's button *Data Docs* shows every answer.

**Reads** the published tables. **Writes** Data Docs in the state folder. **Guarantee**: success means that no rule with
`hold` or `fail` is broken. **After a crash** it asks again. **Does not** change what readers see.
"""

from airflow.sdk import DAG, AssetAny, AssetOrTimeSchedule, CronTriggerTimetable

from include.operators.dag_defaults import DEFAULTS, declared_datasets
from include.operators.quality_operator import ValidateTables

for dataset in declared_datasets():
    with DAG(
        f"quality__{dataset.name}",
        doc_md=__doc__,
        description=f"Do the published tables of {dataset.name} keep their rules?",
        # What a stream adds is looked at by the clock, what a plan has changed as soon as it is applied.
        schedule=AssetOrTimeSchedule(
            timetable=CronTriggerTimetable("47 */6 * * *", timezone="UTC"), assets=AssetAny(*dataset.tables)
        ),
        max_active_runs=1,
        default_args=DEFAULTS,
        tags=["quality", dataset.name],
    ) as dag:
        ValidateTables(task_id="ask", dataset=dataset.name)
    globals()[dag.dag_id] = dag
