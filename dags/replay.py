"""Do Kafka records of a dataset again, compare, ask, correct.

The form says which: by Kafka's time, by bronze batches, or by offsets. Each record is read from Kafka where that still
has it, from bronze where not; what bronze lacks is filled. With *Only explain* nothing is done. A second replay of
records that an open plan is about is refused. When rows have changed since the comparison, `apply` is refused and says
so: `headrace plan compare ID` compares again, then clear `approve`.

**Reads** Kafka, bronze, the published tables. **Writes** the plan; once approved, the stream replaces the rows that
differ. **Guarantee**: all tables change in one move, or none; success when the tables say so. **After a crash** a retry
goes on where the plan is. **Does not** overwrite bronze, or what has changed since it was compared.
"""

from airflow.sdk import DAG

from include.operators.approval_operator import ApprovePlan
from include.operators.dag_defaults import DEFAULTS, declared_datasets
from include.operators.dag_forms import replay_form
from include.operators.plan_operators import PlanReplay
from include.operators.stage_operators import ApplyPlan, BuildPlan, ComparePlan

for dataset in declared_datasets():
    with DAG(
        f"replay__{dataset.name}",
        doc_md=__doc__,
        description=f"Do Kafka records of {dataset.name} again, compare, ask, correct",
        schedule=None,
        is_paused_upon_creation=False,
        default_args=DEFAULTS,
        params=replay_form(),
        tags=["history", dataset.name],
    ) as dag:
        (
            PlanReplay(task_id="plan", dataset=dataset.name)
            >> BuildPlan(task_id="build", dataset=dataset.name)
            >> ComparePlan(task_id="compare", dataset=dataset.name)
            >> ApprovePlan(task_id="approve", dataset=dataset.name)
            >> ApplyPlan(task_id="apply", dataset=dataset.name, outlets=[dataset.bronze, *dataset.tables])
        )
    globals()[dag.dag_id] = dag
