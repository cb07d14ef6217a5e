"""Gold of kinds `last` and `fold` over the items of orders, and refreshed after an interval: plain Python's rows."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from compactable_release import assert_same_rows, head_rows
from dealt_events import ORDERS, deal
from machine_reports import MACHINES, ORACLES, assert_right, published
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release
from test_recomputed_history import differing
from test_state_by_key import ALL
from workloads.registry import DATASETS
from workloads.shop_events import shop_frame
from workloads.shop_oracle import expected_shop_tables

from include.ground.settings import Settings
from include.read.publication import read_publication

NAME = "shop_orders"
EVENTS: list[bytes] = shop_frame(timedelta(0))["value"].to_list()[:90]
GOLD = """
  last_sales:
    kind: last
    over: items
    keys: [sku]
    order_by: [placed_at]
    rows: 3
    columns: {order_id: event_id, line: line_no, units: quantity}
    measures: {sold: {sum: units}, lines: {count: "*"}}

  sales_so_far:
    kind: fold
    over: items
    keys: [sku]
    columns: {order_id: event_id, line: line_no, units: quantity}
    function: sales.py:sales
    returns: {order_id: string, line: int, units: bigint}

  first_sales:
    kind: fold
    over: items
    keys: [sku]
    columns: {order_id: event_id, line: line_no}
    function: first_sales.sql
"""
SALES = """
def sales(items):
    units = 0
    for item in items.to_pylist():
        units += item["units"]
        yield {"order_id": item["order_id"], "line": item["line"], "units": units}
"""
FIRST = "select sku, order_id, line from ordered where _place = 1"
TABLES = ("last_sales", "sales_so_far", "first_sales")
Rows = list[tuple[Any, ...]]


def opened(spark: SparkSession, folder: Path, backend: str = "local") -> SmallRelease:
    """Return a release of the orders whose gold is GOLD alone."""
    declared = folder / "declared" / NAME
    shutil.copytree(DATASETS / NAME, declared, ignore=shutil.ignore_patterns("__pycache__", "gold"))
    (declared / "sales.py").write_text(SALES)
    (declared / "first_sales.sql").write_text(FIRST)
    pipeline = declared / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().partition("\ngold:\n")[0] + "\ngold:" + GOLD)
    return small_release(spark, Settings(state=folder / "state", backend=backend), NAME, declared)


def given(release: SmallRelease, events: list[bytes], seed: int = 0) -> None:
    numbers = random.Random(seed)
    release.take([Record(event, partition=numbers.randrange(2)) for event in events])


def expected() -> dict[str, Rows]:
    """Return the rows of each table, from the items that the oracle of the orders accepts."""
    items = expected_shop_tables(EVENTS)[f"silver.{NAME}__items"]
    by_sku = defaultdict[str, list[dict[str, Any]]](list)
    for item in sorted(items, key=lambda each: (each["placed_at"], each["event_id"], each["line_no"])):
        by_sku[item["sku"]].append(item)
    tables: dict[str, Rows] = {table: [] for table in TABLES}
    for sku, sold in by_sku.items():
        newest = sold[-3:][::-1]
        units = sum(item["quantity"] for item in newest)
        for place, item in enumerate(newest, 1):
            row = (item["event_id"], item["line_no"], item["quantity"])
            tables["last_sales"].append((sku, place, *row, units, len(newest)))
        total = 0
        for item in sold:
            total += item["quantity"]
            tables["sales_so_far"].append((sku, item["event_id"], item["line_no"], total))
        tables["first_sales"].append((sku, sold[0]["event_id"], sold[0]["line_no"]))
    return {table: sorted(rows, key=repr) for table, rows in tables.items()}


def found(release: SmallRelease) -> dict[str, Rows]:
    return {table: published(release, table) for table in TABLES}


@pytest.mark.parametrize("orders", ORDERS)
def test_items_in_every_order_of_arrival_give_the_rows_of_plain_python(
    spark: SparkSession, tmp_path: Path, orders: Sequence[int]
) -> None:
    for seed in orders:
        release = opened(spark, tmp_path / str(seed))
        for batch in deal(EVENTS, seed, 1 + seed % 3):
            given(release, batch, seed)
        assert found(release) == expected(), seed
    given(release, EVENTS[:20])
    assert found(release) == expected()
    assert differing(release) == {}


@pytest.mark.extended
def test_spark_gives_the_same_rows_over_items(spark: SparkSession, tmp_path: Path) -> None:
    releases = [opened(spark, tmp_path / backend, backend) for backend in ("local", "spark")]
    for release in releases:
        for batch in deal(EVENTS, 5, 3):
            given(release, batch)
        assert found(release) == expected()
    assert_same_rows(*map(head_rows, releases))


@pytest.mark.parametrize("backend", ["local", pytest.param("spark", marks=pytest.mark.extended)])
def test_tables_that_an_interval_leaves_behind_catch_up(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    folder = shutil.copytree(MACHINES, tmp_path / "machines", ignore=shutil.ignore_patterns("__pycache__"))
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace("    keys: [", "    refresh: every 1 minute\n    keys: ["))
    settings = Settings(state=tmp_path / "state", backend=backend)
    release = small_release(spark, settings, "machines", folder)
    release.take([each.sent() for each in ALL[:40]], now=60)
    before = {table: published(release, table) for table in ORACLES}
    release.take([each.sent() for each in ALL[40:80]], now=61)
    behind = {name for name, table in read_publication(settings, "machines").tables.items() if table.batch is not None}
    assert behind == {f"gold.{table}" for table in ORACLES}
    assert {table: published(release, table) for table in ORACLES} == before
    assert release.refresh(now=120)
    assert_right(release, ALL[:80])
