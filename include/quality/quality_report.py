"""What the rules of a dataset have counted over time: from the ledger alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from include.catalog.contract import Contract
from include.ledger.rule_counts import RuleWarnings, RunCounts

REJECTED, WARNED = "rejected", "warned"


@dataclass(frozen=True)
class RuleSummary:
    """One rule over all runs of a report.

    `judged`, `broken` in records; `first`: partition and offset of the first broken one (warnings only), None without.
    `is_kept`: whether at least `mostly` of the judged records keep it; None for a reason of rejection, which has no
    such share. `shares`: broken for each record, run by run.
    """

    rule: str
    kind: str
    judged: int
    broken: int
    mostly: float | None
    is_kept: bool | None
    first: tuple[int, int] | None
    shares: Sequence[float]

    @property
    def share(self) -> float:
        """Broken for each judged record."""
        return self.broken / self.judged if self.judged else 0.0


@dataclass(frozen=True)
class QualityReport:
    """A dataset's rules over the runs judged in a range of time; `lines`: reasons of rejection, then warnings."""

    dataset: str
    since: datetime | None
    until: datetime | None
    runs: Sequence[RunCounts]
    lines: Sequence[RuleSummary]

    @property
    def records(self) -> int:
        """Records judged."""
        return sum(run.rows_in for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON values; times in ISO 8601."""
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
    """Return the report of these runs; `contract` says how much of a warning is too much."""
    mostly = {rule.name: rule.mostly for rule in contract.record_rules}
    reasons = dict.fromkeys(name for run in runs for name in run.reasons)
    warned = {rule.name: None for rule in contract.record_rules if rule.action == "warn"}
    warned |= {name: None for run in runs for name in run.warnings}
    lines = [_rejecting(name, runs) for name in reasons]
    lines.sort(key=lambda line: -line.broken)
    return QualityReport(
        dataset, since, until, runs, [*lines, *(_warning(name, runs, mostly.get(name, 1.0)) for name in warned)]
    )


def _rejecting(name: str, runs: Sequence[RunCounts]) -> RuleSummary:
    shares = [_share(run.reasons.get(name, 0), run.rows_in) for run in runs]
    broken, judged = sum(run.reasons.get(name, 0) for run in runs), sum(run.rows_in for run in runs)
    return RuleSummary(name, REJECTED, judged, broken, None, None, None, shares)


def _warning(name: str, runs: Sequence[RunCounts], mostly: float) -> RuleSummary:
    nothing = RuleWarnings(0, 0, None)
    counted = [run.warnings.get(name, nothing) for run in runs]
    judged, broken = sum(each.validated for each in counted), sum(each.violations for each in counted)
    first = next((each.first for each in counted if each.first is not None), None)
    is_kept = judged == 0 or (judged - broken) / judged >= mostly
    return RuleSummary(
        name,
        WARNED,
        judged,
        broken,
        mostly,
        is_kept,
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
        "warned": {name: {"judged": each.validated, "broken": each.violations} for name, each in run.warnings.items()},
    }
