"""Ship a dataset's changed folder: plan, build as a shadow, compare, request approval, publish.

The folder `include/datasets/<dataset>/` as it is now becomes a new release, built from bronze (of a derived dataset:
from the published versions of its sources) while the stream runs.
Its tables are compared with the published ones at the same batch. No approval is needed if they are equal, only added
to, or within `threshold`. The old release stays current as a shadow until it is retired, so `rollback__<dataset>` is
quick. Derived datasets in `with` are released in the same plan: built over the new tables, and published with them.

**Reads** bronze or the sources, the published tables. **Writes** the release's tables, then the publication.
**Guarantee**: silver and all gold tables move at once. **After a crash** a retry continues with what was built.
**Does not** stop the stream.
"""

from airflow.sdk import DAG
from headrace_airflow.declarations import DEFAULTS, datasets, form
from headrace_airflow.operators import ApplyPlan, ApprovePlan, BuildPlan, ComparePlan, PlanRelease

for dataset in datasets():
    with DAG(
        f"release__{dataset.name}",
        doc_md=__doc__,
        description=f"Ship the changed folder of {dataset.name}",
        schedule=None,
        is_paused_upon_creation=False,
        default_args=DEFAULTS,
        params=form("release"),
        tags=["history", dataset.name],
    ) as dag:
        (
            PlanRelease(task_id="plan", dataset=dataset.name)
            >> BuildPlan(task_id="build", dataset=dataset.name)
            >> ComparePlan(task_id="compare", dataset=dataset.name)
            >> ApprovePlan(task_id="approve", dataset=dataset.name)
            >> ApplyPlan(task_id="apply", dataset=dataset.name, outlets=[*dataset.tables, dataset.plans])
        )
    globals()[dag.dag_id] = dag
