"""Every kind of window and measure survives a crash at each step of gold: each row is counted once."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
from declared_gold import meter_release, reading
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from small_release import SmallRelease

from spark_jobs.storage.failpoints import Step

GOLD = """
  meter_slides:
    kind: additive
    window: {column: read_at, size: 10 minutes, slide: 5 minutes, as: since}
    keys: [device]
    measures: {litres: {sum: litres}, p50: {approx_quantile: {value: litres, at: 0.5}}, last: {last: litres}}
  meter_totals:
    kind: additive
    keys: [device]
    measures: {top: {top_k: {value: litres, k: 3}}, kinds: {count_distinct: litres}, n: {count: "*"}}
  meter_sessions:
    kind: additive
    session: {column: read_at, gap: 5 minutes}
    keys: [device]
    measures: {readings: {count: "*"}, sizes: {histogram: {value: litres, bounds: [3, 6]}}}
  meter_weeks:
    kind: query
    query: gold/weeks.sql
    window: {column: read_at, size: 1 week, time_zone: Europe/Berlin, as: week}
"""
WEEKS = "select week, device, count(*) as readings from silver group by week, device"
STEPS = (Step.GOLD_WRITTEN, Step.GOLD_COMMITTED, Step.ALL_GOLD_COMMITTED)


def contents(release: SmallRelease) -> dict[str, pl.DataFrame]:
    """Return the rows of gold without provenance, sorted."""
    names = [gold.name for gold in release.dataset.pipeline.gold]
    tables = {name: release.read(f"gold.{name}") for name in names}
    shown = {name: table.select(c for c in table.columns if not c.startswith("_")) for name, table in tables.items()}
    return {name: table.sort(table.columns[:2]) for name, table in shown.items()}


@pytest.mark.extended
def test_gold_after_crashes_equals_that_of_one_batch(spark: SparkSession, tmp_path: Path) -> None:
    numbers = random.Random(9)
    minutes = numbers.sample(range(120), 60)
    readings = [reading(f"d{numbers.randrange(3)}", minute, numbers.randrange(9)) for minute in minutes]
    release = meter_release(spark, tmp_path / "crashing", GOLD, {"weeks.sql": WEEKS})
    release.cut_gold()
    for number, step in enumerate(STEPS):
        release.ingest(readings[number * 20 : number * 20 + 20])
        with pytest.raises(Died), dying_at(step):
            release.refine(number, number)
        release.restart()
        release.refine(number, number)
    once = meter_release(spark, tmp_path / "once", GOLD, {"weeks.sql": WEEKS})
    once.take(readings)
    found, expected = contents(release), contents(once)
    for name, table in expected.items():
        assert found[name].equals(table), name
    assert sum(expected["meter_sessions"]["readings"]) == 60
