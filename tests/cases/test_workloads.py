"""Gold tables of the workloads equal their oracles, in whatever order and batches the records arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from zlib import crc32

import polars as pl
import pytest
from declared_gold import audited
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_release import Record, SmallRelease, small_release
from workloads.oracle_rows import differing_rows
from workloads.registry import DATASETS, GENERATED, WORKLOADS
from workloads.search_events import injected

from include.declare.gold import full_name
from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings

# Joined tables; sessions and sliding windows. test_parity.py and test_children.py have oracles of other kinds too.
SOME = ("ad_events", "posts")
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])


def sample(name: str) -> pl.DataFrame:
    """Return about 1,500 events of a feed; of searches some hours of the week, one with an injected anomaly."""
    events = WORKLOADS[name].feed.frame(timedelta(0))
    if name != "searches":
        return events.head(1500)
    hour = pl.col("occurred_at").dt.truncate("1h")
    of_week = [injected()[0].hour + timedelta(weeks=n, hours=h) for n in (-2, -1, 0) for h in (0, 1)]
    return events.filter(hour.is_in(of_week))


def arriving(events: pl.DataFrame, batches: int, seed: int) -> list[list[Record]]:
    """Return the events shuffled into batches, some of them twice."""
    numbers = random.Random(seed)
    rows = [*events.rows(named=True), *events.sample(30, seed=seed).rows(named=True)]
    numbers.shuffle(rows)
    records = [Record(row["value"], row["key"], crc32(row["key"]) % 2) for row in rows]
    size = -(-len(records) // batches)
    return [records[first : first + size] for first in range(0, len(records), size)]


def taken(
    spark: SparkSession, folder: Path, name: str, batches: Sequence[Sequence[Record]], backend: str = "local"
) -> SmallRelease:
    release = small_release(spark, Settings(state=folder, datasets=DATASETS, backend=backend), name)
    for records in batches:
        release.take(records)
    release.refresh(now=1e10)
    return release


def published(release: SmallRelease, table: str) -> pl.DataFrame:
    rows = release.read(full_name(table))
    return rows.select(name for name in rows.columns if not name.startswith("_"))


def assert_equal_to_oracle(release: SmallRelease, events: pl.DataFrame) -> None:
    expected = WORKLOADS[release.dataset.name].expected(events["value"])
    assert list(expected) == [gold.name for gold in release.dataset.pipeline.gold]
    for table, rows in expected.items():
        assert rows, table
        missing, surplus = differing_rows(rows, published(release, table).to_dicts())
        assert (missing[:2], surplus[:2]) == ([], []), table


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.extended] * (name not in SOME)) for name in GENERATED]
)
def test_shuffled_records_give_the_rows_of_the_oracle(name: str, spark: SparkSession, tmp_path: Path) -> None:
    events = sample(name)
    release = taken(spark, tmp_path / "state", name, arriving(events, 2, seed=1))
    assert_equal_to_oracle(release, events)


@pytest.mark.extended
@pytest.mark.parametrize("name", GENERATED)
def test_rebuild_and_audit_agree_with_the_stream(name: str, spark: SparkSession, tmp_path: Path) -> None:
    release = taken(spark, tmp_path / "state", name, arriving(sample(name), 3, seed=2))
    _, _, differing = SlicePatcher(release, tmp_path).rebuild(WHOLE_HISTORY)
    assert not any(differing.values())
    if name == "ad_events":
        assert [audited(release, gold.name) for gold in release.dataset.pipeline.gold] == [[], [], []]


@pytest.mark.extended
@pytest.mark.parametrize("name", ["bank_accounts", "bank_tellers", "bank_history"])
def test_executors_compute_the_rows_of_the_oracle(name: str, spark: SparkSession, tmp_path: Path) -> None:
    events = sample(name)
    assert_equal_to_oracle(taken(spark, tmp_path / "state", name, arriving(events, 2, seed=3), "spark"), events)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["posts", "bank_accounts", "bank_tellers", "bank_history"])
def test_ten_orders_of_arrival_give_equal_bytes(name: str, spark: SparkSession, tmp_path: Path) -> None:
    events, found = sample(name), list[list[bytes]]()
    for seed in range(10):
        release = taken(spark, tmp_path / f"state {seed}", name, arriving(events, 1 + seed % 4, seed))
        tables = [published(release, gold.name) for gold in release.dataset.pipeline.gold]
        found.append([table.sort(table.columns).write_ipc(None).getvalue() for table in tables])
    assert all(each == found[0] for each in found)
