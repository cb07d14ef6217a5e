"""Releases in which a column gets a wider type: plan, comparison, promotion, rollback; the stream goes on each time."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import joint_site
import pytest
from error_codes import raises
from joint_site import CONTRACT, HOURS, NOON, JointSite
from pyspark.sql import SparkSession
from rich.console import Console
from small_release import Record, SmallRelease

from include.change.stages import cancel, confirm, roll_back
from include.cli.terminal import show_comparison
from include.declare import contract_columns
from include.declare.contract import WIDER
from include.declare.contract_types import default_type
from include.declare.dataset import released_dataset
from include.ground.errors import Terminal
from include.observe.progress import is_outdated
from include.plans.journal import load_comparison
from include.plans.plan import PlanRecord, Stage
from include.read.publication import read_publication

HUGE = 3_000_000_000
BIGINT = "logicalType: integer, physicalType: bigint"
DECIMAL = "logicalType: number, physicalType: 'decimal({},2)'"
INTEGERS, DECIMALS = "int → bigint", "decimal(9,2) → decimal(18,2)"
WIDENED = {
    INTEGERS: ("logicalType: integer", BIGINT, HUGE),
    DECIMALS: (DECIMAL.format(9), DECIMAL.format(18), 12_345_678_901.25),
}


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JointSite:
    return joint_site.joint_site(spark, tmp_path, monkeypatch)


def declare(site: JointSite, column: str, version: str = "1.0.0") -> None:
    """Declare taps with another last column."""
    site.declare_taps("select('*')")
    *lines, _ = CONTRACT.replace("version: 1.0.0", f"version: {version}").splitlines()
    site.write("taps/contract.yaml", "\n".join([*lines, f"      - {{name: n, required: true, {column}}}", ""]))


def tap(number: int, n: Any) -> Record:
    at = f"{NOON + timedelta(minutes=number):%Y-%m-%dT%H:%M:%SZ}"
    return Record(json.dumps({"id": f"t{number}", "station": "a", "at": at, "n": n}).encode())


def resumed(site: JointSite, stream: SmallRelease) -> SmallRelease:
    """Return the published release as the next process of the stream opens it."""
    dataset = released_dataset(site.settings, "taps", read_publication(site.settings, "taps").release)
    return SmallRelease(site.spark, site.settings, dataset, stream.epoch, stream.ends, stream.batches)


def comparison_text(site: JointSite, record: PlanRecord) -> str:
    """Return the comparison as the terminal prints it; every row of silver and gold that both have is equal."""
    found = load_comparison(site.settings, record.plan.id)
    assert found is not None
    assert {table.name: (table.changed, table.old_rows) for table in found.tables if "rejected" not in table.name} == {
        "silver.taps": (0, 1),
        "gold.taps_last": (0, 1),
    }
    console = Console(file=StringIO(), width=300)
    show_comparison(console, found, details=True)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.extended
def test_release_of_an_earlier_version_keeps_its_types_until_the_folder_is_released(
    site: JointSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(site, BIGINT)
    with monkeypatch.context() as earlier:
        # Which ignored physicalType.
        earlier.setattr(contract_columns, "declared_type", lambda logical, *_: (default_type(logical), {}))
        stream = site.source()
        stream.take([tap(1, 7), tap(2, HUGE)])
    assert is_outdated(site.settings, "taps", stream.dataset.release)

    stream = resumed(site, stream)
    stream.take([tap(3, 8), tap(4, HUGE)])
    assert stream.silver()["n"].to_list() == [7, 8]
    assert [row[0]["rule"] for row in stream.rejected()["reasons"]] == ["out_of_range", "out_of_range"]

    with raises(Terminal, "folder-not-valid", match=r"must be 1\.1\.0 or later .*n type widened int → bigint"):
        site.plan("taps")
    declare(site, BIGINT, "1.1.0")
    record = site.plan("taps")
    assert [change.why for change in record.plan.changes] == [
        f"contract, additive: n type widened int → bigint: {WIDER}"
    ]
    record = site.run(record)
    assert read_publication(site.settings, "taps").release == record.plan.release
    stream = resumed(site, stream)
    stream.take([tap(5, -HUGE)])
    assert stream.silver()["n"].to_list() == [7, HUGE, 8, HUGE, -HUGE]
    assert not is_outdated(site.settings, "taps", record.plan.release)
    with raises(Terminal, "nothing-to-release"):
        site.plan("taps")


@pytest.mark.parametrize("types", [INTEGERS, pytest.param(DECIMALS, marks=pytest.mark.extended)])
def test_widened_column_is_compared_promoted_and_rolled_back(site: JointSite, types: str) -> None:
    old, new, large = WIDENED[types]
    declare(site, old)
    base = site.source()
    base.take([tap(1, large), tap(2, 7)])
    declare(site, new, "1.1.0")

    record = site.run(site.plan("taps"), Stage.COMPARED)
    assert f"type widened {types}" in comparison_text(site, record)
    record = site.run(record)
    assert confirm(site.settings, record).result == "published"
    exact = Decimal(str(large))
    assert [Decimal(str(n)) for n in base.silver()["n"]] == [exact, 7]
    assert base.rejected().height == 0

    roll_back(site.settings, record, "ann")
    base.restart()
    base.take([tap(3, large)])
    assert ([*map(int, base.silver()["n"])], base.rejected().height) == ([7], 2)
    assert [int(n) for n in base.read("gold.taps_last")["n"]] == [7]


def test_derived_dataset_over_a_widened_source_is_named_and_released_with_it(site: JointSite) -> None:
    declare(site, "logicalType: integer")
    site.write("taps_hours/derived.yaml", HOURS)
    query = "select date_trunc('hour', at) as hour, station, max(n) as most, count(n) as taps from taps group by 1, 2\n"
    site.write("taps_hours/gold/taps_hours.sql", query)
    source = site.source()
    source.take([tap(1, 7), tap(2, HUGE)])
    site.follow("taps_hours")
    declare(site, BIGINT, "1.1.0")

    held = site.run(site.plan("taps"), Stage.COMPARED)
    with raises(
        Terminal, "dependants-break", match=r"most would become bigint, is int: .* cast\(… as bigint\)"
    ) as broken:
        site.run(held)
    assert "--with taps_hours" in broken.value.remedy
    cancel(site.settings, held, "ann")

    with raises(Terminal, "member-refused", match="published already"):
        site.plan("taps", "taps_hours")
    site.write("taps_hours/gold/taps_hours.sql", query.replace("max(n)", "cast(max(n) as bigint)"))
    record = site.run(site.plan("taps", "taps_hours"))
    assert confirm(site.settings, record).result == "published"
    source = resumed(site, source)
    source.take([tap(3, -HUGE)])
    site.follow("taps_hours")
    assert [(row["most"], row["taps"]) for row in site.rows("gold.taps_hours")] == [(HUGE, 3)]


@pytest.mark.extended
def test_derived_dataset_whose_types_stay_goes_on_over_a_widened_source(site: JointSite) -> None:
    declare(site, "logicalType: integer")
    site.write("taps_hours/derived.yaml", HOURS)
    query = "select date_trunc('hour', at) as hour, station, sum(n) as total from taps group by 1, 2\n"
    site.write("taps_hours/gold/taps_hours.sql", query)
    source = site.source()
    source.take([tap(1, 7), tap(2, HUGE)])
    site.follow("taps_hours")
    declare(site, BIGINT, "1.1.0")

    record = site.run(site.plan("taps"))
    comparison = load_comparison(site.settings, record.plan.id)
    assert comparison is not None
    assert [(effect.reader, effect.faults) for effect in comparison.dependants] == [("taps_hours", [])]
    resumed(site, source).take([tap(3, HUGE)])
    site.follow("taps_hours")
    assert [row["total"] for row in site.rows("gold.taps_hours")] == [2 * HUGE + 7]
