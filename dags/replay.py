"""Recompute Kafka records of a dataset, compare, request approval, patch.

The form selects the records: by Kafka timestamp, by bronze batches, or by offsets. Each record is read from Kafka while
it is retained there, else from bronze; records that bronze lacks are inserted. *Dry run* stores nothing. A
replay of records of another open plan is refused. If rows have changed since the comparison, `apply` is refused:
`headrace plan compare ID` compares again, then clear `approve`.

**Reads** Kafka, bronze, the published tables. **Writes** the plan; after approval the stream replaces the rows that
differ. **Guarantee**: all tables change in one move, or none; success is read from the tables. **After a crash** a
retry continues the plan. **Does not** overwrite bronze, or rows that changed since the comparison.
"""

from airflow.sdk import DAG
from headrace_airflow.declarations import DEFAULTS, datasets_with_topic, form
from headrace_airflow.operators import ApplyPlan, ApprovePlan, BuildPlan, ComparePlan, PlanReplay

for dataset in datasets_with_topic():
    with DAG(
        f"replay__{dataset.name}",
        doc_md=__doc__,
        description=f"Recompute Kafka records of {dataset.name}, compare, request approval, patch",
        schedule=None,
        is_paused_upon_creation=False,
        default_args=DEFAULTS,
        params=form("replay"),
        tags=["history", dataset.name],
    ) as dag:
        (
            PlanReplay(task_id="plan", dataset=dataset.name)
            >> BuildPlan(task_id="build", dataset=dataset.name)
            >> ComparePlan(task_id="compare", dataset=dataset.name)
            >> ApprovePlan(task_id="approve", dataset=dataset.name)
            >> ApplyPlan(task_id="apply", dataset=dataset.name, outlets=[*dataset.topic_tables, dataset.plans])
        )
    globals()[dag.dag_id] = dag
