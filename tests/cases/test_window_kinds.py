"""Sliding windows, windows of a time zone, and gold by keys alone: stream, rebuild, patch and audit agree."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from declared_gold import MIDNIGHT, audited, meter_release, reading
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_release import SmallRelease

from include.declare.history_slice import BRONZE, Slice, Span

GOLD = """
  meter_slides:
    kind: additive
    window: {column: read_at, size: 10 minutes, slide: 5 minutes, as: since}
    keys: [device]
    measures: {litres: {sum: litres}, readings: {count: "*"}}
  meter_totals:
    kind: additive
    keys: [device]
    where: litres <> 4
    measures: {litres: {sum: litres}}
  meter_arrivals:
    kind: additive
    window: {column: _timestamp, size: 7 seconds, as: since}
    measures: {readings: {count: "*"}}
  meter_local_days:
    kind: query
    query: gold/local_days.sql
    window: {column: read_at, size: 1 day, offset: 4 hours, time_zone: America/New_York, as: day}
    keys: [device]
"""
LOCAL_DAYS = "select day, device, max(litres) as most, count(*) as readings from silver group by day, device"
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
# New York's day began at 04:00, which is 09:00 UTC.
NINE = 9 * 60


def double_litres(folder: Path) -> None:
    path = folder / "silver.py"
    path.write_text(
        path.read_text().replace("return acc", 'return accepted.withColumn("litres", accepted.litres * 2)#')
    )


@pytest.fixture(scope="module")
def release(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Return a release after two batches, of which the second has late readings for grains of the first."""
    release = meter_release(spark, tmp_path_factory.mktemp("windows"), GOLD, {"local_days.sql": LOCAL_DAYS})
    release.cut_gold()
    release.take([reading("d1", NINE - 1, 1), reading("d1", NINE, 2), reading("d2", NINE + 4, 4)])
    release.take([reading("d1", NINE + 5, 8), reading("d1", NINE - 2, 16), reading("d2", NINE + 24 * 60, 32)])
    return release


def sums(release: SmallRelease, table: str, *columns: str) -> list[tuple[object, ...]]:
    return release.read(f"gold.{table}").select(columns).sort(*columns[:2]).rows()


def test_reading_counts_in_each_window_that_slides_over_it(release: SmallRelease) -> None:
    found = {(device, (since - MIDNIGHT) // timedelta(minutes=1) - NINE): litres
             for device, since, litres in sums(release, "meter_slides", "device", "since", "litres")}  # fmt: skip
    assert {key: found[key] for key in found if key[0] == "d1"} == {
        ("d1", -10): 17,
        ("d1", -5): 19,
        ("d1", 0): 10,
        ("d1", 5): 8,
    }
    assert found[("d2", -5)] == found[("d2", 0)] == 4


def test_table_without_a_window_has_one_row_per_key_of_rows_with_its_condition(release: SmallRelease) -> None:
    assert sums(release, "meter_totals", "device", "litres") == [("d1", 27), ("d2", 32)]


def test_day_of_a_time_zone_begins_at_its_offset(release: SmallRelease) -> None:
    assert sums(release, "meter_local_days", "device", "day", "most", "readings") == [
        ("d1", date(2024, 2, 26), 16, 2),
        ("d1", date(2024, 2, 27), 8, 2),
        ("d2", date(2024, 2, 27), 4, 1),
        ("d2", date(2024, 2, 28), 32, 1),
    ]


def test_window_of_kafka_s_time_counts_by_arrival(release: SmallRelease) -> None:
    found = release.read("gold.meter_arrivals").sort("since")
    # Both batches came 7 seconds apart.
    assert found["readings"].to_list() == [3, 3]
    assert found["since"].diff()[1] == timedelta(seconds=7)


@pytest.mark.parametrize("table", ["meter_arrivals", "meter_slides", "meter_totals", "meter_local_days"])
def test_audit_recomputes_every_kind_of_window(release: SmallRelease, table: str) -> None:
    assert audited(release, table) == []


@pytest.mark.extended
def test_rebuilt_slice_is_equal_and_a_patch_corrects_every_window(release: SmallRelease, tmp_path: Path) -> None:
    patcher = SlicePatcher(release, tmp_path)
    _, _, differing = patcher.rebuild(WHOLE_HISTORY)
    assert not any(differing.values())
    before = sums(release, "meter_slides", "device", "since", "litres")
    patch, _, differing = patcher.rebuild(WHOLE_HISTORY, double_litres)
    assert {name: n for name, n in differing.items() if name.startswith("gold")} == {
        "gold.meter_arrivals": 0,
        "gold.meter_slides": 8,
        "gold.meter_totals": 2,
        "gold.meter_local_days": 4,
    }
    patcher.apply(patch)
    assert sums(release, "meter_slides", "device", "since", "litres") == [(*row[:2], 2 * row[2]) for row in before]
    assert sums(release, "meter_totals", "device", "litres") == [("d1", 50), ("d2", 72)]
    assert audited(release, "meter_local_days") == []
