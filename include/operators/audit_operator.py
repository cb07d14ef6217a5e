"""The audit as a task: is every Kafka record accounted for?

Reads: Kafka and the published tables, as `headrace audit` does.  Writes: nothing.
Guarantee: it succeeds only when every dataset that was asked for is balanced.
After a crash: it counts again.
Does not: repair anything.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from include.operators.run_context import airflow_errors, run_params
from include.settings import load_settings

if TYPE_CHECKING:
    from include.audit.balance import DatasetAudit


class Audit(BaseOperator):
    """Count Kafka, bronze, silver, rejected and gold from outside; returns the records of each layer by dataset."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Audit; ParamsRefused, DatasetUnknown; fails with the first finding when something is out of balance."""
        from include.audit.audit_run import audit_dataset, audited_datasets
        from include.audit.kafka_records import open_topic
        from include.operators.run_parameters import AuditParameters, validated_params
        from include.state.broker_address import bootstrap_servers

        settings = load_settings()
        with airflow_errors():
            asked = validated_params(AuditParameters, run_params(context)).datasets
            every = audited_datasets(settings, None)
            names = [audited_datasets(settings, name)[0] for name in asked] or every
            opener = partial(open_topic, bootstrap_servers(settings))
            audits = [audit_dataset(settings, name, opener) for name in names]
        for audit in audits:
            self.log.info("%s: %s", audit.dataset, counts(audit) if audit.balanced else "NOT balanced")
        findings = [finding.sentence() for audit in audits for finding in audit.findings]
        if findings:
            raise AirflowFailException(f"not balanced; the first of {len(findings)} findings: {findings[0]}")
        return {audit.dataset: counts(audit) for audit in audits}


def counts(audit: DatasetAudit) -> dict[str, int]:
    """Return the records of each layer, all partitions together."""
    layers = ("kafka", "bronze", "silver", "rejected")
    return {layer: sum(getattr(partition, layer) for partition in audit.partitions) for layer in layers}
