"""Keep a dataset's stream running, and watch it.

While the DAG is unpaused and has a run, the stream is requested: the runner (`headrace up`) starts and restarts it. The
one task is deferred; its log shows the stream's health: batch, lag, watermark, share of rejected records. It fails when
the runner has given up on the stream, or when the lag is too high for too long.

- *Start it:* unpause the DAG.
- *Stop it:* pause the DAG, then mark the run as success or failed: the stream drains at its next batch. Pausing alone
  only prevents a new run; marking alone lets the next run begin, which is a restart.
- *Clear the task:* the stream drains, and is requested again.
- Of a derived dataset the driver follows the publications of its sources; its lag is the time since it fell behind.
- Restarting Airflow, or any part of it, does not affect the stream. A failed run leaves it requested.

**Reads** the stream's health. **Writes** the stream request. **Guarantee**: never two streams of a dataset (a lease).
**After a crash** of Airflow the run is still deferred. **Does not** run Spark.
"""

from datetime import UTC, datetime

from airflow.sdk import DAG
from headrace_airflow.declarations import DEFAULTS, datasets, form
from headrace_airflow.operators import RunStream

for dataset in datasets():
    with DAG(
        f"stream__{dataset.name}",
        doc_md=__doc__,
        description=f"Keep the stream of {dataset.name} running",
        schedule="@continuous",
        # Without it the first run's interval is empty, and the next run would get the same date and not start.
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        max_active_runs=1,
        # A stream that fails at every start is not retried for ever.
        max_consecutive_failed_dag_runs=3,
        default_args=DEFAULTS,
        params=form("stream"),
        tags=["stream", dataset.name],
    ) as dag:
        # A retry is for a worker or a web server that did not answer; a stream that failed fails the run at once.
        RunStream(task_id="keep", dataset=dataset.name)
    globals()[dag.dag_id] = dag
