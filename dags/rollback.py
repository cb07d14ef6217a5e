"""Roll back a plan of a dataset: readers get the state from before the plan, advanced to the current batch.

Default: the last applied plan. A release is rolled back by moving the publication, a backfill or replay by reverting
its rows. Records that a replay inserted into bronze stay: removing them would lose records.

**Reads** plans and tables. **Writes** the publication or the rows, through the process that owns the tables.
**Guarantee**: all tables move at once; success is read from the tables. **After a crash** a retry rolls back the same
plan. **Does not** request approval.
"""

from airflow.sdk import DAG
from headrace_airflow.declarations import DEFAULTS, datasets, form
from headrace_airflow.operators import RollBack

for dataset in datasets():
    with DAG(
        f"rollback__{dataset.name}",
        doc_md=__doc__,
        description=f"Roll back a plan of {dataset.name}",
        schedule=None,
        is_paused_upon_creation=False,
        max_active_runs=1,
        default_args=DEFAULTS,
        params=form("rollback"),
        tags=["history", dataset.name],
    ) as dag:
        RollBack(task_id="roll_back", dataset=dataset.name, outlets=[*dataset.tables, dataset.plans])
    globals()[dag.dag_id] = dag
