"""Gold that is refreshed after an interval or on close: behind as declared, exact at each moment, equal in the end."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from declared_gold import MIDNIGHT, audited, meter_release, reading
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from slice_patcher import SlicePatcher
from small_release import SmallRelease

from include.declare.history_slice import BRONZE, Slice, Span
from include.read.publication import read_publication
from include.read.published_tables import RefreshState
from spark_jobs.backends.release import pinned_release
from spark_jobs.history.recompute_history import recompute_history
from spark_jobs.layers.gold_layer import is_due
from spark_jobs.stream.recovery import republish
from spark_jobs.tables.failpoints import Step

TABLES = """
  {0}_hours:
    kind: additive
    window: {{column: read_at, size: 1 hour, as: hour}}
    keys: [device]
    refresh: {1}
    measures: {{litres: {{sum: litres}}, readings: {{count: "*"}}, most: {{max: litres}}}}
  {0}_slides:
    kind: additive
    window: {{column: read_at, size: 12 hours, slide: 6 hours, as: since}}
    refresh: {1}
    measures: {{litres: {{sum: litres}}}}
  {0}_days:
    kind: query
    query: gold/days.sql
    window: {{column: read_at, size: 1 day, time_zone: Europe/Paris, as: day}}
    keys: [device]
    refresh: {1}
  {0}_sessions:
    kind: additive
    session: {{column: read_at, gap: 3 hours}}
    keys: [device]
    refresh: {1}
    measures: {{readings: {{count: "*"}}}}
"""
LATEST = """
  {0}_now:
    kind: latest
    keys: [device]
    order_by: [read_at]
    refresh: {1}
    columns: {{litres: litres}}
"""
GOLD = "".join(
    [
        *(TABLES.format(name, refresh) for name, refresh in
          (("plain", "every_run"), ("minute", "every 1 minute"), ("closed", "on_close"))),
        *(LATEST.format(name, refresh) for name, refresh in (("plain", "every_run"), ("minute", "every 1 minute"))),
    ]
)  # fmt: skip
QUERIES = {"days.sql": "select day, device, max(litres) as most, count(*) as readings from silver group by day, device"}
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
KINDS = ("hours", "slides", "days", "now", "sessions")
DAY = 24 * 60
EACH_TABLE = (Step.GOLD_WRITTEN, Step.GOLD_COMMITTED)


def refreshed(spark: SparkSession, folder: Path) -> SmallRelease:
    return meter_release(spark, folder, GOLD, QUERIES)


def rows(release: SmallRelease, table: str) -> pl.DataFrame:
    """Return the rows of a gold table without provenance, sorted."""
    found = release.read(f"gold.{table}")
    shown = found.select(name for name in found.columns if not name.startswith("_"))
    return shown.sort(shown.columns[:3])


def total(release: SmallRelease, table: str) -> int:
    return int(release.read(f"gold.{table}")["litres"].sum())


def behind(release: SmallRelease) -> dict[str, int]:
    tables = read_publication(release.settings, "meter").tables
    return {name.removeprefix("gold."): t.batch for name, t in tables.items() if t.batch is not None}


def all_audited(release: SmallRelease) -> list[str]:
    return [found for gold in release.dataset.pipeline.gold for found in audited(release, gold.name)]


def differing_from_bronze(release: SmallRelease) -> dict[str, dict[str, int]]:
    published = read_publication(release.settings, "meter")
    versions = {name: table.version for name, table in published.tables.items()}
    pinned = pinned_release(release.spark, release.settings, release.dataset, versions)
    found = recompute_history(release.settings, pinned, published.batch, release.settings.state / "deep")
    return {each.table: each.counts for each in found.differences if each.counts}


def double_litres(folder: Path) -> None:
    path = folder / "silver.py"
    double = 'return accepted.withColumn("litres", accepted.litres * 2)#'
    path.write_text(path.read_text().replace("return acc", double))


@pytest.fixture(scope="module")
def release(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Return a release after four batches; gold with an interval holds the first two, at second 60."""
    release = refreshed(spark, tmp_path_factory.mktemp("refresh"))
    release.take([reading("d1", 5, 1), reading("d2", 70, 2)], now=60)
    # Its watermark is at minute 60 of the first day: one hour closes, no slide and no day.
    release.take([reading("d1", 2 * DAY + 60, 4), reading("d1", 6, 8)], now=120)
    # Late for the closed hour, and for one that closes with this batch; all but the last day close.
    release.take([reading("d1", 7, 16), reading("d2", 71, 32), reading("d2", 4 * DAY, 64)], now=179)
    release.take([reading("d1", 8, 128)], now=179.9)
    return release


def test_publication_names_the_batch_of_gold_that_its_interval_leaves_behind(release: SmallRelease) -> None:
    assert behind(release) == {f"minute_{kind}": 1 for kind in KINDS}
    assert (total(release, "plain_hours"), total(release, "minute_hours")) == (255, 15)


def test_gold_on_close_has_closed_windows_with_late_rows_and_no_open_ones(release: SmallRelease) -> None:
    hours = release.read("gold.closed_hours").sort("hour")
    assert hours["litres"].to_list() == [1 + 8 + 16 + 128, 2 + 32]
    # The first hour closed with batch 1, and was corrected by batches 2 and 3; the second was on time.
    assert hours.select("_first_batch", "_last_batch", "_revision").rows() == [(1, 3, 3), (2, 2, 1)]
    # Both of its 12 hours with rows of the first day, at 18:00 the day before and at 00:00.
    assert rows(release, "closed_slides")["litres"].to_list() == [187, 187]
    assert rows(release, "closed_days")["readings"].to_list() == [4, 2]


@pytest.mark.extended
def test_audit_of_gold_that_is_behind_is_exact(release: SmallRelease) -> None:
    assert all_audited(release) == []
    assert differing_from_bronze(release) == {}


@pytest.mark.extended
def test_patch_corrects_the_rows_that_gold_holds_and_the_next_refresh_brings_the_others(
    spark: SparkSession, tmp_path: Path, release: SmallRelease
) -> None:
    patcher = SlicePatcher(release, tmp_path)
    _, _, differing = patcher.rebuild(WHOLE_HISTORY)
    assert not any(differing.values())
    patch, _, differing = patcher.rebuild(WHOLE_HISTORY, double_litres)
    assert (differing["gold.minute_hours"], differing["gold.plain_hours"], differing["gold.closed_hours"]) == (3, 4, 2)
    # Between build and application the owner refreshes one of both kinds.
    release.take([reading("d3", 9, 256)], now=200)
    release.take([reading("d3", 10, 512)], now=201)
    patcher.apply(patch)
    assert behind(release) == {f"minute_{kind}": 4 for kind in KINDS}
    assert total(release, "minute_hours") == 2 * 255 + 256
    assert all_audited(release) == []


@pytest.mark.extended
def test_refresh_between_two_runs_catches_up_once_and_survives_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    release = refreshed(spark, tmp_path)
    release.take([reading("d1", 5, 1)], now=60)
    release.take([reading("d1", 6, 2)], now=61)
    assert not release.refresh(now=119)
    with pytest.raises(Died), dying_at(Step.GOLD_COMMITTED, passes=2):
        release.refresh(now=120)
    release.restart()
    republish(release.settings, release.release)
    caught_up = {f"minute_{kind}" for kind in KINDS} - set(behind(release))
    assert len(caught_up) == 2
    assert all_audited(release) == []
    assert release.refresh(now=120)
    assert not release.refresh(now=500)
    assert behind(release) == {}
    assert total(release, "minute_hours") == 3
    release.take([reading("d1", 7, 4)], now=500)
    assert total(release, "minute_hours") == 7


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(2))
def test_gold_of_each_refresh_after_crashes_equals_that_of_one_batch(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    numbers = random.Random(seed)
    readings = [
        reading(f"d{numbers.randrange(3)}", minute, numbers.randrange(100))
        for minute in numbers.sample(range(5 * DAY), 60)
    ]
    release = refreshed(spark, tmp_path / "crashing")
    release.cut_gold()
    steps = [Step.GOLD_WRITTEN, Step.GOLD_COMMITTED, Step.ALL_GOLD_COMMITTED, Step.SILVER_COMMITTED, Step.PUBLISHED]
    for number, step in enumerate(numbers.sample(steps, len(steps))):
        release.ingest(records := readings[number * 12 : number * 12 + 12])
        assert records
        now = 60.0 * numbers.randrange(number + 2)
        with pytest.raises(Died), dying_at(step, passes=numbers.randrange(1, 4) if step in EACH_TABLE else 1):
            release.refine(number, number, now)
        release.restart()
        release.refine(number, number, now)
        assert all_audited(release) == []
    release.refresh(now=1e9)
    once = refreshed(spark, tmp_path / "once")
    once.take(readings, now=60)
    for gold in once.dataset.pipeline.gold:
        assert rows(release, gold.name).equals(rows(once, gold.name)), gold.name
    for kind in KINDS:
        assert rows(release, f"minute_{kind}").equals(rows(release, f"plain_{kind}")), kind


def test_closed_session_is_not_made_again_from_a_file_that_also_has_open_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    sessions = """
  meter_sessions:
    kind: additive
    session: {column: read_at, gap: 3 hours, start: since, end: until}
    keys: [device]
    refresh: on_close
    measures: {readings: {count: "*"}}
"""
    release = meter_release(spark, tmp_path, sessions)
    # All in March: a file has the rows of one month.
    release.take([reading("d1", day * DAY, 1) for day in (4, 9)])
    for last in (10, 13):
        release.take([reading("d1", last * DAY, 1)])
        closed = [day * DAY for day in (4, 9, 10) if day < last - 2]
        found = release.read("gold.meter_sessions").sort("since")["since"].to_list()
        assert found == [MIDNIGHT + timedelta(minutes=minute) for minute in closed]


@pytest.mark.parametrize(("now", "due"), [(159, False), (160, True), (99, True), (None, False)])
def test_table_is_due_after_its_interval_or_when_the_clock_was_set_back(now: float | None, due: bool) -> None:
    assert is_due(RefreshState(3, 100.0), timedelta(minutes=1), now) is due
