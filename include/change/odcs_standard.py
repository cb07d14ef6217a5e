"""Checks a contract against the Open Data Contract Standard, and its rules against Great Expectations.

The data plane has a stricter reader of its own (include/declare/contract_file.py), which needs no package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from include.declare.contract import Contract
from include.declare.contract_file import check_standard, load_contract
from include.declare.contract_rules import Rule
from include.declare.yaml_declarations import DeclarationRefused, Document, Key
from include.ground.optional_packages import import_optional


def contract_problems(folder: Path) -> list[str]:
    """Return all that is wrong with `contract.yaml` of a dataset's folder, one sentence each; QualityNotInstalled."""
    path = folder / "contract.yaml"
    try:
        contract = load_contract(folder)
    except DeclarationRefused as error:
        return [str(problem) for problem in error.problems]
    document = Document(path)
    check_standard(document)
    _check_expectations(contract, document)
    return [str(problem) for problem in document.problems]


def rule_problems(contract: Contract, path: Path) -> list[str]:
    """Return the rules of a declaration that Great Expectations refuses, by file and line; QualityNotInstalled."""
    document = Document(path)
    _check_expectations(contract, document)
    return [str(problem) for problem in document.problems]


def _check_expectations(contract: Contract, document: Document) -> None:
    """Note the rules whose arguments Great Expectations refuses."""
    for rule in [*contract.rules, *(rule for rules in contract.gold.values() for rule in rules)]:
        try:
            expectation(rule)
        except (ValueError, TypeError) as error:
            why = " ".join(str(error).split())[:300]
            document.refuse(_rule_key(document.value, rule), f"rule {rule.name}: {rule.expectation}: {why}")


def _rule_key(value: Any, rule: Rule, key: Key = ()) -> Key:
    """Return the place of a rule in a contract; () when it is not below this value."""
    if isinstance(value, dict) and "engine" in value and value.get("name") == rule.name:
        return key
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for part, each in items if (found := _rule_key(each, rule, (*key, part)))), ())


def expectation(rule: Rule) -> Any:
    """Return the rule as Great Expectations' own object; ValueError or TypeError when it refuses the arguments."""
    import_optional("great_expectations")
    made = import_optional("great_expectations.expectations.registry").get_expectation_impl(rule.expectation)
    return made(**rule.written, severity=rule.severity, meta={"name": rule.name, "action": rule.action})
