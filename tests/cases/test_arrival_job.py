"""The arrival job lets records arrive in given batches, and continues after a crash."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from workloads.arrival_job import ArrivalStep, arrive
from workloads.arrival_orders import batches_of
from workloads.oracle_rows import differing_rows
from workloads.registry import DATASETS, WORKLOADS

from include.ground.settings import Settings
from include.read.published_tables import pinned
from spark_jobs.tables.failpoints import Step

SEED = 2
"""Its order has three batches."""


def test_interrupted_order_of_arrival_continues_and_gives_the_rows_of_the_oracle(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = Settings(state=tmp_path / "order", datasets=DATASETS)
    events, steps = WORKLOADS["orders"].feed.frame(timedelta(0)).head(200), list[ArrivalStep]()
    settings.state.mkdir()
    for number, batch in enumerate(batches_of("orders", events, SEED)):
        batch.write_parquet(settings.state / f"{number}.parquet")
        steps.append(("orders", f"{number}.parquet"))
    steps = json.loads(json.dumps(steps))
    assert len(steps) == 3
    with pytest.raises(Died), dying_at(Step.SILVER_COMMITTED, 2):
        arrive(spark, settings, steps, tmp_path / "empty tables")
    arrive(spark, settings, steps, tmp_path / "empty tables")
    for table, rows in WORKLOADS["orders"].expected(events["value"]).items():
        found = pinned(settings).read(f"gold.{table}").collect()
        shown = found.select(column for column in found.columns if not column.startswith("_")).to_dicts()
        assert differing_rows(rows, shown) == ([], [])
    silver = pinned(settings).read("silver.orders").collect()
    assert (silver.height, silver["_batch_id"].n_unique()) == (200, 3)
