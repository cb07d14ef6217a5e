"""Releases of the dataset `meter` with gold tables that a test declares."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release

from include.audit.gold import gold_check
from include.ground.settings import Settings
from include.read.publication import published_tables
from include.read.published_tables import stored_refresh_state

METER = Path(__file__).parents[1] / "recovery" / "datasets" / "meter"
MIDNIGHT = datetime(2024, 2, 27, tzinfo=UTC)


def meter_release(
    spark: SparkSession, folder: Path, gold: str, queries: dict[str, str] | None = None, backend: str = "auto"
) -> SmallRelease:
    """Return a release in `folder` whose gold is declared by the YAML `gold`; `queries` are texts by file name."""
    declared = folder / "declared" / "meter"
    shutil.copytree(METER, declared, ignore=shutil.ignore_patterns("__pycache__", "cases"))
    for name, text in (queries or {}).items():
        (declared / "gold" / name).write_text(text)
    pipeline = declared / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().partition("\ngold:\n")[0] + "\ngold:\n" + gold)
    return small_release(spark, Settings(state=folder / "state", backend=backend), "meter", declared)


def reading(device: str, minute: float, litres: int) -> Record:
    """Return a reading `minute` minutes after MIDNIGHT; its identity is device and minute."""
    at = (MIDNIGHT + timedelta(minutes=minute)).isoformat().replace("+00:00", "Z")
    event: dict[str, Any] = {"event_id": f"{device}{minute}", "device": device, "litres": litres, "read_at": at}
    return Record(json.dumps(event).encode())


def audited(release: SmallRelease, table: str) -> list[str]:
    """Return what the audit's recomputation in DuckDB finds wrong with a published gold table."""
    gold = next(gold for gold in release.dataset.pipeline.gold if gold.name == table)
    database = duckdb.connect()
    database.execute("set TimeZone = 'UTC'")
    published = published_tables(release.settings)[gold.table]
    refreshed = stored_refresh_state(published.path, published.version)
    silver = release.silver()
    rows = silver if gold.refresh_interval is None else silver.filter(pl.col("_batch_id") <= refreshed.batch)
    database.register("silver", rows.to_arrow())
    database.register("published", release.read(gold.table).to_arrow())
    found = gold_check(database, gold, refreshed)
    assert found.check is not None, found.unchecked
    return [str(finding) for finding in found.findings]
