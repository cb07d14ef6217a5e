"""What the built tables of a plan answer to the rules of their contract, asked before anybody may see them.

A separate process evaluates them (include/quality/plan_quality_job.py): Great Expectations is slow to load. For a
release, whole tables are evaluated. For a slice, row rules are evaluated on the resulting rows, and the others on the
tables as they would become; an equal slice needs no evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from include.catalog.contract_rules import FAIL, HOLD, Rule
from include.errors import Terminal
from include.planning.bounded_jobs import run_job
from include.planning.comparison import Side
from include.planning.plan import Plan, PlanRecord
from include.planning.stage_results import Compared
from include.settings import Settings

BLOCKING = (HOLD, FAIL)
INSTALL = 'make setup GROUPS="runtime quality"'


class ChecksFailed(Terminal):
    """The process that asks the rules ended without an answer."""

    def __init__(self, plan: str, why: str) -> None:
        super().__init__(f"plan {plan}: its tables could not be asked ({why}); readers see what they saw", "see above")
        self.plan = plan


class PlanHeld(Terminal):
    """Rules that hold a publication back are broken; `rules` names them."""

    def __init__(self, plan: str, rules: Sequence[str]) -> None:
        super().__init__(
            f"plan {plan} is held: {', '.join(rules)} broken by the tables that it built; readers see what they saw",
            f"headrace plan show {plan}; then change the code or the contract and plan again",
        )
        self.plan, self.rules = plan, tuple(rules)


def table_rules(built: Side) -> dict[str, list[Rule]]:
    """Return the rules that the built tables are asked, by table; empty when there are none."""
    dataset, rows = built
    return {name: list(rules) for name in rows if (rules := dataset.contract.checks(name))}


def run_checks(settings: Settings, plan: Plan, built: Side) -> list[Mapping[str, Any]]:
    """Return what the built tables answer, as `Check.as_json`; nothing is started when there is nothing to ask.

    `is_kept` is None where the packages that ask are not installed. ChecksFailed, JobDied.
    """
    rules = table_rules(built)
    if not rules:
        return []
    said = run_job(settings, plan.id, ("include.quality.plan_quality_job", plan.id), lambda _: None)
    if "checks" in said:
        return list(said["checks"])
    if not said.get("not_installed"):
        raise ChecksFailed(plan.id, str(said.get("failed", "it said nothing")))
    return [_unasked(table, rule) for table, found in rules.items() for rule in found]


def refuse_held(record: PlanRecord) -> None:
    """Raise PlanHeld when the comparison found a rule broken that holds the plan back."""
    compared = record.find(Compared)
    if compared is not None and compared.held:
        raise PlanHeld(record.plan.id, compared.held)


def blocking_rules(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rules that hold back, as `table: rule`."""
    return [f"{check['table']}: {check['rule']}" for check in checks if check["blocks"]]


def _unasked(table: str, rule: Rule) -> Mapping[str, Any]:
    facts = {"table": table, "rule": rule.name, "expectation": rule.expectation, "severity": rule.severity}
    return facts | {"action": rule.action, "is_kept": None, "blocks": False, "seen": f"not asked: {INSTALL}"}
