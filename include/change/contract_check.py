"""A dataset's folder checked as a whole, its contract against the standard and against the published release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from include.declare.contract import Contract, ContractChange, contract_changes, required_version, version_problem
from include.declare.contract_file import check_standard, load_contract
from include.declare.contract_rules import Rule
from include.declare.dataset import (
    DERIVED,
    Dataset,
    DatasetUnknown,
    declared_dataset,
    misnamed_folders,
    released_dataset,
)
from include.declare.dataset_checks import dataset_problems
from include.declare.derived_dataset import all_dataset_names, as_dataset, declared_derived, derived_names
from include.declare.payloads import registry_check
from include.declare.reference_tables import reference_problems
from include.declare.yaml_declarations import DeclarationRefused, Document, Key
from include.ground.errors import Terminal
from include.ground.optional_packages import QualityNotInstalled, import_optional
from include.ground.settings import Settings
from include.read.publication import find_publication


def contract_problems(folder: Path) -> list[str]:
    """Return all that is wrong with `contract.yaml` of a dataset's folder, one sentence each; QualityNotInstalled."""
    try:
        contract = load_contract(folder)
    except DeclarationRefused as error:
        return [str(problem) for problem in error.problems]
    document = Document(folder / "contract.yaml")
    check_standard(document)
    return rule_problems(contract, document)


def rule_problems(contract: Contract, document: Document) -> list[str]:
    """Return the problems of a declaration with the rules that Great Expectations refuses; QualityNotInstalled."""
    for rule in [*contract.rules, *(rule for rules in contract.gold.values() for rule in rules)]:
        try:
            expectation(rule)
        except (ValueError, TypeError) as error:
            why = " ".join(str(error).split())[:300]
            document.refuse(_rule_key(document.value, rule), f"rule {rule.name}: {rule.expectation}: {why}")
    return [str(problem) for problem in document.problems]


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


@dataclass(frozen=True)
class ContractCheck:
    """What is wrong with a dataset's folder, and how its contract differs from that of `base`, the published release.

    `base` is None when nothing is published; `required_version` is the least version for the changes, None when the
    version is not of the form 1.2.3. `not_checked` names the checks that were left out, and why; `registry` what was
    compared with the schema registry.
    """

    dataset: str
    version: str | None
    problems: tuple[str, ...]
    base: str | None = None
    changes: tuple[ContractChange, ...] = ()
    required_version: str | None = None
    version_problem: str = ""
    not_checked: str = ""
    registry: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether the folder could be released as it is."""
        return not self.problems and self.is_version_enough

    @property
    def is_version_enough(self) -> bool:
        return not self.version_problem


def check_contracts(settings: Settings, only: str | None = None) -> list[ContractCheck]:
    """Return a check of every declared dataset, or of one; raises DatasetUnknown.

    Without the packages of the group `quality`, the standard's schema and Great Expectations' own checks are left out.
    """
    known = all_dataset_names(settings)
    misnamed = [ContractCheck(each.file.name, None, (str(each),)) for each in misnamed_folders(settings)]
    if only is not None and only not in (*known, *(each.dataset for each in misnamed)):
        raise DatasetUnknown(only, known)
    checks = [_checked(settings, name) for name in known if only in (None, name)]
    return [*checks, *(each for each in misnamed if only in (None, each.dataset))]


def _checked(settings: Settings, name: str) -> ContractCheck:
    if problems := dataset_problems(settings, name):
        return ContractCheck(name, None, tuple(map(str, problems)))
    if name in derived_names(settings):
        return _checked_derived(settings, name)
    not_checked = ""
    try:
        wrong = tuple(contract_problems(settings.datasets / name))
    except QualityNotInstalled as error:
        wrong, not_checked = (), _without(error)
    declared, published = declared_dataset(settings, name), find_publication(settings, name)
    fresh = declared.contract
    unread, registry = registry_check(settings, declared)
    wrong = (*wrong, *(error.what for error in reference_problems(settings, declared)), *unread)
    checked = ContractCheck(name, fresh.version, wrong)
    if not wrong and published is not None:
        base = released_dataset(settings, name, published.release).contract
        checked = compared_contract(name, published.release, base, fresh)
    return replace(checked, not_checked=not_checked, registry=registry)


def _without(error: QualityNotInstalled) -> str:
    return (
        f"not checked by the standard's schema and Great Expectations: {error.package} is not installed; {error.remedy}"
    )


def _checked_derived(settings: Settings, name: str) -> ContractCheck:
    from include.declare.touched_checks import unproven_expressions

    derived, not_checked = declared_derived(settings, name), list[str]()
    unproven = [f"{gold.name}.{each}" for gold in derived.pipeline.gold for each in unproven_expressions(gold)]
    if unproven:
        why = "the query does not show whether touched_by names the grains of a row"
        not_checked.append(f"{', '.join(unproven)}: {why}; headrace audit compares every row")
    wrong: tuple[str, ...] = ()
    try:
        wrong = tuple(rule_problems(as_dataset(derived).contract, Document(derived.folder / DERIVED)))
    except QualityNotInstalled as error:
        not_checked.append(_without(error))
    return ContractCheck(name, None, wrong, not_checked="; ".join(not_checked))


def compared_contract(name: str, release: str, base: Contract, fresh: Contract) -> ContractCheck:
    """Return how a contract differs from the one of a release, and whether its version is sufficient."""
    found = contract_changes(base, fresh)
    required = required_version(base, found)
    why = version_problem(base, fresh, found) or ""
    return ContractCheck(name, fresh.version, (), release, tuple(found), required, why)


def refuse_invalid_folder(settings: Settings, declared: Dataset, published: Contract) -> None:
    """Refuse a folder whose contract breaks its standard, a registered schema, or needs another version."""
    problems = [*_version(declared, published), *_standard(declared), *registry_check(settings, declared)[0]]
    if problems:
        what = f"{declared.name}: not valid: {'; '.join(problems)}; nothing was planned"
        remedy = f"headrace contract check --dataset {declared.name}"
        raise Terminal(what, remedy, code="folder-not-valid", problems=problems)


def _standard(declared: Dataset) -> list[str]:
    document = Document(declared.folder / "contract.yaml")
    with suppress(QualityNotInstalled):
        check_standard(document)
    return [str(problem) for problem in document.problems]


def _version(declared: Dataset, published: Contract) -> Iterator[str]:
    changes = contract_changes(published, declared.contract)
    if (why := version_problem(published, declared.contract, changes)) is not None:
        severe = (f"{each.kind}: {each.part} {each.why}" for each in changes if each.kind == changes[0].kind)
        yield f"{why} ({'; '.join(severe)})"
