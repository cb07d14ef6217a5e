"""Quality of data: a contract's table rules on a plan's build or on the published tables, and the report.

A separate process evaluates the rules of a plan (quality_job.py): Great Expectations is slow to load. For a release,
whole tables are evaluated. For a slice, row rules are evaluated on the resulting rows, and the others on the resulting
tables; an equal slice needs no evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from include.change.checkpoint import validate_tables
from include.change.compare import Side
from include.change.jobs import run_job
from include.declare.contract import Contract
from include.declare.contract_rules import Rule, RuleResult
from include.declare.derived_dataset import released_contract
from include.ground.durable_files import write_atomically
from include.ground.errors import Terminal
from include.ground.paths import docs_page
from include.ground.render_template import render_html
from include.ground.settings import Settings
from include.observe.ledger_reader import RecordedRun, RuleWarnings
from include.observe.stream_history import StoredValidation, store_validation
from include.plans.plan import Compared, Plan, PlanRecord
from include.read.publication import read_publication, tables_of
from include.read.published_tables import open_dataset

WIDTH, HEIGHT, MOST_POINTS = 320.0, 48.0, 400


def report_page(report: QualityReport) -> str:
    """Return the page of a report."""
    lines = [(line, share_points(line.shares), max(line.shares, default=0.0)) for line in report.lines]
    title = f"{report.dataset}: quality {_period(report)}"
    return render_html("quality_report.html.j2", title=title, report=report, lines=lines, width=WIDTH, height=HEIGHT)


def checks_page(title: str, checks: Sequence[RuleResult]) -> str:
    """Return a page of results."""
    return render_html("quality_checks.html.j2", title=title, checks=checks)


def _period(report: QualityReport) -> str:
    times = [run.validated_at for run in report.runs]
    return "" if not times else f"from {min(times):%Y-%m-%d %H:%M:%S} to {max(times):%Y-%m-%d %H:%M:%S} UTC"


def share_points(shares: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points (x, y) of a plot over the runs; the greatest share fills the height. Empty when all are 0."""
    points = downsampled(shares)
    highest = max(points, default=0.0)
    step = WIDTH / max(len(points) - 1, 1)
    return [(n * step, 46 - 40 * share / highest) for n, share in enumerate(points)] if highest else []


def downsampled(shares: Sequence[float]) -> list[float]:
    """Return at most MOST_POINTS shares: the greatest of neighbours, so that every peak is kept."""
    size = -(-len(shares) // MOST_POINTS) or 1
    return [max(shares[at : at + size]) for at in range(0, len(shares), size)]


INSTALL = 'make setup GROUPS="runtime quality"'
RESULTS = TypeAdapter(list[RuleResult])


def table_rules(built: Side) -> dict[str, list[Rule]]:
    """Return the contract's rules for the built tables, by table; tables without rules are left out."""
    return {name: list(rules) for name in built.tables if (rules := built.dataset.contract.checks(name))}


def run_checks(settings: Settings, plan: Plan, built: Sequence[Side]) -> list[RuleResult]:
    """Evaluate the rules of the built tables in a process of its own; without rules no process is started.

    Without the packages of the group `quality`, every rule is returned as not evaluated. Raises `checks-failed`, and
    JobDied when the process died.
    """
    rules = {table: found for side in built for table, found in table_rules(side).items()}
    if not rules:
        return []
    answer = run_job(settings, plan.id, plan.dataset, ("include.change.quality_job", plan.id), lambda _: None)
    if "checks" in answer:
        return RESULTS.validate_python(answer["checks"])
    if not answer.get("not_installed"):
        why = f"the contract's rules were not evaluated ({answer.get('failed', 'it reported nothing')})"
        what = f"plan {plan.id}: {why}; readers still get the published tables"
        raise Terminal(what, f"headrace plan compare {plan.id}", code="checks-failed", plan=plan.id)
    return [_not_evaluated(table, rule) for table, found in rules.items() for rule in found]


def refuse_held(record: PlanRecord) -> None:
    """Raise Terminal (`plan-held`) when the comparison found rules broken that block a publication."""
    compared = record.find(Compared)
    if compared is not None and compared.blocked_by:
        plan, rules = record.plan.id, tuple(compared.blocked_by)
        what = f"plan {plan} is held: its tables fail {', '.join(rules)}; readers still get the published tables"
        remedy = f"headrace plan show {plan}; then change the code or the contract and plan again"
        raise Terminal(what, remedy, code="plan-held", rules=rules)


def _not_evaluated(table: str, rule: Rule) -> RuleResult:
    return RuleResult(
        *(table, rule.name, rule.expectation, rule.action, rule.severity), passed=None, observed=f"run {INSTALL}"
    )


@dataclass(frozen=True)
class PublishedChecks:
    """Results of the table rules on one publication; `site`: the folder of its page."""

    dataset: str
    release: str
    batch: int
    checked_at: datetime
    checks: Sequence[RuleResult]
    site: Path

    @property
    def blocks(self) -> bool:
        return any(check.blocks for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON values; `checked_at` in ISO 8601."""
        return {
            "dataset": self.dataset,
            "release": self.release,
            "batch": self.batch,
            "checked_at": self.checked_at.isoformat(),
            "checks": RESULTS.dump_python(list(self.checks), mode="json"),
            "blocks": self.blocks,
            "site": str(self.site),
        }


def validate_published(settings: Settings, dataset: str, now: datetime) -> PublishedChecks:
    """Evaluate the table rules of every published table, replace the dataset's page, and keep the results.

    Raises NothingPublished, and QualityNotInstalled.
    """
    publication = read_publication(settings, dataset)
    contract = released_contract(settings, dataset, publication.release)
    rows = {name: open_dataset(table) for name, table in tables_of(settings, publication).items()}
    given = {name: (table, rules) for name, table in rows.items() if (rules := contract.checks(name))}
    checks, page = validate_tables(given), docs_page(settings, dataset)
    found = PublishedChecks(dataset, publication.release, publication.batch, now.astimezone(UTC), checks, page.parent)
    page.parent.mkdir(parents=True, exist_ok=True)
    at = f"{found.checked_at:%Y-%m-%d %H:%M:%S} UTC"
    write_atomically(page, checks_page(f"{dataset}, release {found.release}, batch {found.batch}, {at}", checks))
    stored = StoredValidation(publication.release, publication.batch, found.checked_at, checks)
    store_validation(settings, dataset, stored)
    return found


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
    runs: Sequence[RecordedRun]
    lines: Sequence[RuleSummary]

    @property
    def records(self) -> int:
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
    dataset: str, contract: Contract, runs: Sequence[RecordedRun], since: datetime | None, until: datetime | None
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


def _rejection(name: str, runs: Sequence[RecordedRun]) -> RuleSummary:
    shares = [_share(run.reasons.get(name, 0), run.rows_in) for run in runs]
    rejected, validated = sum(run.reasons.get(name, 0) for run in runs), sum(run.rows_in for run in runs)
    return RuleSummary(name, REJECTED, validated, rejected, None, None, None, shares)


def _warning(name: str, runs: Sequence[RecordedRun], mostly: float) -> RuleSummary:
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


def _run_json(run: RecordedRun) -> Mapping[str, Any]:
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
