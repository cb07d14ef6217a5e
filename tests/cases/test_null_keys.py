"""Null grain keys form a row of their own: in the stream, in a rebuilt slice and in a patch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_release import Record, SmallRelease, small_release

from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings

METER = Path(__file__).parents[1] / "recovery" / "datasets" / "meter"
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
PLACES = """
  meter_places:
    kind: additive
    window: {column: read_at, size: 1 day, as: day}
    keys: [place]
    partition: date_format(day, 'yyyy-MM')
    measures:
      litres: {sum: litres}

  meter_tops:
    kind: query
    query: gold/tops.sql
    window: {column: read_at, size: 1 day, as: day}
    keys: [place]
    partition: date_format(day, 'yyyy-MM')
"""
TOPS = "select day, place, max(litres) as litres from silver group by day, place"
Rows = list[tuple[str | None, int]]


def reading(device: str, minute: int, litres: int) -> Record:
    event = {"event_id": f"{device}{minute}", "device": device, "litres": litres}
    return Record(json.dumps(event | {"read_at": f"2024-02-27T10:{minute}:00Z"}).encode())


def double_litres(folder: Path) -> None:
    path = folder / "silver.py"
    path.write_text(path.read_text().replace("return placed", 'return placed.withColumn("litres", placed.litres * 2)'))


@pytest.fixture
def patcher(spark: SparkSession, tmp_path: Path) -> SlicePatcher:
    folder = tmp_path / "original" / "meter"
    shutil.copytree(METER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "gold" / "tops.sql").write_text(TOPS)
    (folder / "pipeline.yaml").write_text((folder / "pipeline.yaml").read_text().rstrip("\n") + "\n" + PLACES)
    silver = (folder / "silver.py").read_text()
    placed = 'placed = accepted.selectExpr("*", "nullif(device, \'d1\') as place")\n    return placed'
    (folder / "silver.py").write_text(silver.replace("return accepted", placed))
    release = small_release(spark, Settings(state=tmp_path / "production"), "meter", folder)
    release.cut_gold()
    release.take([reading("d1", 10, 1), reading("d2", 10, 2)])
    release.take([reading("d1", 20, 4), reading("d2", 20, 8)])
    return SlicePatcher(release, tmp_path)


def rows(release: SmallRelease, table: str) -> Rows:
    return release.read(table).sort("place", nulls_last=False).select("place", "litres").rows()


@pytest.mark.extended
def test_null_key_is_a_grain_of_its_own(patcher: SlicePatcher) -> None:
    release = patcher.production
    assert rows(release, "gold.meter_places") == [(None, 5), ("d2", 10)]
    assert rows(release, "gold.meter_tops") == [(None, 4), ("d2", 8)]
    _, _, differing = patcher.rebuild(WHOLE_HISTORY)
    assert not any(differing.values())
    patch, _, differing = patcher.rebuild(WHOLE_HISTORY, double_litres)
    assert (differing["gold.meter_places"], differing["gold.meter_tops"]) == (2, 2)
    patcher.apply(patch)
    assert rows(release, "gold.meter_places") == [(None, 10), ("d2", 20)]
    assert rows(release, "gold.meter_tops") == [(None, 8), ("d2", 16)]
