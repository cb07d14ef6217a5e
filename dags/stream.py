"""Keep a dataset's stream running, and watch it.

Unpaused and with a run, the stream is wanted: the runner (`headrace up`) starts it and keeps it. The one task is
deferred; its log shows the stream's health: batch, lag, up to when events are complete, share of rejected records. It
fails when the runner gave the stream up, or when it is too far behind for too long.

- *Start it:* unpause the DAG.
- *Stop it:* pause the DAG, then mark the run as success or failed: the stream drains at its next batch. Pausing alone
  only keeps another run from beginning; marking alone lets the next run begin, which is a restart.
- *Clear the task:* the stream drains, and is wanted again.
- Restarting Airflow, or any part of it, does nothing to the stream. A failed run leaves it wanted.

**Reads** the stream's health. **Writes** that it is wanted. **Guarantee**: never two streams of a dataset (a lease).
**After a crash** of Airflow the run is deferred still. **Does not** run Spark.
"""

from datetime import UTC, datetime

from airflow.sdk import DAG

from include.operators.dag_defaults import DEFAULTS, declared_datasets
from include.operators.dag_forms import stream_form
from include.operators.stream_operator import RunStream

for dataset in declared_datasets():
    with DAG(
        f"stream__{dataset.name}",
        doc_md=__doc__,
        description=f"Keep the stream of {dataset.name} running",
        schedule="@continuous",
        # Without it the first run's interval has no length, and the next run would get the same date: there is none.
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        max_active_runs=1,
        # A stream that cannot live is not tried for ever.
        max_consecutive_failed_dag_runs=3,
        default_args=DEFAULTS,
        params=stream_form(),
        tags=["stream", dataset.name],
    ) as dag:
        # No retries: the runner has tried already, and the next run is one more.
        RunStream(task_id="keep", dataset=dataset.name, retries=0)
    globals()[dag.dag_id] = dag
