"""What the rules that only warn have counted in a run of batches: seen on the way to the files, at no extra job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from include.catalog.contract import Contract
from include.catalog.rules import WARN
from spark_jobs.contract.expectations import Compiled, compiled_rule

Counts = Mapping[str, Mapping[str, Any]]
"""By rule: `judged` and `broken` in records; `first`: partition and offset of the least broken one, or None."""


@dataclass(frozen=True)
class Counting:
    """The warning rules of a contract, compiled to aggregates over judged records (`Judge.judged`).

    Counted are records that keep the contract: what is rejected is counted by its reasons.
    """

    rules: tuple[str, ...]
    aggregates: tuple[Column, ...]

    def observed(self, judged: DataFrame) -> tuple[DataFrame, Callable[[], Counts]]:
        """Return the same rows, watched, and what gives the counts once they were written."""
        if not self.rules:
            return judged, dict
        seen = Observation()
        return judged.observe(seen, *self.aggregates), lambda: self._counts(seen.get)

    def _counts(self, seen: Mapping[str, Any]) -> Counts:
        return {
            name: {
                "judged": int(seen[f"judged_{n}"]),
                "broken": int(seen[f"broken_{n}"]),
                "first": None if seen[f"first_{n}"] is None else list(seen[f"first_{n}"]),
            }
            for n, name in enumerate(self.rules)
        }


def compiled_counting(contract: Contract) -> Counting:
    """Return the counting of a contract's warning rules; needs a running Spark session."""
    rules = [rule for rule in contract.record_rules if rule.action == WARN]
    aggregates = [column for n, rule in enumerate(rules) for column in _aggregates(n, compiled_rule(rule))]
    return Counting(tuple(rule.name for rule in rules), tuple(aggregates))


def _aggregates(number: int, rule: Compiled) -> list[Column]:
    accepted = F.size("_reasons") == 0
    broken = accepted & rule.broken
    place = F.when(broken, F.struct("_partition", "_offset"))
    return [
        F.count_if(accepted & rule.judged).alias(f"judged_{number}"),
        F.count_if(broken).alias(f"broken_{number}"),
        F.min(place).alias(f"first_{number}"),
    ]
