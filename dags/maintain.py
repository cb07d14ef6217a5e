"""Compact tables and trim logs: every six hours, one dataset after the other.

The owner of the tables does it between two runs of the stream, as it also does automatically; what has not started
within twenty seconds is left for the next run. Small files of every layer are compacted; unreferenced files and
what ended releases and plans left are deleted as `retention` in `pipeline.yaml` says. With an open plan, the dataset's
tables are not compacted. Long logs are trimmed, old ones are deleted.

**Reads** the tables. **Writes** the same rows in fewer files. **Guarantee**: readers see the same rows, and pinned
versions stay readable. **After a crash** the next run does the rest. **Does not** delete commits from a table's log, or
touch a release that is published or active, or that a rollback needs.
"""

from airflow.sdk import DAG, CronTriggerTimetable
from headrace_airflow.declarations import DEFAULTS, datasets
from headrace_airflow.operators import MaintainTables, TrimLogs

with DAG(
    "maintain",
    doc_md=__doc__,
    description="Compact small files, delete old ones, trim logs",
    schedule=CronTriggerTimetable("7 */6 * * *", timezone="UTC"),
    max_active_runs=1,
    max_active_tasks=1,
    default_args=DEFAULTS,
    tags=["upkeep"],
) as dag:
    TrimLogs(task_id="logs")
    for dataset in datasets():
        MaintainTables(task_id=f"tables__{dataset.name}", dataset=dataset.name)
