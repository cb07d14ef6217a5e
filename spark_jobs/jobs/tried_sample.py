"""Runs a dataset's folder over the records of a sample, with the modules of the streams.

It compares with no duplicates outside the sample, and evaluates no rules of whole tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from include.declare.dataset import Dataset
from include.declare.reference_tables import create_reference_tables, current_versions
from include.ground.app_ids import bronze_app_id
from include.ground.settings import Settings
from include.read.plain_values import excerpt, json_value
from include.read.publication import published_tables
from include.read.published_tables import PinnedTables
from spark_jobs.backends.local.bronze import commit_bronze
from spark_jobs.backends.release import open_release
from spark_jobs.backends.spark_session import activate
from spark_jobs.layers.bronze import SOURCE, BronzeBatch, bronze_spec
from spark_jobs.stream.refine import refine
from spark_jobs.tables.delta_table import Table

SHOWN_ROWS, SHOWN_REJECTED = 20, 1_000


def tried(spark: SparkSession, settings: Settings, dataset: Dataset, sample: Path, now: datetime) -> Mapping[str, Any]:
    """Return the results of a sample; `settings` name an empty state folder, `now` the records' Kafka time.

    A record's offset is its line, counted from 0; empty lines are not records. Where the topic's records name a schema,
    those of a sample are JSON.
    """
    dataset = replace(dataset, contract=replace(dataset.contract, payload=dataset.contract.payload.sampled))
    lines = {n: line for n, line in enumerate(sample.read_bytes().splitlines()) if line.strip()}
    bronze = Table(bronze_spec(settings, dataset.name))
    create_reference_tables(settings, dataset)
    facts = {
        **{"dataset": dataset.name, "code": dataset.release, "epoch": 1, "topic": dataset.pipeline.topic},
        **{"topic_id": "sample", "query_id": "sample", "reference": current_versions(settings, dataset.name)},
    }
    end = max(lines, default=-1) + 1
    batch = BronzeBatch(0, bronze_app_id(dataset.name, 1), 0, {0: (0, end)}, facts)

    def commit() -> None:
        activate(spark)
        commit_bronze(bronze, sample_records(spark, dataset, lines, now), batch)

    # As in a driver: to compile the contract takes a core as long as the first batch takes the other.
    with ThreadPoolExecutor(1) as ingest:
        committed = ingest.submit(commit)
        release = open_release(spark, settings, dataset, bronze)
        committed.result()
    refine(settings, release, 0, 0, 1, now=now.timestamp())
    reading = PinnedTables(published_tables(settings))
    rejected = _table(reading, f"rejected.{dataset.name}").sort("_offset")
    silver = _visible(_table(reading, f"silver.{dataset.name}").sort("_offset"))
    return {
        "records": len(lines),
        "accepted": silver.height,
        "rejected": [
            {"line": (n := row["_offset"]) + 1, "reasons": row["reasons"], "record": excerpt(lines[n], 120)}
            for row in rejected.limit(SHOWN_REJECTED).iter_rows(named=True)
        ],
        "reasons": _reason_counts(rejected),
        "silver": _rows(silver.limit(SHOWN_ROWS)),
        "gold": {gold.table: _gold(reading, gold.table, gold.row_columns) for gold in dataset.pipeline.gold},
    }


def sample_records(spark: SparkSession, dataset: Dataset, lines: Mapping[int, bytes], now: datetime) -> DataFrame:
    """Return lines by their offset as records with SOURCE's columns, in one partition."""
    rows = [
        {"value": line, "topic": dataset.pipeline.topic, "partition": 0, "offset": n, "timestamp": now}
        for n, line in lines.items()
    ]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=SOURCE))
    return frame.coalesce(1).sortWithinPartitions("offset")


def _reason_counts(rejected: pl.DataFrame) -> dict[str, int]:
    """Return the records by reason, a record once for each of its reasons."""
    rules = pl.col("reasons").list.eval(pl.element().struct.field("rule")).list.unique()
    counts = rejected.select(rules).explode("reasons")["reasons"].value_counts(sort=True)
    return {row["reasons"]: row["count"] for row in counts.iter_rows(named=True)}


def _gold(reading: PinnedTables, name: str, grain: Sequence[str]) -> dict[str, Any]:
    rows = _visible(_table(reading, name).sort(*grain))
    return {"rows": rows.height, "first": _rows(rows.limit(SHOWN_ROWS))}


def _table(reading: PinnedTables, name: str) -> pl.DataFrame:
    return pl.DataFrame(reading.arrow(name).to_table())


def _visible(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(name for name in rows.columns if not name.startswith("_"))


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [{name: json_value(value) for name, value in row.items()} for row in frame.iter_rows(named=True)]
