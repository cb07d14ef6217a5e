"""The audit as a task: check that every Kafka record is in the tables exactly once.

Reads: Kafka and the published tables, as `headrace audit` does.  Writes: the outcome (include/audit/run.py).
Guarantee: it succeeds only when every requested dataset is balanced, all its tables were checked, and no stream of them
has failed or is halted.
After a crash: a retry audits again.
Does not: repair anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from include.airflow.run_context import airflow_errors, run_params
from include.ground.settings import load_settings

if TYPE_CHECKING:
    from include.audit.balance import DatasetAudit
    from include.ground.settings import Settings


class Audit(BaseOperator):
    """Compare Kafka, bronze, silver, rejected and gold; returns the records of each layer by dataset."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Audit the requested datasets. Raises AirflowFailException with the first finding when one is not balanced."""
        from include.airflow.run_parameters import AuditParameters, validated_params
        from include.audit.gold import unchecked_error
        from include.audit.run import counts, record_outcomes

        settings = load_settings()
        with airflow_errors():
            requested = validated_params(AuditParameters, run_params(context))
            audits = self._audits(settings, requested.datasets, full=requested.full)
            record_outcomes(settings, audits, datetime.now(UTC))
        for audit in audits:
            self.log.info("%s: %s", audit.dataset, counts(audit) if audit.balanced else "NOT balanced")
        findings = [finding.sentence() for audit in audits for finding in audit.findings]
        if findings:
            raise AirflowFailException(f"not balanced; first of {len(findings)} findings: {findings[0]}")
        with airflow_errors():
            for audit in audits:
                if audit.unchecked:
                    raise unchecked_error(audit.dataset, audit.unchecked[0])
        standing = [audit.standing for audit in audits if audit.standing]
        if standing:
            raise AirflowFailException(f"what is published balances, and is not complete: {standing[0]}")
        return {audit.dataset: counts(audit) for audit in audits}

    def _audits(self, settings: Settings, requested: Sequence[str], *, full: bool) -> list[DatasetAudit]:
        """Audit these datasets, or all that are published; derived ones by a job for each."""
        from include.audit.kafka import open_topic
        from include.audit.run import requested_audits
        from include.change.jobs import recompute_derived
        from include.observe.processes import standing_sentence
        from include.state.run_files import bootstrap_servers

        return requested_audits(
            settings,
            requested,
            lambda topic: open_topic(bootstrap_servers(settings), topic, settings.jars),
            recompute_derived,
            self.log.info,
            full=full,
            standing=partial(standing_sentence, settings),
        )
