"""Validates the published tables of a dataset, as a task.

Reads: the published tables, like `headrace quality run`.  Writes: a page of the results, in the state folder.
Guarantee: it succeeds only when no blocking rule (hold, fail) failed.
After a crash: a retry validates again.
Does not: change the publication.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from include.airflow.operator_links import RuleResultsLink
from include.airflow.run_context import airflow_errors
from include.ground.settings import load_settings


class ValidateTables(BaseOperator):
    """Validate every published table of the dataset; returns how many rules were evaluated, and which failed."""

    operator_extra_links = (RuleResultsLink(),)

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> dict[str, Any]:
        """Fails when a blocking rule failed; skipped before the first publication."""
        from include.change.quality import validate_published
        from include.read.publication import NothingPublished

        with airflow_errors():
            try:
                found = validate_published(load_settings(), self.dataset, datetime.now(UTC))
            except NothingPublished as error:
                raise AirflowSkipException(error.what) from error
        failed = [check for check in found.checks if not check.passed]
        sentences = [f"{check.table}, {check.rule} ({check.action}): {check.observed}" for check in failed]
        for sentence in sentences:
            self.log.warning("failed: %s", sentence)
        blocking = [sentence for check, sentence in zip(failed, sentences, strict=True) if check.blocks]
        if blocking:
            raise AirflowFailException(f"{len(blocking)} blocking rules failed; the first: {blocking[0]}")
        outcome = {"release": found.release, "batch": found.batch, "evaluated": len(found.checks), "failed": sentences}
        self.log.info("%s", outcome)
        return outcome
