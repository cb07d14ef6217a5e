"""Load history from files into a dataset, compare, request approval, publish.

The form names the files: paths in `HEADRACE_FILES` of Headrace's host, or addresses in a store, with `*` and `**`.
JSON lines, CSV, Parquet and Avro; compressed ones too. *Dry run* stores nothing. A file with the bytes of another one,
or of one that is loaded already, is refused by name, and so is one that changes between plan and build.

**Reads** the files, bronze. **Writes** bronze, and the tables of a release of its own; after approval the stream
publishes that release. **Guarantee**: readers see all records of the files in one move, or none. **After a crash** a
retry continues after the last batch. **Does not** change the files, or the rows of the stream.
"""

from airflow.sdk import DAG
from headrace_airflow.declarations import DEFAULTS, datasets_with_topic, form
from headrace_airflow.operators import ApplyPlan, ApprovePlan, BuildPlan, ComparePlan, PlanLoad

for dataset in datasets_with_topic():
    with DAG(
        f"load__{dataset.name}",
        doc_md=__doc__,
        description=f"Load history of {dataset.name} from files, compare, request approval, publish",
        schedule=None,
        is_paused_upon_creation=False,
        default_args=DEFAULTS,
        params=form("load"),
        tags=["history", dataset.name],
    ) as dag:
        (
            PlanLoad(task_id="plan", dataset=dataset.name)
            >> BuildPlan(task_id="build", dataset=dataset.name)
            >> ComparePlan(task_id="compare", dataset=dataset.name)
            >> ApprovePlan(task_id="approve", dataset=dataset.name)
            >> ApplyPlan(task_id="apply", dataset=dataset.name, outlets=[*dataset.topic_tables, dataset.plans])
        )
    globals()[dag.dag_id] = dag
