"""Golden cases of additive gold over decimals: sums, means and extremes are exact over any number of batches."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from batch_snapshots import BatchSnapshots, TakeBatches
from small_events import observation
from small_release import Record

BATCHES: list[list[Record]] = [
    [
        observation("2013-02-01T00", temp="10.00", precip="0.01", visib="2.99"),
        observation("2013-02-01T01", temp="10.01", precip="0.02", visib="3"),
        observation("2013-02-02T00", temp="null", precip="null", visib="null", wind_speed="null"),
    ],
    [
        observation("2013-02-01T02", temp="10.01", precip="0.10", visib="0"),
        observation("2013-02-01T03", temp="null", wind_speed="11.50"),
        observation("2013-02-03T00", temp="-0.0", precip="0"),
    ],
    [observation("2013-02-01T04", temp="-3.33", precip="7.77"), observation("2013-02-01T00", temp="99", precip="1")],
]
# batch → observations, coldest, warmest, mean_temp, rain, strongest_wind, poor_visibility of February 1st
FEBRUARY_1 = {
    0: (2, "10.00", "10.01", "10.005", "0.03", None, 1),
    1: (4, "10.00", "10.01", "10.006667", "0.13", "11.50", 2),
    2: (5, "-3.33", "10.01", "6.6725", "7.90", "11.50", 2),
}
NAMES = ["observations", "coldest", "warmest", "mean_temp", "rain", "strongest_wind", "poor_visibility"]


@pytest.fixture(scope="module")
def snapshots(take_batches: TakeBatches) -> BatchSnapshots:
    return take_batches("weather", BATCHES)


def day(snapshots: BatchSnapshots, batch: int, date: str) -> dict[str, Any]:
    rows = [row for row in snapshots.after(batch, "gold.weather_days").to_dicts() if row["day"].isoformat() == date]
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("batch", FEBRUARY_1)
def test_decimal_measures_are_exact(snapshots: BatchSnapshots, batch: int) -> None:
    row = day(snapshots, batch, "2013-02-01")
    found = tuple(row[name] for name in NAMES)
    expected = tuple(Decimal(value) if isinstance(value, str) else value for value in FEBRUARY_1[batch])
    mean, expected_mean = found[3], expected[3]
    assert abs(mean - expected_mean) < Decimal("0.000001")
    assert found[:3] + found[4:] == expected[:3] + expected[4:]


def test_sum_and_mean_without_values_are_null(snapshots: BatchSnapshots) -> None:
    row = day(snapshots, 0, "2013-02-02")
    assert [row[name] for name in NAMES] == [1, None, None, None, None, None, 0]


def test_zero_is_not_null(snapshots: BatchSnapshots) -> None:
    row = day(snapshots, 1, "2013-02-03")
    assert [row[name] for name in ("coldest", "mean_temp", "rain")] == [0, 0, 0]


def test_decimal_types_do_not_widen(snapshots: BatchSnapshots) -> None:
    """Spark widens decimals when it merges measures; the written columns keep their types."""
    created = snapshots.release.release.gold[0].table.spec.schema
    declared = {field.name: field.dataType.simpleString() for field in created}
    assert declared["rain"] == "decimal(17,2)"
    for batch in FEBRUARY_1:
        schema = snapshots.after(batch, "gold.weather_days").schema
        for name in ("coldest", "warmest", "rain", "strongest_wind", "mean_temp"):
            precision, scale = declared[name].removeprefix("decimal(").removesuffix(")").split(",")
            assert schema[name].is_decimal()
            assert (schema[name].precision, schema[name].scale) == (int(precision), int(scale))  # type: ignore[attr-defined]


def test_duplicate_is_not_aggregated(snapshots: BatchSnapshots) -> None:
    assert snapshots.after(2, "rejected.weather").height == 1
