"""The shortest `retention` of records for which their expiry changes no result.

A record that arrives finds its duplicates in silver. Silver may therefore expire only rows that no later record can
duplicate: the contract's `past` and `future` limit the distance between event time and arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from include.declare.contract import Contract
from include.declare.gold_refresh import EVERY_RUN
from include.declare.pipeline import Pipeline, QueryGold
from include.declare.yaml_declarations import Finding

SHORTEST_BRONZE = timedelta(hours=1)


def retention_findings(pipeline: Pipeline, contract: Contract) -> Iterator[Finding]:
    """Yield the ages of expiry that would change how later records are classified."""
    retention, key = pipeline.retention, ("retention", "silver")
    if retention.bronze is not None and retention.bronze < SHORTEST_BRONZE:
        yield ("retention", "bronze"), "must be at least 1 hour: the stream reads its records from bronze"
    if retention.silver is None:
        return
    for gold in pipeline.gold:
        if isinstance(gold, QueryGold) or gold.refresh != EVERY_RUN:
            yield key, f"gold.{gold.name} computes rows from silver again, so silver must keep all records"
    time = next((column for column in contract.columns if column.name == pipeline.event_time), None)
    if time is None or time.past is None:
        remedy = f"customProperties: [{{property: past, value: 30 days}}] on {pipeline.event_time} in contract.yaml"
        yield key, f"needs a limit of how old a record may be when it arrives: {remedy}"
    elif retention.silver < (longest := time.past + time.future + pipeline.horizon):
        why = "a later record may still be a duplicate: past and future of the event time, and the horizon"
        yield key, f"must be at least {_duration_text(longest)} ({why})"


def _duration_text(length: timedelta) -> str:
    minutes = -(-length // timedelta(minutes=1))
    for name, size in (("days", 1440), ("hours", 60)):
        if minutes % size == 0:
            return f"{minutes // size} {name}"
    return f"{minutes} minutes"
