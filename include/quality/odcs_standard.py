"""Is a contract what the Open Data Contract Standard says, and are its rules ones that Great Expectations knows?

The data plane reads contracts with a stricter reader of its own (include/catalog/contract.py) and needs no package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from include.catalog.contract import Contract, load_contract
from include.catalog.contract_rules import Rule
from include.catalog.yaml_declarations import DeclarationRefused
from include.quality.quality_packages import import_optional


def contract_problems(folder: Path) -> list[str]:
    """Return all that is wrong with `contract.yaml` of a dataset's folder, one sentence each; QualityNotInstalled."""
    path = folder / "contract.yaml"
    try:
        contract = load_contract(folder)
    except DeclarationRefused as error:
        return [str(problem) for problem in error.problems]
    return [*_against_the_standard(path), *_unknown_to_gx(contract)]


def _against_the_standard(path: Path) -> Iterator[str]:
    """What the standard's own JSON schema refuses: the package's model lets unknown keys of inner objects pass."""
    package, jsonschema = import_optional("open_data_contract_standard.model"), import_optional("jsonschema")
    content: Any = yaml.safe_load(path.read_text("utf-8"))
    schema = json.loads(package.OpenDataContractStandard.json_schema())
    validator = jsonschema.validators.validator_for(schema)(schema)
    for error in sorted(validator.iter_errors(content), key=lambda error: list(map(str, error.absolute_path))):
        yield f"{path}: {error.json_path}: {error.message.splitlines()[0][:200]}"
    try:
        package.OpenDataContractStandard(**content)
    except ValueError as error:
        yield f"{path}: {error}"


def _unknown_to_gx(contract: Contract) -> Iterator[str]:
    for rule in [*contract.rules, *(rule for rules in contract.gold.values() for rule in rules)]:
        try:
            expectation(rule)
        except (ValueError, TypeError) as error:
            yield f"rule {rule.name}: {rule.expectation}: {' '.join(str(error).split())[:300]}"


def expectation(rule: Rule) -> Any:
    """Return the rule as Great Expectations' own object; ValueError or TypeError when it refuses the arguments."""
    import_optional("great_expectations")
    made = import_optional("great_expectations.expectations.registry").get_expectation_impl(rule.expectation)
    return made(**rule.written, severity=rule.severity, meta={"name": rule.name, "action": rule.action})
