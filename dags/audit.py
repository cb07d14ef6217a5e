"""Every hour, check that every Kafka record is in the tables exactly once.

An independent consumer and delta-rs count Kafka, bronze, silver, rejected and gold, without Spark. The run fails with
the first gap, overlap or surplus and its offsets; `headrace audit` lists all of them. Records that the last balanced
audit verified, and that are unchanged, are compared again only with `full`. The tables of derived datasets
are recomputed from the versions of their sources, by a Spark job for each. Then each day that has become complete
(the watermark has passed it) is reported as a partition of the dataset's assets, so that other DAGs can depend on it.

**Reads** Kafka and the published tables. **Writes** asset events. **Guarantee**: success means balanced.
**After a crash** the retry counts again. **Does not** repair anything.
"""

from airflow.sdk import DAG, CronTriggerTimetable
from headrace_airflow.declarations import DEFAULTS, datasets_with_topic, form
from headrace_airflow.operators import Audit, ReportCompleteDays

with DAG(
    "audit",
    doc_md=__doc__,
    description="Check that every Kafka record is accounted for",
    schedule=CronTriggerTimetable("17 * * * *", timezone="UTC"),
    max_active_runs=1,
    default_args=DEFAULTS,
    params=form("audit"),
    tags=["quality"],
) as dag:
    audit = Audit(task_id="audit")
    for dataset in datasets_with_topic():
        audit >> ReportCompleteDays(
            task_id=f"days__{dataset.name}", dataset=dataset.name, outlets=[*dataset.topic_tables]
        )
