"""Windows of every kind, sessions, and measures with a state of their own survive crashes: each row is counted once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from declared_gold import audited, meter_release, reading
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at

from spark_jobs.tables.failpoints import Step

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
  meter_local_days:
    kind: additive
    window: {column: read_at, size: 1 day, offset: 1 hour, time_zone: Europe/Paris, as: day}
    measures: {litres: {sum: litres}}
  meter_arrivals:
    kind: additive
    window: {column: _timestamp, size: 7 seconds, as: since}
    measures: {readings: {count: "*"}}
"""
# The second run dies with one table committed and the others not.
DEATHS = (Step.GOLD_WRITTEN, Step.GOLD_COMMITTED)


@pytest.mark.extended
def test_gold_after_crashes_has_each_row_of_silver_once(spark: SparkSession, tmp_path: Path) -> None:
    numbers = random.Random(9)
    minutes = numbers.sample(range(120), 40)
    readings = [reading(f"d{numbers.randrange(3)}", minute, numbers.randrange(9)) for minute in minutes]
    release = meter_release(spark, tmp_path, GOLD)
    for number, step in enumerate(DEATHS):
        release.ingest(readings[number * 20 : number * 20 + 20])
        with pytest.raises(Died), dying_at(step):
            release.refine(number, number)
        release.restart()
        release.refine(number, number)
    for gold in release.dataset.pipeline.gold:
        assert audited(release, gold.name) == [], gold.name
    assert [sum(release.read(f"gold.{name}")["readings"]) for name in ("meter_sessions", "meter_arrivals")] == [40, 40]
    assert sum(release.read("gold.meter_local_days")["litres"]) == sum(release.silver()["litres"])
