"""A key that is null is a key like any other: in the stream, done again, and in a correction."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from histories import History
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release

from include.catalog.history_slice import BRONZE, Slice, Span
from include.settings import Settings

METER = Path(__file__).parents[1] / "recovery" / "datasets" / "meter"
EVERYTHING = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
PLACES = """
  meter_places:
    kind: additive
    window: {column: read_at, unit: day, as: day}
    keys: [place]
    partition: date_format(day, 'yyyy-MM')
    measures:
      litres: {sum: litres}

  meter_tops:
    kind: query
    query: gold/tops.sql
    window: {column: read_at, unit: day, as: day}
    keys: [place]
    partition: date_format(day, 'yyyy-MM')
"""
TOPS = "select day, place, max(litres) as litres from silver group by day, place"
Rows = list[tuple[str | None, int]]


def reading(device: str, minute: int, litres: int) -> Record:
    said = {"event_id": f"{device}{minute}", "device": device, "litres": litres}
    return Record(json.dumps(said | {"read_at": f"2024-02-27T10:{minute}:00Z"}).encode())


def doubled(folder: Path) -> None:
    path = folder / "silver.py"
    path.write_text(path.read_text().replace("return placed", 'return placed.withColumn("litres", placed.litres * 2)'))


@pytest.fixture
def told(spark: SparkSession, tmp_path: Path) -> History:
    folder = tmp_path / "as it is" / "meter"
    shutil.copytree(METER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "gold" / "tops.sql").write_text(TOPS)
    (folder / "pipeline.yaml").write_text((folder / "pipeline.yaml").read_text().rstrip("\n") + "\n" + PLACES)
    silver = (folder / "silver.py").read_text()
    placed = 'placed = accepted.selectExpr("*", "nullif(device, \'d1\') as place")\n    return placed'
    (folder / "silver.py").write_text(silver.replace("return accepted", placed))
    release = small_release(spark, Settings(state=tmp_path / "production"), "meter", folder)
    release.take([reading("d1", 10, 1), reading("d2", 10, 2)])
    release.take([reading("d1", 20, 4), reading("d2", 20, 8)])
    return History(release, tmp_path)


def rows(release: SmallRelease, table: str) -> Rows:
    return release.read(table).sort("place", nulls_last=False).select("place", "litres").rows()


def test_rows_of_a_null_key(told: History) -> None:
    release = told.production
    assert rows(release, "gold.meter_places") == [(None, 5), ("d2", 10)]
    assert rows(release, "gold.meter_tops") == [(None, 4), ("d2", 8)]
    _, _, differing = told.redo(EVERYTHING)
    assert not any(differing.values())
    correction, _, differing = told.redo(EVERYTHING, doubled)
    assert (differing["gold.meter_places"], differing["gold.meter_tops"]) == (2, 2)
    told.apply(correction)
    assert rows(release, "gold.meter_places") == [(None, 10), ("d2", 20)]
    assert rows(release, "gold.meter_tops") == [(None, 8), ("d2", 16)]
