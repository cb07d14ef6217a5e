"""Counts of the rules that only warn, observed while a run of batches is written, without an extra Spark job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from include.catalog.contract import Contract
from include.catalog.contract_rules import WARN
from spark_jobs.contract.compiled_rules import CompiledRule, compiled_rule

Counts = Mapping[str, Mapping[str, Any]]
"""By rule: `validated` records, `violations` among them, and the `first` violation's partition and offset, or None."""


@dataclass(frozen=True)
class WarningCounter:
    """The warning rules of a contract, compiled to aggregates over records that keep it.

    What is rejected is counted by its reasons.
    """

    rules: tuple[str, ...]
    aggregates: tuple[Column, ...]

    def observed(self, accepted: DataFrame) -> tuple[DataFrame, Callable[[], Counts]]:
        """Return the same rows, watched, and what gives the counts once they were written."""
        if not self.rules:
            return accepted, dict
        seen = Observation()
        return accepted.observe(seen, *self.aggregates), lambda: self._counts(seen.get)

    def _counts(self, seen: Mapping[str, Any]) -> Counts:
        return {
            name: {
                "validated": int(seen[f"validated_{n}"]),
                "violations": int(seen[f"violations_{n}"]),
                "first": None if seen[f"first_{n}"] is None else list(seen[f"first_{n}"]),
            }
            for n, name in enumerate(self.rules)
        }


def compiled_warning_counter(contract: Contract) -> WarningCounter:
    """Return the counting of a contract's warning rules; needs a running Spark session."""
    rules = [rule for rule in contract.record_rules if rule.action == WARN]
    aggregates = [column for n, rule in enumerate(rules) for column in _aggregates(n, compiled_rule(rule))]
    return WarningCounter(tuple(rule.name for rule in rules), tuple(aggregates))


def _aggregates(number: int, rule: CompiledRule) -> list[Column]:
    place = F.when(rule.violated, F.struct("_partition", "_offset"))
    return [
        F.count_if(rule.applies).alias(f"validated_{number}"),
        F.count_if(rule.violated).alias(f"violations_{number}"),
        F.min(place).alias(f"first_{number}"),
    ]


def summed_counts(counts: Sequence[Counts]) -> Counts:
    """Return what was counted in several writes as one count."""
    rules = {rule: [one[rule] for one in counts] for rule in (counts[0] if counts else {})}
    return {rule: _together(parts) for rule, parts in rules.items()}


def _together(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    places = [part["first"] for part in parts if part["first"] is not None]
    return {
        "validated": sum(part["validated"] for part in parts),
        "violations": sum(part["violations"] for part in parts),
        "first": min(places, default=None),
    }
