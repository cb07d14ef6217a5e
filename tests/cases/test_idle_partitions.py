"""A partition that goes quiet: gold on close closes without it, and a rebuild over larger runs gives the same rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from declared_gold import audited, meter_release, reading
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease

from include.read.publication import published_tables
from include.read.published_tables import RefreshState, stored_refresh_state
from spark_jobs.stream.upkeep import is_awaited

TABLES = """
  closed_hours:
    kind: additive
    window: {column: read_at, size: 1 hour, as: hour}
    keys: [device]
    refresh: on_close
    measures: {litres: {sum: litres}, readings: {count: "*"}}
  closed_visits:
    kind: additive
    session: {column: read_at, gap: 3 hours}
    keys: [device]
    refresh: on_close
    measures: {readings: {count: "*"}}
"""
DAY = 24 * 60
DAY_BEFORE = timedelta(days=1)


def meter(spark: SparkSession, folder: Path) -> SmallRelease:
    """Return a release whose lateness is a day and whose first partition is 0."""
    return meter_release(spark, folder, TABLES)


def read_in(partition: int, device: str, day: float) -> Record:
    return replace(reading(device, round(day * DAY), 1), partition=partition)


def state(release: SmallRelease, table: str) -> RefreshState:
    published = published_tables(release.settings)[f"gold.{table}"]
    return stored_refresh_state(published.path, published.version)


def content(release: SmallRelease, table: str) -> list[tuple[object, ...]]:
    found = release.read(f"gold.{table}")
    return sorted(found.select(name for name in found.columns if not name.startswith("_")).rows())


def bring(release: SmallRelease) -> list[int]:
    """Ingest the batches of a topic of which partition 1 goes quiet, wakes with old records, and then all is quiet."""
    release.ingest([read_in(0, "d1", 0), read_in(1, "d2", 0)])
    release.ingest([read_in(0, "d1", 10)])
    release.ingest_quiet(1)
    release.ingest([read_in(0, "d1", 20)])
    release.ingest([read_in(1, "d2", 1), read_in(0, "d1", 20.5)])
    release.ingest([read_in(1, "d2", 12), read_in(0, "d1", 30)])
    release.ingest_quiet(0, 1)
    return list(range(release.batches))


@pytest.fixture(scope="module")
def live(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Return a release that a stream refined batch by batch."""
    release = meter(spark, tmp_path_factory.mktemp("live"))
    for batch in bring(release):
        release.refine(batch, batch)
    return release


def test_windows_close_without_the_quiet_partition_and_late_rows_correct_them(live: SmallRelease) -> None:
    lateness = live.dataset.pipeline.lateness
    assert state(live, "closed_hours").watermark == max(state(live, "closed_hours").event_times.values()) - lateness
    devices = [row[1:] for row in content(live, "closed_hours")]
    assert devices == [("d1", 1, 1), ("d2", 1, 1), ("d2", 1, 1), ("d1", 1, 1), ("d2", 1, 1), ("d1", 1, 1), ("d1", 1, 1)]
    assert len(live.silver()) == 8, "the last one is within the lateness"


def test_what_is_published_balances(live: SmallRelease) -> None:
    assert [*audited(live, "closed_hours"), *audited(live, "closed_visits")] == []


def test_a_rebuild_over_larger_runs_has_the_same_watermark_and_rows(
    spark: SparkSession, tmp_path: Path, live: SmallRelease
) -> None:
    again = meter(spark, tmp_path)
    bring(again)
    runs = []
    while (bounds := again.release.next_run(again.batches - 1, most_rows=1_000)) is not None:
        again.refine(*bounds)
        runs.append(bounds)
    assert runs == [(0, 3), (4, 6)], "a run ends before the batch with which partition 1 wakes"
    for table in ("closed_hours", "closed_visits"):
        assert content(again, table) == content(live, table)
        assert state(again, table) == replace(state(live, table), since=state(again, table).since)


def test_an_idle_partition_is_awaited_only_while_it_would_close_something(spark: SparkSession, tmp_path: Path) -> None:
    release = meter(spark, tmp_path)
    release.take([read_in(0, "d1", 5), read_in(1, "d2", 0)])
    assert is_awaited(release.release, {1}, {0, 1})
    assert is_awaited(release.release, {0, 1}, {0, 1})
    assert not is_awaited(release.release, {0}, {0, 1}), "partition 1 holds it"
    assert not is_awaited(release.release, {1}, {0, 1, 2}), "partition 2 is awake and has no row"
    release.refine(number := release.ingest_quiet(1), number)
    assert not is_awaited(release.release, {1}, {0, 1})
    assert not is_awaited(release.release, {0, 1}, {0, 1})


def test_windows_of_a_table_that_every_run_refreshes_are_awaited_too(spark: SparkSession, tmp_path: Path) -> None:
    tables = TABLES.replace("    refresh: on_close\n", "")
    release = meter_release(spark, tmp_path, tables)
    release.take([read_in(0, "d1", 5), read_in(1, "d2", 0)])
    assert is_awaited(release.release, {1}, {0, 1})


@pytest.mark.extended
def test_an_awake_partition_without_rows_holds_the_watermark_in_each_division_into_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Partition 1 wakes with a record that is rejected; its first row, an old one, comes in the next batch."""
    batches = [
        [read_in(0, "d1", 10)],
        [read_in(0, "d1", 11), replace(read_in(1, "d2", 0), value=b"no JSON")],
        [read_in(1, "d2", 1)],
    ]
    found = []
    for name, runs in {"live": [(0, 0), (1, 1), (2, 2)], "again": [(0, 0), (1, 2)]}.items():
        release = meter(spark, tmp_path / name)
        for batch in batches:
            release.ingest(batch)
        for run in runs:
            release.refine(*run)
        reached = state(release, "closed_hours")
        found.append((reached.watermark, reached.event_times, content(release, "closed_hours")))
        assert reached.watermark == max(reached.event_times.values()) - release.dataset.pipeline.lateness - DAY_BEFORE
    assert found[0] == found[1]
