"""A snapshot keeps the types of its columns: as it recorded them, or as earlier versions read the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.declare.contract_file import TYPES_FILE, has_earlier_types
from include.declare.dataset import content_hash, declared_dataset, released_dataset, snapshot_dataset
from include.declare.release_diff import release_changes
from include.ground.paths import snapshot_path
from include.ground.settings import Settings
from include.observe.progress import is_outdated
from tests.unit.test_audit_balance import sales_settings

AMOUNT = 'logicalType: number, physicalType: "decimal(7,2)"'
TYPES = {
    "logicalType: integer, physicalType: bigint": ("int", "bigint"),
    "logicalType: integer, physicalType: varint": ("int", "int"),
    "logicalType: number, physicalType: double": ("decimal(18,6)", "double"),
    "logicalType: number, physicalType: 'numeric(9,2)'": ("decimal(18,6)", "decimal(9,2)"),
    "logicalType: number, physicalType: 'decimal(9, 2)'": ("decimal(9,2)", "decimal(9,2)"),
    "logicalType: number": ("decimal(18,6)", "decimal(18,6)"),
    "logicalType: string, physicalType: date": ("string", "string"),
    "logicalType: string, physicalType: uuid": ("string", "uuid"),
    "logicalType: string, logicalTypeOptions: {format: uuid}": ("string", "uuid"),
    "logicalType: date": ("date", "date"),
}
REFUSED = {"logicalType: integer, physicalType: varint", "logicalType: string, physicalType: date"}
"""By this version; earlier ones accepted every name."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = sales_settings(tmp_path)
    (made.datasets / "sales" / "silver.py").write_text("def silver(accepted):\n    return accepted\n")
    return made


def declare(settings: Settings, amount: str) -> None:
    contract = settings.datasets / "sales" / "contract.yaml"
    pipeline = settings.datasets / "sales" / "pipeline.yaml"
    contract.write_text(contract.read_text().replace(AMOUNT, amount))
    pipeline.write_text(pipeline.read_text().replace("turnover: {sum: amount}", "turnover: {count: amount}"))


def earlier_snapshot(settings: Settings) -> str:
    """Copy the folder as an earlier version did, which recorded no types; return the release."""
    folder = settings.datasets / "sales"
    release = content_hash(folder)
    place = snapshot_path(settings, "sales", release)
    place.mkdir(parents=True)
    for file in folder.glob("*.*"):
        (place / file.name).write_bytes(file.read_bytes())
    return release


def amount_of(settings: Settings, release: str) -> str:
    return released_dataset(settings, "sales", release).contract.types["amount"]


@pytest.mark.parametrize("declared", TYPES)
def test_snapshot_of_an_earlier_version_has_the_types_that_it_read(settings: Settings, declared: str) -> None:
    declare(settings, declared)
    earlier, now = TYPES[declared]
    release = earlier_snapshot(settings)
    assert amount_of(settings, release) == earlier
    assert has_earlier_types(snapshot_path(settings, "sales", release)) == (earlier != now)
    assert is_outdated(settings, "sales", release) == (earlier != now)


@pytest.mark.parametrize("declared", [each for each in TYPES if each not in REFUSED])
def test_new_snapshot_records_types_that_earlier_versions_read_otherwise(settings: Settings, declared: str) -> None:
    declare(settings, declared)
    earlier, now = TYPES[declared]
    base, fresh = earlier_snapshot(settings), snapshot_dataset(settings, "sales")
    assert fresh.contract.types["amount"] == amount_of(settings, fresh.release) == now
    assert (fresh.folder / TYPES_FILE).is_file() == (earlier != now) == (fresh.release != base)
    assert not is_outdated(settings, "sales", fresh.release)
    changes = [change.why for change in release_changes(released_dataset(settings, "sales", base), fresh)]
    assert [f"{earlier} → {now}" in why for why in changes] == ([True] if earlier != now else [])
    assert fresh.code == declared_dataset(settings, "sales").code
