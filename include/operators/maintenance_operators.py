"""Tables and logs kept small, as tasks.

Reads / Writes: what `include.maintenance` does.
Guarantee: the rows are the same, and what readers see stays readable.
After a crash: the next run does the rest.
Does not: touch the tables of a dataset with an open plan: that task is skipped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from include.operators.run_context import airflow_errors
from include.settings import load_settings


class MaintainTables(BaseOperator):
    """Have the owner of a dataset's tables put small files together and remove old ones; returns what it did."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> dict[str, dict[str, int]]:
        """Maintain; skipped before the first publication, and while a plan is open."""
        from include.maintenance.table_maintenance import PlanOpen, maintain_tables
        from include.reading.publication import NothingPublished

        with airflow_errors():
            try:
                done = maintain_tables(load_settings(), self.dataset)
            except (NothingPublished, PlanOpen) as error:
                raise AirflowSkipException(error.what) from error
        for each in done:
            self.log.info("%s", each)
        return {each.table: {"files": each.files, "now": each.now, "removed": each.removed} for each in done}


class TrimLogs(BaseOperator):
    """Cut long logs and remove old ones; returns how many."""

    def execute(self, context: Context) -> dict[str, int]:
        """Trim."""
        from include.maintenance.log_trimming import trim_logs

        done = trim_logs(load_settings(), datetime.now(UTC))
        return {"cut": done.cut, "removed": done.removed}
