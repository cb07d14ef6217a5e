"""Declarations of `last` tables: the order that is completed, and what is refused with line and key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.declare.column_lineage import dataset_columns
from include.declare.dataset import declared_dataset
from include.declare.dataset_checks import dataset_problems
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


def test_the_order_is_completed_by_event_time_and_identity(settings: Settings) -> None:
    assert dataset_problems(settings, "machines") == []
    reports, watts = declared_dataset(settings, "machines").pipeline.gold[:2]
    assert reports.order_by == watts.order_by == ("at", "event_id")
    assert reports.row_columns == ("machine", "place")


def test_lineage_of_a_measure_leads_through_the_column_that_it_is_of(settings: Settings) -> None:
    columns = dataset_columns(declared_dataset(settings, "machines"))["gold.last_reports"].columns
    assert {origin.column for origin in columns["exact_average"]} >= {"watts"}
