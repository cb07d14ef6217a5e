"""The published tables asked their rules, as a task.

Reads: the published tables, as `headrace quality run` does.  Writes: Data Docs, in the state folder.
Guarantee: it succeeds only when no rule that holds a publication back is broken.
After a crash: it asks again.
Does not: change what readers see.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from include.operators.operator_links import DataDocsLink
from include.operators.run_context import airflow_errors
from include.settings import load_settings


class ValidateTables(BaseOperator):
    """Ask every table of the dataset that readers see; returns how many rules were asked, and which are broken."""

    operator_extra_links = (DataDocsLink(),)

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask; fails with the broken rules that hold a publication back, skipped before the first publication."""
        from include.quality.published_quality import validate_published
        from include.reading.publication import NothingPublished

        with airflow_errors():
            try:
                found = validate_published(load_settings(), self.dataset, datetime.now(UTC))
            except NothingPublished as error:
                raise AirflowSkipException(error.what) from error
        broken = [check for check in found.checks if not check.is_kept]
        sentences = [f"{check.table}, {check.rule} ({check.action}): {check.seen}" for check in broken]
        for sentence in sentences:
            self.log.warning("broken: %s", sentence)
        holding = [sentence for check, sentence in zip(broken, sentences, strict=True) if check.blocks]
        if holding:
            raise AirflowFailException(f"{len(holding)} rules are broken; the first: {holding[0]}")
        said = {"release": found.release, "batch": found.batch, "asked": len(found.checks), "broken": sentences}
        self.log.info("%s", said)
        return said
