"""Counts of the rules that only warn, observed while a run of batches is written, without an extra Spark job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from include.declare.contract import Contract
from include.declare.contract_rules import WARN
from spark_jobs.contract.compiled_rules import CompiledRule, compiled_rule

Counts = Mapping[str, Mapping[str, Any]]
"""By rule: `validated` records, `violations` among them, and the `first` violation's partition and offset, or None."""


@dataclass(frozen=True)
class WarningCounter:
    """A contract's warning rules as aggregates over accepted records; rejected ones are counted by reason."""

    rules: tuple[str, ...]
    aggregates: tuple[Column, ...]

    def watched(self, accepted: DataFrame) -> WatchedRows:
        """Return the same rows, counted each time they are written."""
        return WatchedRows(self, accepted)


class WatchedRows:
    """Rows that are counted while they are written, each time anew."""

    def __init__(self, counter: WarningCounter, accepted: DataFrame) -> None:
        self._rules, self._observation = counter.rules, Observation(uuid4().hex)
        self.rows = accepted.observe(self._observation, *counter.aggregates) if self._rules else accepted
        self._session: Any = accepted.sparkSession
        self._id = accepted._jdf.id() if self._rules else 0

    def counted(self, write: Callable[[], None]) -> Counts:
        """Write the rows; return their counts. An observation serves one execution: each needs one of the same name."""
        if not self._rules:
            write()
            return {}
        manager = self._session._jsparkSession.observationManager()
        self._observation._jo = manager.getOrNewObservation(self._observation._name, self._id)
        try:
            write()
        except BaseException:
            # Spark's listeners end the observation of an execution that failed, at some later time.
            self._session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
            raise
        observed = self._observation.get
        return {
            name: {
                "validated": int(observed[f"validated_{n}"]),
                "violations": int(observed[f"violations_{n}"]),
                "first": None if observed[f"first_{n}"] is None else list(observed[f"first_{n}"]),
            }
            for n, name in enumerate(self._rules)
        }


def compiled_warning_counter(contract: Contract) -> WarningCounter:
    """Return the counting of a contract's warning rules; needs a running Spark session."""
    rules = [rule for rule in contract.record_rules if rule.action == WARN]
    columns = {column.name: column for column in contract.plain_columns}
    aggregates = [each for n, rule in enumerate(rules) for each in _aggregates(n, compiled_rule(rule, columns))]
    return WarningCounter(tuple(rule.name for rule in rules), tuple(aggregates))


def _aggregates(number: int, rule: CompiledRule) -> list[Column]:
    position = F.when(rule.violated, F.struct("_partition", "_offset"))
    return [
        F.count_if(rule.applies).alias(f"validated_{number}"),
        F.count_if(rule.violated).alias(f"violations_{number}"),
        F.min(position).alias(f"first_{number}"),
    ]


def summed_counts(counts: Sequence[Counts]) -> Counts:
    """Return the sums of the counts of several writes."""
    rules = {rule: [one[rule] for one in counts] for rule in (counts[0] if counts else {})}
    return {rule: _summed(parts) for rule, parts in rules.items()}


def _summed(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    positions = [part["first"] for part in parts if part["first"] is not None]
    return {
        "validated": sum(part["validated"] for part in parts),
        "violations": sum(part["violations"] for part in parts),
        "first": min(positions, default=None),
    }
