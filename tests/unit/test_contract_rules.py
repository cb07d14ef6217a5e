"""Rules in a contract: what is refused at load and why, and how a changed contract is classified."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from include.change.contract_check import ContractCheck, contract_problems
from include.cli import folder as contract_command
from include.cli.main import app
from include.declare.contract import (
    ADDITIVE,
    BREAKING,
    COMPATIBLE,
    Column,
    Contract,
    ContractChange,
    contract_changes,
    is_version_enough,
    required_version,
)
from include.declare.contract_file import load_contract
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.optional_packages import QualityNotInstalled, import_optional
from include.ground.settings import CLONE, Settings, load_settings

GX = "great_expectations.expectations.registry"
FLIGHTS = CLONE / "include" / "datasets" / "flights"


def rule(expectation: str, action: str = "reject", name: str = "own_rule", **kwargs: Any) -> dict[str, Any]:
    return {
        "type": "custom",
        "engine": "greatExpectations",
        "name": name,
        "customProperties": [{"property": "action", "value": action}],
        "implementation": {"type": expectation, "kwargs": kwargs},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FLIGHTS, tmp_path / "datasets" / "flights"))


def edit(folder: Path, **schema: Any) -> Path:
    """Give the record of the contract other keys."""
    path = folder / "contract.yaml"
    declared = yaml.safe_load(path.read_text("utf-8"))
    declared["schema"][0] |= schema
    path.write_text(yaml.safe_dump(declared, sort_keys=False), "utf-8")
    return folder


def with_rule(folder: Path, declared: Mapping[str, Any]) -> Contract:
    return load_contract(edit(folder, quality=[dict(declared)]))


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "all rows are needed": (
        rule("expect_column_values_to_be_unique", column="carrier"),
        "implementation.type",
        "needs all rows",
    ),
    "Python for each record": (
        rule("expect_column_values_to_match_strftime_format", column="dest", strftime_format="%Y"),
        "implementation.type",
        "is Python for each record",
    ),
    "an aggregate": (
        rule("expect_column_mean_to_be_between", column="distance", min_value=1),
        "implementation.type",
        "needs all rows",
    ),
    "no such expectation": (
        rule("expect_column_values_to_shine", "warn", column="dest"),
        "implementation.type",
        "is not a known expectation",
    ),
    "no such column": (
        rule("expect_column_values_to_be_null", column="colour"),
        "kwargs.column",
        "is not a column",
    ),
    "another type": (
        rule("expect_column_values_to_match_regex", column="distance", regex="1"),
        "kwargs",
        "is for one type of string",
    ),
    "two types": (
        rule("expect_column_pair_values_to_be_equal", column_A="distance", column_B="dest"),
        "kwargs",
        "is for one type",
    ),
    "an argument of another type": (
        rule("expect_column_values_to_be_in_set", column="distance", value_set=["one"]),
        "kwargs.value_set",
        "must be of type integer",
    ),
    "no bounds": (
        rule("expect_column_values_to_be_between", column="distance"),
        "kwargs",
        "must have min_value",
    ),
    "bounds the wrong way round": (
        rule("expect_column_values_to_be_between", column="distance", min_value=2, max_value=1),
        "kwargs.min_value",
        "is greater than",
    ),
    "a time without a zone": (
        rule("expect_column_values_to_be_between", column="occurred_at", min_value="2013-01-01T00:00:00"),
        "kwargs.min_value",
        "must have a zone",
    ),
    "a condition as a text": (
        rule("expect_column_values_to_be_null", column="dest", row_condition="kind == 'departed'"),
        "kwargs.row_condition",
        "is a text of pandas or Spark",
    ),
    "a condition of another column": (
        rule(
            "expect_column_values_to_be_null",
            column="dest",
            row_condition={"type": "nullity", "column": {"name": "colour"}, "is_null": True},
        ),
        "row_condition.column.name",
        "is not a column",
    ),
    "half a rejection": (
        rule("expect_column_values_to_be_null", column="dest", mostly=0.5),
        "kwargs.mostly",
        "`reject` needs mostly: 1",
    ),
    "a strange argument": (
        rule("expect_column_values_to_be_null", column="dest", colour="red"),
        "kwargs.colour",
        "is not a known key",
    ),
    "a strange action": (
        rule("expect_column_values_to_be_null", "shout", column="dest"),
        "customProperties[0].value",
        "must be 'reject', 'warn', 'hold' or 'fail', is 'shout'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_rule_is_refused_with_the_reason(folder: Path, case: str) -> None:
    declared, place, why = REFUSED[case]
    with pytest.raises(DeclarationRefused) as refused:
        with_rule(folder, declared)
    (problem,) = refused.value.problems
    assert problem.key.endswith(place)
    assert why in problem.why


def test_rule_without_action_is_refused(folder: Path) -> None:
    declared = rule("expect_column_values_to_be_null", column="dest")
    del declared["customProperties"]
    with pytest.raises(DeclarationRefused) as refused:
        with_rule(folder, declared)
    assert "customProperties: is required and missing" in str(refused.value)


def test_two_rules_of_one_name_and_column_are_refused(folder: Path) -> None:
    twice = [rule("expect_column_values_to_be_null", column="dest")] * 2
    with pytest.raises(DeclarationRefused) as refused:
        load_contract(edit(folder, quality=twice))
    assert "quality[1].name: 'own_rule' occurs twice for dest" in str(refused.value)


@pytest.mark.parametrize(
    ("action", "expectation", "validates_records"),
    [
        ("reject", "expect_column_values_to_not_be_null", True),
        ("warn", "expect_column_values_to_not_be_null", True),
        ("hold", "expect_column_values_to_not_be_null", False),
        ("fail", "expect_column_values_to_not_be_null", False),
        ("warn", "expect_column_values_to_be_unique", False),
    ],
)
def test_action_decides_whether_a_rule_validates_records_or_tables(
    folder: Path, action: str, expectation: str, validates_records: bool
) -> None:
    contract = with_rule(folder, rule(expectation, action, column="tailnum"))
    (found,) = contract.rules
    assert found.validates_records is validates_records
    assert (found in contract.record_rules) is validates_records
    assert (found in contract.checks("silver.flights")) is not validates_records


def test_rules_may_belong_to_a_property_or_a_gold_table(folder: Path) -> None:
    path = folder / "contract.yaml"
    declared = yaml.safe_load(path.read_text("utf-8"))
    dest = next(p for p in declared["schema"][0]["properties"] if p["name"] == "dest")
    dest["quality"] = [rule("expect_column_value_lengths_to_equal", "warn", value=3)]
    declared["schema"][1].update({"quality": [rule("expect_table_row_count_to_equal", "hold", value=1)]})
    path.write_text(yaml.safe_dump(declared), "utf-8")
    contract = load_contract(folder)
    assert ("own_rule", ("dest",)) in [(r.name, r.columns) for r in contract.record_rules]
    assert [r.action for r in contract.checks("gold.route_days")] == ["hold"]


def test_implementation_may_be_text(folder: Path) -> None:
    declared = rule("expect_column_values_to_be_null", column="dest")
    declared["implementation"] = yaml.safe_dump(declared["implementation"])
    assert with_rule(folder, declared).rules[0].columns == ("dest",)


def test_latency_is_a_service_level(folder: Path) -> None:
    path = folder / "contract.yaml"
    declared = yaml.safe_load(path.read_text("utf-8"))
    declared["slaProperties"] = [
        {"property": "latency", "value": 5, "unit": "m"},
        {"property": "retention", "value": "3y"},
    ]
    path.write_text(yaml.safe_dump(declared), "utf-8")
    assert load_contract(folder).latency == 300.0


PRICE = Column("price", "number", required=True, minimum=Decimal(0), precision=7, scale=2)
KIND = Column("kind", "string", values=("a", "b"))
BASE = Contract("shop", "1.2.3", (PRICE, KIND), (), ("kind",))


def with_column(old: Column, **facts: Any) -> Contract:
    changed = replace(old, **facts)
    return replace(BASE, columns=tuple(changed if column == old else column for column in BASE.columns))


CHANGES: dict[str, tuple[Contract, str, str]] = {
    "nothing": (replace(BASE, version="9.9.9"), "", "1.2.3"),
    "a column removed": (replace(BASE, columns=(KIND,)), BREAKING, "2.0.0"),
    "an optional column": (replace(BASE, columns=(*BASE.columns, Column("x", "string"))), ADDITIVE, "1.3.0"),
    "a required column": (
        replace(BASE, columns=(*BASE.columns, Column("x", "string", required=True))),
        BREAKING,
        "2.0.0",
    ),
    "another type": (with_column(PRICE, type="integer"), BREAKING, "2.0.0"),
    "more decimals": (with_column(PRICE, scale=3), BREAKING, "2.0.0"),
    "more digits": (with_column(PRICE, precision=9), ADDITIVE, "1.3.0"),
    "fewer digits": (with_column(PRICE, precision=6), BREAKING, "2.0.0"),
    "more digits and decimals": (with_column(PRICE, precision=9, scale=3), BREAKING, "2.0.0"),
    "a renamed column": (with_column(PRICE, name="cost", physical_name="price"), BREAKING, "2.0.0"),
    "optional now": (with_column(PRICE, required=False), BREAKING, "2.0.0"),
    "required now": (with_column(KIND, required=True), BREAKING, "2.0.0"),
    "a higher minimum": (with_column(PRICE, minimum=Decimal(1)), BREAKING, "2.0.0"),
    "a lower minimum": (with_column(PRICE, minimum=Decimal(-1)), ADDITIVE, "1.3.0"),
    "no minimum": (with_column(PRICE, minimum=None), ADDITIVE, "1.3.0"),
    "a first maximum": (with_column(PRICE, maximum=Decimal(9)), BREAKING, "2.0.0"),
    "another value": (with_column(KIND, values=("a", "b", "c")), ADDITIVE, "1.3.0"),
    "a value less": (with_column(KIND, values=("a",)), BREAKING, "2.0.0"),
    "any value": (with_column(KIND, values=()), ADDITIVE, "1.3.0"),
    "a pattern": (with_column(KIND, pattern="^a$"), BREAKING, "2.0.0"),
    "a shorter text": (with_column(KIND, max_length=9), BREAKING, "2.0.0"),
    "another identity": (replace(BASE, identity=("price",)), BREAKING, "2.0.0"),
    "a promise": (replace(BASE, latency=60.0), COMPATIBLE, "1.2.4"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_change_has_a_kind_and_a_required_version(case: str) -> None:
    fresh, kind, version = CHANGES[case]
    found = contract_changes(BASE, fresh)
    assert [change.kind for change in found] == ([kind] if kind else [])
    assert required_version(BASE, found) == version
    assert is_version_enough(version, version)
    assert not found or not is_version_enough("1.2.3", version)


def test_changed_rule_is_classified_by_the_records_it_rejects(folder: Path) -> None:
    base = load_contract(edit(folder, quality=[]))
    warned = with_rule(folder, rule("expect_column_values_to_not_be_null", "warn", column="tailnum"))
    rejected = with_rule(folder, rule("expect_column_values_to_not_be_null", "reject", column="tailnum"))
    meanings = [
        (base, warned, COMPATIBLE),
        (warned, base, COMPATIBLE),
        (base, rejected, BREAKING),
        (warned, rejected, BREAKING),
        (rejected, base, ADDITIVE),
        (rejected, warned, ADDITIVE),
    ]
    for one, other, kind in meanings:
        assert [change.kind for change in contract_changes(one, other)] == [kind]


DATASETS = [path.parent for path in CLONE.glob("include/datasets/*/contract.yaml")]


@pytest.mark.parametrize("place", [*DATASETS, CLONE / "tests/recovery/datasets/meter"], ids=lambda place: place.name)
def test_shipped_contracts_conform_to_the_standard(place: Path) -> None:
    assert contract_problems(place) == []


def test_violation_of_the_standard_names_its_path(folder: Path) -> None:
    """Keys that our reader leaves to other tools are the standard's to check."""
    edit(folder, physicalName=17)
    (found,) = contract_problems(folder)
    name, number, problem = found.split(":", 2)
    assert "physicalName: 17" in Path(name).read_text("utf-8").splitlines()[int(number) - 1]
    assert problem == " schema[0].physicalName: 17 is not of type 'string'"


def test_arguments_refused_by_great_expectations_name_the_rule(folder: Path) -> None:
    declared = rule("expect_column_mean_to_be_between", "hold", column="distance", min_value="low")
    edit(folder, quality=[declared])
    (found,) = contract_problems(folder)
    name, number, problem = found.split(":", 2)
    assert problem.startswith(" schema[0].quality[0]: rule own_rule: expect_column_mean_to_be_between: ")
    assert "quality:" in Path(name).read_text("utf-8").splitlines()[int(number) - 2]


def test_contract_check_names_the_version_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = (ContractChange("tails", BREAKING, "removed"),)
    found = ContractCheck("trips", "1.0.0", (), "aaa", changes, "2.0.0", "version 1.0.0 must be 2.0.0 or later")
    monkeypatch.setattr(contract_command, "check_contracts", lambda *_: [found])
    shown = CliRunner().invoke(app, ["contract", "check"]).stdout
    assert shown.splitlines()[-1] == "  → version: 2.0.0 in trips/contract.yaml"


def test_contract_check_exits_1_for_a_wrong_contract(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DATASETS", str(folder.parent))
    monkeypatch.setenv("HEADRACE_STATE", str(folder.parent.parent / "state"))
    load_settings.cache_clear()
    try:
        assert CliRunner().invoke(app, ["contract", "check"]).exit_code == 0
        edit(folder, quality=[rule("expect_column_values_to_be_null", column="colour")])
        result = CliRunner().invoke(app, ["contract", "check"])
    finally:
        load_settings.cache_clear()
    assert result.exit_code == 1
    assert "is not a column of the contract" in result.output
    assert Settings.model_fields


def test_great_expectations_loads_in_a_process_without_a_script() -> None:
    """Spark's client for remote servers would end the process with exit code 0."""
    code = f"from include.ground.optional_packages import import_optional; import_optional('{GX}'); print('alive')"
    declared = subprocess.run([sys.executable, "-c", code], cwd=CLONE, check=True, capture_output=True, text=True)
    assert declared.stdout == "alive\n"


def test_missing_quality_packages_name_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "great_expectations", None)
    with pytest.raises(QualityNotInstalled) as refused:
        import_optional("great_expectations")
    assert 'make setup GROUPS="runtime quality"' in refused.value.remedy


def test_drivers_and_commands_do_not_load_great_expectations() -> None:
    jobs = ("stream_job", "slice_job", "shadow_job")
    modules = ["include.cli.main", *(f"spark_jobs.jobs.{job}" for job in jobs)]
    code = f"import sys, {', '.join(modules)}; sys.exit('great_expectations' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=CLONE, check=False).returncode == 0
