"""Joins of topics and gold of gold equal their oracles, in whatever order the records of both topics arrive."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from pathlib import Path
from zlib import crc32

import polars as pl
import pytest
from held_lease import HeldLease
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release
from workloads.checks import derived_freshness, derived_runs
from workloads.oracle_rows import differing_rows
from workloads.registry import DATASETS, DERIVED, FEEDS

from include.declare.derived_dataset import snapshot_derived
from include.ground.settings import Settings
from include.read.publication import read_publication
from include.read.published_tables import pinned
from spark_jobs.jobs.audit_job import recomputed_tables
from spark_jobs.stream.derived import DerivedRelease

EVENTS = 900


def shuffled(events: pl.DataFrame, batches: int, seed: int) -> list[list[Record]]:
    """Return the events in any order, in batches."""
    rows = events.rows(named=True)
    random.Random(seed).shuffle(rows)
    records = [Record(row["value"], row["key"], crc32(row["key"]) % 2) for row in rows]
    size = -(-len(records) // batches)
    return [records[first : first + size] for first in range(0, len(records), size)]


def follow(spark: SparkSession, settings: Settings, name: str) -> None:
    """Execute the runs of a derived dataset as a new process does."""
    release = DerivedRelease(settings, snapshot_derived(settings, name), spark, HeldLease())
    while not release.missing_sources() and (run := release.next_run()) is not None:
        release.execute(run)


def assert_equal_to_oracle(settings: Settings, name: str, events: dict[str, pl.DataFrame]) -> None:
    expected = DERIVED[name].expected({feed: frame["value"] for feed, frame in events.items()})
    for table, rows in expected.items():
        found = pinned(settings).read(f"gold.{table}").collect()
        shown = found.select(column for column in found.columns if not column.startswith("_")).to_dicts()
        missing, surplus = differing_rows(rows, shown)
        assert (missing[:2], surplus[:2], bool(rows)) == ([], [], True), table


def followed(spark: SparkSession, folder: Path, names: tuple[str, ...], batches: int, seed: int) -> Settings:
    """Let the records of the feeds arrive shuffled, batch by batch, and each derived dataset follow; compare."""
    settings = Settings(state=folder, datasets=DATASETS)
    events = {feed.name: feed.frame(timedelta(0)).head(EVENTS) for feed in DERIVED[names[0]].feeds}
    releases: dict[str, SmallRelease] = {feed: small_release(spark, settings, feed) for feed in events}
    arriving = {feed: shuffled(frame, batches, seed) for feed, frame in events.items()}
    for number in range(batches):
        for feed, release in releases.items():
            release.take(arriving[feed][number])
        for name in names:
            follow(spark, settings, name)
    for name in names:
        assert_equal_to_oracle(settings, name, events)
        found = recomputed_tables(settings, spark, read_publication(settings, name))
        assert [(each["missing"], each["surplus"]) for each in found.values()] == [(0, 0)] * len(found)
    return settings


@pytest.mark.extended
def test_lines_and_orders_in_any_order_give_the_revenue_of_the_oracle(spark: SparkSession, tmp_path: Path) -> None:
    settings = followed(spark, tmp_path / "state", ("order_revenue", "customer_revenue"), 2, seed=1)
    runs = derived_runs(settings, "customer_revenue")
    assert [used for _, used in runs.values()] == [
        {"order_revenue": number, "orders": number, "lineitem": number} for number in (0, 1)
    ]
    rows = [pinned(settings).read(f"bronze.{feed}").collect() for feed in ("orders", "lineitem")]
    times = [(row["timestamp"].timestamp(), row["_batch_id"]) for frame in rows for row in frame.to_dicts()]
    waited = sorted(runs[batch][0] / 1000 - at for at, batch in times)
    longest = waited[math.ceil(0.95 * (len(waited) - 1))]
    assert derived_freshness(settings, "customer_revenue") == pytest.approx(longest, abs=0.002)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(5))
def test_every_derived_workload_equals_its_oracle_for_other_orders(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    followed(spark, tmp_path / "orders", ("order_revenue", "customer_revenue"), 1 + seed, seed)
    followed(spark, tmp_path / "auction", ("auction_prices",), 1 + seed % 3, seed)
    followed(spark, tmp_path / "bank", ("bank",), 1 + seed % 3, seed)


def test_all_derived_workloads_are_declared() -> None:
    assert set(DERIVED) == {path.parent.name for path in DATASETS.glob("*/derived.yaml")}
    assert set(FEEDS) >= {feed.name for derived in DERIVED.values() for feed in derived.feeds}
