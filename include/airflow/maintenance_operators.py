"""Compaction of tables and trimming of logs, as tasks.

Reads / Writes: what `include.change` does.
Guarantee: rows are unchanged, and published versions stay readable.
After a crash: the next run does the rest.
Does not: touch the tables of a dataset with an open plan: that task is skipped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from include.airflow.run_context import airflow_errors
from include.ground.settings import load_settings


class MaintainTables(BaseOperator):
    """Remove data of ended plans; request compaction and removal of old files from the tables' owner.

    Returns the owner's result by table.
    """

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> dict[str, dict[str, int]]:
        """Maintain; skipped before the first publication, and while a plan is open."""
        from include.change.jobs import PlanOpen, maintain_tables
        from include.observe.ended_plans import remove_ended
        from include.read.publication import NothingPublished

        with airflow_errors():
            try:
                for removed in remove_ended(load_settings(), self.dataset, datetime.now(UTC)):
                    self.log.info("removed %s", removed)
                done = maintain_tables(load_settings(), self.dataset)
            except (NothingPublished, PlanOpen) as error:
                raise AirflowSkipException(error.what) from error
        for each in done:
            self.log.info("%s", each)
        return {each.table: {"files": each.files, "now": each.now, "removed": each.removed} for each in done}


class TrimLogs(BaseOperator):
    """Trim long logs and remove old ones; returns their numbers."""

    def execute(self, context: Context) -> dict[str, int]:
        """Trim."""
        from include.run.log_trimming import trim_logs

        done = trim_logs(load_settings(), datetime.now(UTC))
        return {"trimmed": done.trimmed, "removed": done.removed}
