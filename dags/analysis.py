"""Run the declared analyses (`analysis/*.yaml`) of all datasets every night, one after the other.

A killed run continues at its last iteration with the rows that it had read. Pages and queries show the last published
result as `analysis.<name>`.

**Reads** published tables. **Writes** the tables `analysis.<name>`, each run a version. **Guarantee**: readers see a
complete result, with the versions of its sources. **After a crash** the retry continues the run. **Does not** change a
table of a dataset, or take part in a stream's publication.
"""

from airflow.sdk import DAG, CronTriggerTimetable
from headrace_airflow.declarations import DEFAULTS, datasets_with_topic
from headrace_airflow.operators import RunAnalysis

with DAG(
    "analysis",
    doc_md=__doc__,
    description="Run iterative and learning jobs over published tables",
    schedule=CronTriggerTimetable("37 3 * * *", timezone="UTC"),
    max_active_runs=1,
    max_active_tasks=1,
    default_args=DEFAULTS,
    tags=["analysis"],
) as dag:
    for dataset in datasets_with_topic():
        for name in dataset.analyses:
            RunAnalysis(task_id=f"{dataset.name}__{name}", dataset=dataset.name, analysis=name)
