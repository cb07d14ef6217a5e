"""An analysis as a task.

Reads / Writes: what `include/change` does.
Guarantee: the result is published once.
After a crash: the retry continues the run.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from include.airflow.run_context import airflow_errors
from include.ground.settings import load_settings


class RunAnalysis(BaseOperator):
    """Run a declared analysis and publish its result; returns number of the run, version and figures."""

    def __init__(self, *, dataset: str, analysis: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset, self.analysis = dataset, analysis

    def execute(self, context: Context) -> dict[str, Any]:
        """Run; skipped before the dataset's first publication."""
        from include.change.analysis import run_analysis
        from include.declare.analyses import declared_analysis
        from include.read.publication import NothingPublished, read_publication

        settings = load_settings()
        with airflow_errors():
            try:
                read_publication(settings, self.dataset)
            except NothingPublished as error:
                raise AirflowSkipException(error.what) from error
            analysis = declared_analysis(settings, self.dataset, self.analysis)
            done = run_analysis(settings, analysis, self.log.info)
        return {"run": done.run, "version": done.version, "figures": dict(done.figures)}
