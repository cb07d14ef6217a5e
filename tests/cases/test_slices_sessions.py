"""A session that begins before a slice and ends in it is done again whole: its grain is the day, not the slice."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from histories import History
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release

from include.catalog.history_slice import BRONZE, Slice, Span
from include.settings import Settings

METER = Path(__file__).parents[1] / "recovery" / "datasets" / "meter"
SESSIONS = """
  meter_sessions:
    kind: query
    query: gold/sessions.sql
    window: {column: read_at, unit: day, as: day}
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
    said = {"event_id": f"r{at}", "device": "d1", "read_at": f"{DAY}T{at}:00Z", "litres": litres}
    return Record(json.dumps(said).encode())


def doubled(folder: Path) -> None:
    path = folder / "silver.py"
    path.write_text(
        path.read_text().replace("return accepted", 'return accepted.withColumn("litres", accepted.litres * 2)')
    )


def with_sessions(place: Path, edit: str) -> Path:
    folder = place / edit / "meter"
    shutil.copytree(METER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "gold" / "sessions.sql").write_text(HALF_AN_HOUR)
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().rstrip("\n") + "\n" + SESSIONS)
    return folder


@pytest.fixture
def told(spark: SparkSession, tmp_path: Path) -> History:
    release: SmallRelease = small_release(
        spark, Settings(state=tmp_path / "production"), "meter", with_sessions(tmp_path, "as it is")
    )
    release.take([reading("10:00", 1), reading("10:20", 2), reading("10:40", 4), reading("12:00", 8)])
    return History(release, tmp_path)


def sessions(release: SmallRelease) -> list[tuple[object, ...]]:
    rows = release.read("gold.meter_sessions").sort("since")
    return [(r["since"].strftime("%H:%M"), r["until"].strftime("%H:%M"), r["litres"]) for r in rows.to_dicts()]


def test_a_session_across_the_edge_of_a_slice(told: History) -> None:
    assert sessions(told.production) == [("10:00", "10:40", 7), ("12:00", "12:00", 8)]
    edge = (datetime(2024, 2, 27, 10, 30, tzinfo=UTC), datetime(2024, 2, 27, 11, tzinfo=UTC))
    correction, done, differing = told.redo(Slice([Span(0, 100, 200, BRONZE)], *edge), doubled)
    assert (done.core, differing["silver.meter"], differing["gold.meter_sessions"]) == (1, 1, 1)
    told.apply(correction)
    assert sessions(told.production) == [("10:00", "10:40", 11), ("12:00", "12:00", 8)]
