"""How many records each rule of a dataset rejected or warned of over time, from the ledger alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from include.declare.contract import Contract
from include.observe.ledger_reader import RuleWarnings, RunCounts

REJECTED, WARNED = "rejected", "warned"


@dataclass(frozen=True)
class RuleSummary:
    """One rule over all runs of a report.

    `validated` and `violations` count records; `first`: partition and offset of the first violation (warnings only).
    `passed`: whether at least `mostly` of the validated records pass; None for a rejection, which has no such limit.
    `shares`: violations per validated record, one per run.
    """

    rule: str
    kind: str
    validated: int
    violations: int
    mostly: float | None
    passed: bool | None
    first: tuple[int, int] | None
    shares: Sequence[float]

    @property
    def share(self) -> float:
        """Violations per validated record."""
        return _share(self.violations, self.validated)


@dataclass(frozen=True)
class QualityReport:
    """A dataset's rules over the runs validated in a range of time; `lines`: reasons of rejection, then warnings."""

    dataset: str
    since: datetime | None
    until: datetime | None
    runs: Sequence[RunCounts]
    lines: Sequence[RuleSummary]

    @property
    def records(self) -> int:
        """Number of validated records."""
        return sum(run.rows_in for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, without `shares`; times in ISO 8601."""
        lines = [
            {**{name: value for name, value in line.__dict__.items() if name != "shares"}, "share": line.share}
            for line in self.lines
        ]
        return {
            "dataset": self.dataset,
            "from": None if self.since is None else self.since.isoformat(),
            "to": None if self.until is None else self.until.isoformat(),
            "records": self.records,
            "rules": lines,
            "runs": [_run_json(run) for run in self.runs],
        }


def quality_report(
    dataset: str, contract: Contract, runs: Sequence[RunCounts], since: datetime | None, until: datetime | None
) -> QualityReport:
    """Return the report of these runs; `contract` has the limit of each warning."""
    mostly = {rule.name: rule.mostly for rule in contract.record_rules}
    reasons = dict.fromkeys(name for run in runs for name in run.reasons)
    warned = {rule.name: None for rule in contract.record_rules if rule.action == "warn"}
    warned |= {name: None for run in runs for name in run.warnings}
    lines = [_rejection(name, runs) for name in reasons]
    lines.sort(key=lambda line: -line.violations)
    return QualityReport(
        dataset, since, until, runs, [*lines, *(_warning(name, runs, mostly.get(name, 1.0)) for name in warned)]
    )


def _rejection(name: str, runs: Sequence[RunCounts]) -> RuleSummary:
    shares = [_share(run.reasons.get(name, 0), run.rows_in) for run in runs]
    rejected, validated = sum(run.reasons.get(name, 0) for run in runs), sum(run.rows_in for run in runs)
    return RuleSummary(name, REJECTED, validated, rejected, None, None, None, shares)


def _warning(name: str, runs: Sequence[RunCounts], mostly: float) -> RuleSummary:
    none = RuleWarnings(0, 0, None)
    counted = [run.warnings.get(name, none) for run in runs]
    validated, violations = sum(each.validated for each in counted), sum(each.violations for each in counted)
    first = next((each.first for each in counted if each.first is not None), None)
    passed = validated == 0 or (validated - violations) / validated >= mostly
    return RuleSummary(
        name,
        WARNED,
        validated,
        violations,
        mostly,
        passed,
        first,
        [_share(each.violations, each.validated) for each in counted],
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _run_json(run: RunCounts) -> Mapping[str, Any]:
    return {
        "release": run.release,
        "batches": [run.first_batch, run.last_batch],
        "validated_at": run.validated_at.isoformat(),
        "records": run.rows_in,
        "rejected": dict(run.reasons),
        "warned": {
            name: {"validated": each.validated, "violations": each.violations} for name, each in run.warnings.items()
        },
    }
