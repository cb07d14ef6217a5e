"""A session that crosses a slice's edge is rebuilt completely: the grain is the day, not the slice."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_release import Record, SmallRelease, small_release

from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings

METER = Path(__file__).parents[1] / "recovery" / "datasets" / "meter"
SESSIONS = """
  meter_sessions:
    kind: query
    query: gold/sessions.sql
    window: {column: read_at, size: 1 day, as: day}
    keys: [device]
    partition: date_format(day, 'yyyy-MM')
"""
HALF_AN_HOUR = """
with marked as (
    select *, coalesce(read_at - lag(read_at) over same > interval 30 minutes, true) as begins
    from silver window same as (partition by day, device order by read_at, event_id)
),
numbered as (
    select *, cast(sum(int(begins)) over (partition by day, device order by read_at, event_id) as int) as session
    from marked
)
select day, device, session, min(read_at) as since, max(read_at) as until, sum(litres) as litres
from numbered group by day, device, session
"""
DAY = "2024-02-27"


def reading(at: str, litres: int) -> Record:
    event = {"event_id": f"r{at}", "device": "d1", "read_at": f"{DAY}T{at}:00Z", "litres": litres}
    return Record(json.dumps(event).encode())


def double_litres(folder: Path) -> None:
    path = folder / "silver.py"
    path.write_text(
        path.read_text().replace("return accepted", 'return accepted.withColumn("litres", accepted.litres * 2)')
    )


def dataset_with_sessions(parent: Path) -> Path:
    folder = parent / "original" / "meter"
    shutil.copytree(METER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "gold" / "sessions.sql").write_text(HALF_AN_HOUR)
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().rstrip("\n") + "\n" + SESSIONS)
    return folder


@pytest.fixture
def patcher(spark: SparkSession, tmp_path: Path) -> SlicePatcher:
    release: SmallRelease = small_release(
        spark, Settings(state=tmp_path / "production"), "meter", dataset_with_sessions(tmp_path)
    )
    release.take([reading("10:00", 1), reading("10:20", 2), reading("10:40", 4), reading("12:00", 8)])
    return SlicePatcher(release, tmp_path)


def sessions(release: SmallRelease) -> list[tuple[object, ...]]:
    rows = release.read("gold.meter_sessions").sort("since")
    return [(r["since"].strftime("%H:%M"), r["until"].strftime("%H:%M"), r["litres"]) for r in rows.to_dicts()]


@pytest.mark.extended
def test_session_across_slice_edge_is_rebuilt_completely(patcher: SlicePatcher) -> None:
    assert sessions(patcher.production) == [("10:00", "10:40", 7), ("12:00", "12:00", 8)]
    edge = (datetime(2024, 2, 27, 10, 30, tzinfo=UTC), datetime(2024, 2, 27, 11, tzinfo=UTC))
    patch, rebuilt, differing = patcher.rebuild(Slice([Span(0, 100, 200, BRONZE)], *edge), double_litres)
    assert (rebuilt.core, differing["silver.meter"], differing["gold.meter_sessions"]) == (1, 1, 1)
    patcher.apply(patch)
    assert sessions(patcher.production) == [("10:00", "10:40", 11), ("12:00", "12:00", 8)]
