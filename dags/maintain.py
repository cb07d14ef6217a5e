"""Keep tables and logs small: every six hours, one dataset after the other.

The owner of the tables does it between two runs of the stream; what is not begun within twenty seconds is left for the
next time. Files of a partition of gold or rejected that are many and small are put together; files that nothing refers
to are removed once they are a week old. A dataset with an open plan is skipped. Logs are cut where they are long, and
removed where they are old.

**Reads** the tables. **Writes** the same rows in fewer files. **Guarantee**: readers see the same, and what they see
stays readable. **After a crash** the next run does the rest. **Does not** remove a commit from a table's log, or touch
releases that were retired.
"""

from airflow.sdk import DAG, CronTriggerTimetable

from include.operators.dag_defaults import DEFAULTS, declared_datasets
from include.operators.maintenance_operators import MaintainTables, TrimLogs

with DAG(
    "maintain",
    doc_md=__doc__,
    description="Small files put together, old ones removed, logs cut",
    schedule=CronTriggerTimetable("7 */6 * * *", timezone="UTC"),
    max_active_runs=1,
    max_active_tasks=1,
    default_args=DEFAULTS,
    tags=["upkeep"],
) as dag:
    TrimLogs(task_id="logs")
    for dataset in declared_datasets():
        MaintainTables(task_id=f"tables__{dataset.name}", dataset=dataset.name)
