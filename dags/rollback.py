"""Take a plan of a dataset back: readers see what they saw before it, as fresh as it is now.

Without a plan named, the last one that was applied. A release goes back by moving the publication, a backfill or replay
by taking its rows back. A replay that filled a gap in bronze is never taken back: that would lose records.

**Reads** plans and tables. **Writes** what the stream writes for it. **Guarantee**: all tables move at once; success
when the tables say so. **After a crash** a retry takes the same plan back. **Does not** ask: it is asked for.
"""

from airflow.sdk import DAG

from include.operators.dag_defaults import DEFAULTS, declared_datasets
from include.operators.dag_forms import rollback_form
from include.operators.stage_operators import RollBack

for dataset in declared_datasets():
    with DAG(
        f"rollback__{dataset.name}",
        doc_md=__doc__,
        description=f"Take a plan of {dataset.name} back",
        schedule=None,
        is_paused_upon_creation=False,
        max_active_runs=1,
        default_args=DEFAULTS,
        params=rollback_form(),
        tags=["history", dataset.name],
    ) as dag:
        RollBack(task_id="roll_back", dataset=dataset.name, outlets=dataset.tables)
    globals()[dag.dag_id] = dag
