"""Both backends act alike: gold of each kind and refresh, failing code, patches, expiry, compaction.

They have the same rows and the same facts in their logs; Spark's commits are fenced. Compaction uses most verbs of a
backend, and runs in `make test` with a batch by the other backend after it; the others are extended.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import declared_gold
import polars as pl
import pytest
import small_release as small_release_module
import test_expired_batches as aged_batches
import test_gold_refresh as gold_refresh
import test_sessions as sessions
import test_slices as slices
import test_transform_errors as errors
from compactable_release import EARLY, METER, assert_same_rows, head_rows, reading
from declared_gold import meter_release
from derived_site import NAME as DERIVED
from derived_site import DerivedSite, flight, wind
from derived_site import opened as derived_opened
from fewer_gold_tables import flights_with_gold, small_flights
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher, copy_release
from small_release import Record, SmallRelease, small_release

from include.ground.delta_log import commits
from include.ground.record_coordinates import POSITION
from include.ground.settings import Settings
from include.read.published_tables import pinned
from include.state.release_files import PatchDirection
from spark_jobs.backends.backend import Transaction
from spark_jobs.backends.release import chosen_backend, tables_of
from spark_jobs.history.apply_patch import PatchOutdated
from spark_jobs.layers import silver_code
from spark_jobs.stream.compaction import compact_tables
from spark_jobs.tables.delta_table import RowsUnaccounted, Table

UNSTABLE = ("rows", "published_at", "transaction", "transactions", "epoch")
BACKENDS = ("local", "spark")


def facts(release: SmallRelease) -> dict[str, list[dict[str, Any]]]:
    """Return the metadata of each table's commits, without what no reader compares."""
    return {table.spec.name: facts_of(table) for table in own(release)}


def facts_of(table: Table) -> list[dict[str, Any]]:
    log = [each.metadata or {} for each in commits(table.spec.path)]
    return [kept for each in log if (kept := {key: each[key] for key in each.keys() - {*UNSTABLE}})]


def own(release: SmallRelease) -> list[Any]:
    return list(tables_of([release.release]))


def rows_of(release: SmallRelease) -> dict[str, pl.DataFrame]:
    """Return all rows, without sketches, whose bytes depend on the order of the rows."""
    found = head_rows(release)
    return {
        name: rows.drop([each for each in rows.columns if each.endswith("_sketch")]) for name, rows in found.items()
    }


def on_both(act: Callable[[str], SmallRelease]) -> list[SmallRelease]:
    """Do the same on each backend; assert the same rows and facts."""
    local, by_spark = releases = [act(backend) for backend in BACKENDS]
    assert_same_rows(rows_of(by_spark), rows_of(local))
    assert facts(by_spark) == facts(local)
    for table in own(by_spark):
        log = [each for each in commits(table.spec.path) if (each.added or each.removed) and each.metadata]
        assert [each.version for each in log if each.owner is None] == [], "a commit of rows is not fenced"
    return releases


def patched(
    spark: SparkSession, folder: Path, *steps: Callable[[SlicePatcher], object]
) -> Callable[[str], SmallRelease]:
    def act(backend: str) -> SmallRelease:
        settings = Settings(state=folder / backend / "production", backend=backend)
        release = small_release(spark, settings, "flights", flights_with_gold(*slices.ONE_OF_EACH_KIND))
        for records in slices.BATCHES:
            release.take(records)
        patcher = SlicePatcher(release, folder / backend)
        for step in steps:
            step(patcher)
        return release

    return act


def correct(patcher: SlicePatcher) -> None:
    patch, rebuilt, _ = patcher.rebuild(slices.WINNER_ONLY, slices.lower_distance)
    assert rebuilt.closure == 2
    patcher.apply(patch)
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))


def correct_and_revert(patcher: SlicePatcher) -> None:
    before = slices.visible(patcher.production)
    patch, _, _ = patcher.rebuild(slices.WHOLE_HISTORY, slices.delay_united)
    patcher.apply(patch)
    assert slices.visible(patcher.production) != before
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    assert slices.visible(patcher.production) == before


def correct_too_late(patcher: SlicePatcher) -> None:
    patch, _, _ = patcher.rebuild(slices.WINNER_ONLY, slices.lower_distance)
    patcher.production.take([slices.flight(1, distance=1300)])
    versions = patcher.production.versions()
    with pytest.raises(PatchOutdated):
        patcher.apply(patch)
    assert patcher.production.versions() == versions


@pytest.mark.extended
def test_patches(spark: SparkSession, tmp_path: Path) -> None:
    on_both(patched(spark, tmp_path, correct_and_revert, correct, correct_too_late))


def test_compaction_after_which_the_other_backend_continues(spark: SparkSession, tmp_path: Path) -> None:
    def act(backend: str) -> SmallRelease:
        release = small_release(spark, Settings(state=tmp_path / backend, backend=backend), "meter", METER)
        for batch in range(3):
            release.take([reading(4 * batch, batch), reading(4 * batch + 1, 7), reading(4 * batch + 2, "seven")])
        before, files = head_rows(release), {table.spec.name: table.file_count for table in own(release)}
        compact_tables(release.settings, [release.release], 600, EARLY)
        assert_same_rows(head_rows(release), before)
        for name in ("silver.meter", "rejected.meter", "bronze.meter"):
            (table,) = [each for each in own(release) if each.spec.name == name]
            assert table.file_count < files[name], name
        return release

    releases = on_both(act)
    for release, other in zip(releases, reversed(BACKENDS), strict=True):
        release.settings = release.settings.model_copy(update={"backend": other})
        release.restart()
        release.take([reading(20, 1), reading(0, 1)])
    assert_same_rows(*map(rows_of, releases))
    assert facts(releases[0]) == facts(releases[1])


@pytest.mark.extended
def test_expiry(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = aged_batches.declared(tmp_path, "silver: 1200 days")

    def act(backend: str) -> SmallRelease:
        release = small_release(spark, Settings(state=tmp_path / backend, backend=backend), "meter", declared)
        for batch in range(5):
            with monkeypatch.context() as patch:
                if batch >= 3:
                    patch.setattr(small_release_module, "ARRIVED", aged_batches.LATER)
                years = 0 if batch < 3 else 8
                records = [aged_batches.dated(reading(4 * batch + n, 7), years) for n in range(3)]
                release.take([*records, reading(60, "no")])
        compact_tables(release.settings, [release.release], 600, EARLY)
        silver, transaction = release.release.writer.silver, Transaction("wrong count", 1)
        with pytest.raises(RowsUnaccounted):
            chosen_backend(spark, release.settings).expire(silver, 3, POSITION, transaction, {"rows_removed": 99})
        done = aged_batches.expire(release, aged_batches.NOW, bronze=timedelta(days=1))
        assert [each.table for each in done] == ["silver.meter", "rejected.meter", "bronze.meter"]
        release.restart()
        release.take([reading(20, 1), reading(0, 1)])
        return release

    on_both(act)


@pytest.mark.extended
def test_gold_of_each_kind_and_refresh(spark: SparkSession, tmp_path: Path) -> None:
    def act(backend: str) -> SmallRelease:
        release = meter_release(spark, tmp_path / backend, gold_refresh.GOLD, gold_refresh.QUERIES, backend)
        read, day = declared_gold.reading, gold_refresh.DAY
        release.take([read("d1", 5, 1), read("d2", 70, 2)], now=60)
        release.take([read("d1", 2 * day + 60, 4), read("d1", 6, 8)], now=120)
        release.take([read("d1", 7, 16), read("d2", 71, 32), read("d2", 4 * day, 64)], now=179)
        assert release.refresh(now=190)
        release.restart()
        release.take([read("d1", 8, 128), read("d2", 5 * day, 1)], now=191)
        assert gold_refresh.all_audited(release) == []
        return release

    on_both(act)


@pytest.mark.extended
def test_sessions(spark: SparkSession, tmp_path: Path) -> None:
    def act(backend: str) -> SmallRelease:
        release = meter_release(spark, tmp_path / backend, sessions.GOLD, backend=backend)
        release.take(sessions.records(sessions.FIRST))
        release.take(sessions.records(sessions.LATE))
        assert sessions.sessions(release) == sessions.by_python(sessions.FIRST + sessions.LATE)
        patcher = SlicePatcher(release, tmp_path / backend)
        patch, _, _ = patcher.rebuild(sessions.WHOLE_HISTORY, sessions.without_row_that_joins)
        patcher.apply(patch)
        assert sessions.audited(release, "meter_sessions") == []
        return release

    on_both(act)


@pytest.mark.extended
def test_records_on_which_code_fails(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, event = errors.failing_dataset(tmp_path), errors.event
    # Two failing records of a batch are tolerated, three of a run.
    monkeypatch.setattr(silver_code, "ALWAYS_TOLERATED", 2)

    def act(backend: str) -> SmallRelease:
        release = small_release(spark, Settings(state=tmp_path / backend, backend=backend), "weather", folder)
        release.ingest([event(0), event(1, dewp="0"), event(2, dewp='0,"humid":1e1')])
        release.ingest([event(3, partition=1), event(4, wind_dir="360", partition=1), event(5), Record(b"broken")])
        release.refine(0, 1)
        rules = {place: rule for place, (rule, _) in errors.verdicts(release).items()}
        failing = dict.fromkeys((errors.DIVIDED, errors.ESCAPED, errors.OVERFLOWN), "transform_error")
        assert rules == {**failing, (0, 104): "malformed"}
        patcher = SlicePatcher(copy_release(release, tmp_path / f"copy of {backend}"), tmp_path)
        assert set(patcher.rebuild(errors.FAILED)[2].values()) == {0}
        return release

    on_both(act)


@pytest.mark.extended
def test_rows_without_an_event_time(spark: SparkSession, tmp_path: Path) -> None:
    declared = Path(shutil.copytree(METER, tmp_path / "meter", ignore=shutil.ignore_patterns("__pycache__")))
    code = declared / "silver.py"
    timeless = "return accepted.selectExpr('* except (read_at)', 'nullif(read_at, timestamp_seconds(0)) as read_at')  #"
    code.write_text(code.read_text().replace("return accepted", timeless))

    def act(backend: str) -> SmallRelease:
        release = small_release(spark, Settings(state=tmp_path / backend, backend=backend), "meter", declared)
        timeless = json.dumps(
            {"event_id": "e", "device": "d1", "litres": 1, "read_at": "1970-01-01T00:00:00Z"}
        ).encode()
        release.take([Record(timeless, partition=1), reading(1, 1)])
        release.take([Record(timeless), reading(2, 2)])
        silver, log = release.silver(), facts(release)["silver.meter"]
        assert silver["read_at"].null_count() == 1
        assert [sorted(each["event_time_max"]) for each in log if "event_time_max" in each] == [["0"], ["0"]]
        return release

    on_both(act)


@pytest.mark.extended
def test_derived_dataset(spark: SparkSession, tmp_path: Path) -> None:
    def act(backend: str) -> DerivedSite:
        settings = Settings(state=tmp_path / backend)
        flights, weather = small_flights(spark, settings), small_release(spark, settings, "weather")
        site = DerivedSite(spark, settings, flights, weather, derived_opened(spark, settings))
        site.restart(backend)
        weather.take([wind(hour, 4.5 * hour) for hour in range(6)])
        for numbers in (range(8), range(8, 12), range(0)):
            flights.take([flight(number, number % 5, 9 * number) for number in numbers])
            site.follow()
        # Only weather of an hour without flights: the run finds no grain with other rows.
        weather.take([wind(40, 1.0)])
        assert site.follow() == 1
        return site

    local, by_spark = (act(backend) for backend in BACKENDS)
    found, expected = (
        pinned(each.settings).read(f"gold.{DERIVED}").collect().sort("hour", "origin") for each in (by_spark, local)
    )
    assert_frame_equal(found, expected)
    assert facts_of(by_spark.derived.tables[0].target.table) == facts_of(local.derived.tables[0].target.table)
    assert by_spark.unfenced() == []
