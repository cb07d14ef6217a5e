"""Declarations of changes: what a table takes from the pipeline, and what is refused with line and key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.declare.changes import ChangesGold, Operation
from include.declare.column_lineage import dataset_columns
from include.declare.dataset import declared_dataset, load_dataset
from include.declare.dataset_checks import dataset_problems
from include.ground.settings import Settings

ACCOUNTS = Path(__file__).parents[1] / "recovery" / "datasets" / "accounts"
TABLE = "columns: {owner: owner, balance: balance}"
CHANGES = "  sequence: [source.lsn]\n"
REFUSED: dict[tuple[str, str], tuple[str, str]] = {
    (TABLE, "scd: 3\n    columns: {owner: owner}"): ("gold.account_now.scd", "1 or 2"),
    (TABLE, "scd: 1"): ("gold.account_now.columns", "required and missing"),
    (TABLE, "columns: {owner: ownr}"): ("gold.account_now.columns.owner", "'ownr' is not a column"),
    (TABLE, "columns: {id: owner}"): ("gold.account_now.columns.id", "already a column"),
    (TABLE, "refresh: on_close\n    columns: {owner: owner}"): ("gold.account_now.refresh", "cannot be on_close"),
    (TABLE, "valid_by: changed\n    columns: {owner: owner}"): ("gold.account_now.valid_by", "'changed' is not a"),
    (TABLE, "keys: [number]\n    columns: {owner: owner}"): ("gold.account_now.keys[0]", "'number' is not a column"),
    ("nobody')\"", "nobody')\", valid_to: owner"): (
        "gold.account_versions.columns.valid_to",
        "which has valid_from, valid_to, is_current",
    ),
    ("    scd: 2", "    scd: 2\n    keys: [is_current]"): (
        "gold.account_versions.keys[0]",
        "has valid_from, valid_to, is_current of its own",
    ),
    ("delete: [d]", "delete: ['d;']"): ("gold.account_now.operation.delete[0]", "must be letters"),
    ("delete: [d]", "remove: [d]"): ("changes.operation.remove", "is not a known key"),
    ("column: op", "column: kind"): ("gold.account_now.operation.column", "'kind' is not a column"),
    ("[source.lsn]", "[origin.lsn]"): ("gold.account_now.sequence[0]", "'origin' is not a column"),
    (CHANGES, "  sequence: []\n"): ("gold.account_now.sequence", "at least one column"),
    (CHANGES, ""): ("gold.account_now.sequence", "at least one column"),
    ("keys: [id]", "keys: []"): ("gold.account_now.keys", "here or in `changes`"),
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a copy of the dataset."""
    shutil.copytree(ACCOUNTS, tmp_path / "datasets" / "accounts", ignore=shutil.ignore_patterns("__pycache__"))
    return Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")


def changed(settings: Settings, old: str, new: str) -> Iterator[tuple[str, str]]:
    path = settings.datasets / "accounts" / "pipeline.yaml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    return ((problem.key, problem.why) for problem in dataset_problems(settings, "accounts"))


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change[1].strip())
def test_wrong_declaration_is_refused_with_its_key(settings: Settings, change: tuple[str, str]) -> None:
    (key, words), found = REFUSED[change], list(changed(settings, *change))
    assert [why for at, why in found if at == key and words in why], found


def test_a_table_takes_what_it_does_not_say_from_all_changes(settings: Settings) -> None:
    own = "operation: {column: op, delete: [d, x], truncate: [t]}\n    sequence: [changed_at]\n    " + TABLE
    assert list(changed(settings, TABLE, own)) == []
    now, versions = declared_dataset(settings, "accounts").pipeline.gold
    assert isinstance(now, ChangesGold)
    assert isinstance(versions, ChangesGold)
    assert (now.keys, now.sequence, now.operation) == (("id",), ("changed_at",), Operation("op", ("d", "x"), ("t",)))
    assert (versions.sequence, versions.operation) == (("source.lsn",), Operation("op", ("d",), ("t",)))
    assert (versions.valid_by, now.required_columns) == ("changed_at", ())


def test_only_a_truncation_may_have_no_key(settings: Settings) -> None:
    found = dict(changed(settings, ", truncate: [t]", ""))
    assert "needs required: true" in found["schema[0].properties[4].required"]


def test_silver_must_keep_the_records_of_deleted_rows(settings: Settings) -> None:
    found = list(changed(settings, "partitions: 2", "partitions: 2\nretention: {silver: 100 days}"))
    assert "gold.account_now computes rows from silver again, so silver must keep all records" in [
        why for _, why in found
    ]


def test_lineage_leads_from_a_version_to_the_fields_that_decide(settings: Settings) -> None:
    known = dataset_columns(load_dataset("accounts", ACCOUNTS))
    owner = {(each.table, each.column) for each in known["gold.account_versions"].columns["owner"]}
    assert ("silver.accounts", "owner") in owner
    current = {each.column for each in known["gold.account_versions"].columns["is_current"]}
    assert "changed_at" in current


EMAIL = "      - {name: email,"
ENVELOPES: dict[tuple[str, str, str], tuple[str, str]] = {
    ("pipeline.yaml", "envelope: debezium", "envelope: maxwell"): ("envelope", "one of debezium, cloudevents"),
    ("pipeline.yaml", "  keys: [id]", "  keys: [number]"): ("gold.customers_now.keys[0]", "'number' is not a column"),
    **{
        (
            "contract.yaml",
            "    properties:",
            f"    customProperties: [{{property: format, value: {name}}}]\n    properties:",
        ): ("envelope", "no row lies in an envelope of debezium")
        for name in ("text", "csv")
    },
    ("contract.yaml", EMAIL, f"      - {{name: OP, logicalType: string, physicalName: /op}}\n{EMAIL}"): (
        "schema[0].properties[3].name",
        "{name: row_OP, physicalName: /op}",
    ),
    ("contract.yaml", EMAIL, f"      - {{name: op, logicalType: string}}\n{EMAIL}"): (
        "schema[0].properties[3].name",
        "name the row's otherwise: {name: row_op, physicalName: op}",
    ),
    ("contract.yaml", EMAIL, f"      - {{name: ts_ms, logicalType: integer, physicalName: /after/ts_ms}}\n{EMAIL}"): (
        "schema[0].properties[3].name",
        "{name: row_ts_ms, physicalName: /after/ts_ms}",
    ),
    ("contract.yaml", "required: true, primaryKey: true", "required: true"): ("schema[0].properties", "expected|(id)"),
}


@pytest.mark.parametrize("change", ENVELOPES, ids=lambda change: change[2].strip()[:60])
def test_wrong_envelope_is_refused_with_its_key(settings: Settings, change: tuple[str, str, str]) -> None:
    (file, old, new), (key, words) = change, ENVELOPES[change]
    folder = shutil.copytree(ACCOUNTS.with_name("customers"), settings.datasets / "customers")
    text = (folder / file).read_text("utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1), "utf-8")
    found = [(each.key, each.why) for each in dataset_problems(settings, "customers")]
    assert [why for at, why in found if at == key and any(word in why for word in words.split("|"))], found


def test_an_envelope_adds_columns_unless_the_contract_has_them(settings: Settings) -> None:
    folder = shutil.copytree(ACCOUNTS.with_name("customers"), settings.datasets / "customers")
    assert dataset_problems(settings, "customers") == []
    contract = declared_dataset(settings, "customers").contract
    places = {column.name: (column.member, column.required, column.absent_in) for column in contract.columns}
    assert places == {
        "op": ("op", True, ()),
        "sequence": ("/source/lsn", False, ()),
        "ts_ms": ("ts_ms", True, ()),
        "id": ("after.id", False, ("t",)),
        "first_name": ("after.first_name", False, ("d", "t")),
        "last_name": ("after.last_name", False, ("d", "t")),
        "email": ("after.email", False, ()),
        "credit": ("after.credit", False, ()),
        "from_snapshot": ("/source/snapshot", False, ()),
    }
    facts = "name: sequence, logicalType: string, physicalName: /source/gtid, required: true, primaryKey: true"
    own = f"      - {{{facts}}}\n      - {{name: email,"
    path = folder / "contract.yaml"
    path.write_text(path.read_text("utf-8").replace("      - {name: email,", own), "utf-8")
    found = [column for column in declared_dataset(settings, "customers").contract.columns if column.name == "sequence"]
    assert [column.member for column in found] == ["/source/gtid"]
