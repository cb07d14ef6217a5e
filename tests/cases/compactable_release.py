"""A small release with five batches, each with a file in every table, and its rows as readers and the log have them."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import polars as pl
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release

from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings
from include.read.published_tables import pinned
from spark_jobs.backends.release import tables_of
from spark_jobs.stream.compaction import CompactionPolicy

METER = Path(__file__).parents[1] / "recovery" / "datasets" / "meter"
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
EARLY = CompactionPolicy(min_files=2)
LONG_AGO = timedelta(days=8)


def reading(minute: int, litres: int | str) -> Record:
    event = {"event_id": f"e{minute}", "device": f"d{minute % 2}", "litres": litres}
    return Record(json.dumps(event | {"read_at": f"2024-02-{10 + minute // 4:02}T10:{minute:02}:00Z"}).encode())


def compactable_release(spark: SparkSession, folder: Path) -> SmallRelease:
    """Return the release, in `folder`."""
    shutil.copytree(METER, folder / "meter", ignore=shutil.ignore_patterns("__pycache__"))
    release = small_release(spark, Settings(state=folder / "production"), "meter", folder / "meter")
    for batch in range(5):
        release.take([reading(4 * batch, batch), reading(4 * batch + 1, 7), reading(4 * batch + 2, "seven")])
    return release


def published_rows(release: SmallRelease) -> dict[str, pl.DataFrame]:
    reading = pinned(release.settings)
    return {name: sorted_rows(reading.read(name).collect()) for name in reading.tables}


def sorted_rows(frame: pl.DataFrame) -> pl.DataFrame:
    order = [name for name in frame.columns if not isinstance(frame.schema[name], pl.List)]
    return frame.sort(order)


def head_rows(release: SmallRelease) -> dict[str, pl.DataFrame]:
    """Return the rows of every table's newest version; readers see it after the next publication."""
    tables = list(tables_of([release.release]))
    return {t.spec.name: sorted_rows(pl.read_delta(str(t.spec.path))) for t in tables}


def assert_same_rows(after: dict[str, pl.DataFrame], before: dict[str, pl.DataFrame]) -> None:
    assert set(after) == set(before)
    for name, rows in before.items():
        assert_frame_equal(after[name], rows, check_column_order=False)
