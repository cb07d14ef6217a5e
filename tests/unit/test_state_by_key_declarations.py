"""Declarations of `last` and `fold` tables: the order that is completed, and what is refused with line and key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.declare.column_lineage import dataset_columns
from include.declare.dataset import declared_dataset
from include.declare.dataset_checks import dataset_problems
from include.declare.state_by_key import LastGold
from include.ground.settings import Settings

MACHINES = Path(__file__).parents[1] / "recovery" / "datasets" / "machines"
LAST = "gold.last_watts"
REFUSED: dict[tuple[str, str], tuple[str, str]] = {
    ("rows: 2", "partition: machine"): (f"{LAST}.rows", "from 1 to 10,000, is 0"),
    ("rows: 2", "rows: 0"): (f"{LAST}.rows", "from 1 to 10,000, is 0"),
    ("{max: watts}", "{max: watts / 2}"): (f"{LAST}.measures.most.max", "one of its `columns` (watts)"),
    ("{max: watts}", "{last: watts}"): (f"{LAST}.measures.most.last", "must be one of count,"),
    ("rows: 2", "rows: 2\n    order_by: [speed]"): (f"{LAST}.order_by[0]", "'speed' is not a column"),
    ("columns: {watts: watts}", "columns: {place: watts}"): (f"{LAST}.columns.place", "already a column"),
    ("keys: [machine, state]", "keys: [machine, place]"): (f"{LAST}.keys[1]", "the table has place of its own"),
    ("function: spells.py:spells", "partition: machine"): ("gold.spells.function", "required and missing"),
    ("spells.py:spells", "spells.py"): ("gold.spells.function", "must be like spells.py:spells"),
    ("spells.py:spells", "spells.py:spell"): ("gold.spells.function", "spells.py has no function spell"),
    ("spells.py:spells", "switches.sql"): ("gold.spells.returns", "is of a Python function"),
    ("function: switches.sql", "function: spells.py:spells"): ("gold.switches.returns", "the function makes"),
    ("columns: {state: state, at: at}", "columns: {machine: state}"): (
        "gold.switches.columns.machine",
        "another name than that of a key",
    ),
    ("columns: {state: state, at: at}", "columns: {state: stat, at: at}"): (
        "gold.switches.columns.state",
        "'stat' is not a column",
    ),
    ("within: 10 minutes", "within: always"): ("gold.recent_spells.within", "like '2 days'"),
    ("rows: 2", "rows: 2\n    refresh: on_close"): (f"{LAST}.refresh", "cannot be on_close"),
    ("rows: 2", "rows: 2\n    window: {column: at, size: 1 day, as: day}"): (f"{LAST}.window", "is not a known key"),
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a copy of the dataset."""
    shutil.copytree(MACHINES, tmp_path / "datasets" / "machines", ignore=shutil.ignore_patterns("__pycache__"))
    return Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")


def changed(settings: Settings, old: str, new: str) -> Iterator[tuple[str, str]]:
    path = settings.datasets / "machines" / "pipeline.yaml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    return ((problem.key, problem.why) for problem in dataset_problems(settings, "machines"))


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change[1].strip())
def test_wrong_declaration_is_refused_with_its_key(settings: Settings, change: tuple[str, str]) -> None:
    (key, words), found = REFUSED[change], list(changed(settings, *change))
    assert [why for at, why in found if at == key and words in why], found


def test_no_record_may_lack_a_key_and_the_table_is_named(settings: Settings) -> None:
    path = settings.datasets / "machines" / "contract.yaml"
    text = path.read_text("utf-8")
    path.write_text(
        text.replace("name: machine, logicalType: string, required: true", "name: machine, logicalType: string")
    )
    (problem,) = dataset_problems(settings, "machines")
    assert problem.why.startswith("machine is a time or a key of gold.")


def test_the_order_is_completed_by_event_time_and_identity(settings: Settings) -> None:
    assert dataset_problems(settings, "machines") == []
    reports, watts = declared_dataset(settings, "machines").pipeline.gold[:2]
    assert reports.order_by == watts.order_by == ("at", "event_id")
    assert reports.row_columns == ("machine", "place")


def test_each_column_of_the_order_is_kept_under_a_name_of_its_own() -> None:
    reports = LastGold("last", order_by=("_offset", "offset", "at", "_partition"))
    assert reports.deciding_columns == [
        ("_offset", "_by_offset"),
        ("offset", "_by_offset_column"),
        ("at", "_by_at"),
        ("_partition", "_by_partition"),
    ]


def test_lineage_of_a_measure_leads_through_the_column_that_it_is_of(settings: Settings) -> None:
    columns = dataset_columns(declared_dataset(settings, "machines"))["gold.last_reports"].columns
    assert {origin.column for origin in columns["exact_average"]} >= {"watts"}


def test_lineage_of_a_function_leads_to_all_that_it_reads(settings: Settings) -> None:
    columns = dataset_columns(declared_dataset(settings, "machines"))
    assert {origin.column for origin in columns["gold.spells"].columns["peak"]} == {"at", "state", "watts"}
    assert {origin.column for origin in columns["gold.switches"].columns["at"]} == {"at"}


def test_silver_must_keep_what_a_function_reads_again(settings: Settings) -> None:
    found = changed(settings, "partitions: 2", "partitions: 2\nretention: {silver: 100 days}")
    assert any("gold.spells computes rows from silver again" in why for _, why in found)
