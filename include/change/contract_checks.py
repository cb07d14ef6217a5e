"""Evaluates the contract's table rules on the built tables of a plan, before they are published.

A separate process evaluates them (include/change/plan_quality_job.py): Great Expectations is slow to load. For a
release, whole tables are evaluated. For a slice, row rules are evaluated on the resulting rows, and the others on the
resulting tables; an equal slice needs no evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from include.change.bounded_jobs import run_job
from include.change.compare_tables import Side
from include.declare.contract_rules import Rule, RuleResult
from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.plans.plan import Plan, PlanRecord
from include.plans.stage_results import Compared

INSTALL = 'make setup GROUPS="runtime quality"'
RESULTS = TypeAdapter(list[RuleResult])


class ChecksFailed(Terminal):
    """The process that evaluates the rules ended without results."""

    def __init__(self, plan: str, why: str) -> None:
        super().__init__(
            f"plan {plan}: the contract's rules were not evaluated ({why}); readers still get the published tables",
            f"headrace plan compare {plan}",
        )
        self.plan = plan


class PlanHeld(Terminal):
    """The built tables fail rules that block a publication; `rules` names them."""

    def __init__(self, plan: str, rules: Sequence[str]) -> None:
        super().__init__(
            f"plan {plan} is held: its tables fail {', '.join(rules)}; readers still get the published tables",
            f"headrace plan show {plan}; then change the code or the contract and plan again",
        )
        self.plan, self.rules = plan, tuple(rules)


def table_rules(built: Side) -> dict[str, list[Rule]]:
    """Return the contract's rules for the built tables, by table; tables without rules are left out."""
    return {name: list(rules) for name in built.tables if (rules := built.dataset.contract.checks(name))}


def run_checks(settings: Settings, plan: Plan, built: Sequence[Side]) -> list[RuleResult]:
    """Evaluate the rules of the built tables in a process of its own; without rules no process is started.

    Without the packages of the group `quality`, every rule is returned as not evaluated. Raises ChecksFailed, and
    JobDied when the process died.
    """
    rules = {table: found for side in built for table, found in table_rules(side).items()}
    if not rules:
        return []
    answer = run_job(settings, plan.id, plan.dataset, ("include.change.plan_quality_job", plan.id), lambda _: None)
    if "checks" in answer:
        return RESULTS.validate_python(answer["checks"])
    if not answer.get("not_installed"):
        raise ChecksFailed(plan.id, str(answer.get("failed", "it reported nothing")))
    return [_not_evaluated(table, rule) for table, found in rules.items() for rule in found]


def refuse_held(record: PlanRecord) -> None:
    """Raise PlanHeld when the comparison found a rule broken that holds the plan back."""
    compared = record.find(Compared)
    if compared is not None and compared.blocked_by:
        raise PlanHeld(record.plan.id, compared.blocked_by)


def blocking_rules(checks: Sequence[RuleResult]) -> list[str]:
    """Return the failed rules that block a publication, as `table: rule`."""
    return [f"{check.table}: {check.rule}" for check in checks if check.blocks]


def _not_evaluated(table: str, rule: Rule) -> RuleResult:
    return RuleResult(
        *(table, rule.name, rule.expectation, rule.action, rule.severity), passed=None, observed=f"run {INSTALL}"
    )
