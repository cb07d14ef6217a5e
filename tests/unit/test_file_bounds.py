"""A commit's rows and bounds against the footer of its file."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from include.audit.files import contradiction
from include.ground.delta_log import add_actions

AT = datetime(2026, 3, 1, 9, 30, 0, 123456, tzinfo=UTC)
VALUES: dict[str, list[Any]] = {
    "text": ["north" * 40, "söuth" * 40, None],
    "number": [1, -5, 7],
    "price": [Decimal("1.50"), Decimal("-2.25"), None],
    "share": [0.5, float("nan"), -1.0],
    "day": [date(2026, 3, 1), date(1, 1, 1), date(9999, 12, 31)],
    "at": [AT, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    "flag": [True, False, None],
    "payload": [b"\xff" * 80, b"", None],
    "nothing": pa.array([None, None, None], pa.string()),
}


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a data file and its add action."""
    folder = tmp_path_factory.mktemp("table")
    write_deltalake(folder, pa.table(VALUES))
    (action,) = add_actions(DeltaTable(folder)).to_pylist()
    return folder / action["path"], action


def test_commit_does_not_contradict_the_file_that_it_added(committed: tuple[Path, dict[str, Any]]) -> None:
    assert contradiction(*committed) is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"num_records": 2}, "has 3 rows, 2 were committed"),
        ({"min.number": -4}, "has number -5, -4 was committed as the least"),
        ({"max.number": 6}, "has number 7, 6 was committed as the greatest"),
        ({"max.text": "north"}, "was committed as the greatest"),
        ({"min.price": Decimal("-2.24")}, "has price -2.25"),
        ({"max.at": AT}, "has at 9999-12-31"),
        ({"min.day": date(1, 1, 2)}, "has day 0001-01-01"),
    ],
)
def test_rows_or_bounds_that_differ_are_named(
    committed: tuple[Path, dict[str, Any]], changed: dict[str, Any], named: str
) -> None:
    path, action = committed
    assert set(changed) <= set(action)
    assert named in (contradiction(path, {**action, **changed}) or "")


def test_values_after_the_calendar_of_python_are_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "far.parquet"
    with duckdb.connect() as database:
        far = "make_timestamptz(1764000000000000000) as at, date '20000-01-01' as day, 1 as number"
        database.execute(f"copy (select {far}) to '{file}'")
    assert contradiction(file, {"num_records": 1, "min.at": AT, "min.day": date(1, 1, 1), "min.number": 1}) is None
    assert contradiction(file, {"num_records": 1, "min.at": AT, "min.number": 2}) is not None


def test_wider_bounds_and_beginnings_of_texts_are_right(committed: tuple[Path, dict[str, Any]]) -> None:
    path, action = committed
    wider = {"min.number": -9, "max.number": 99, "min.text": "north" * 4, "max.text": "söuth" * 4, "min.at": None}
    assert contradiction(path, {**action, **wider}) is None
