"""Sessions: late rows lengthen and join them, patches split them, and every way of computing them agrees."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from declared_gold import MIDNIGHT, audited, meter_release, reading
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from slice_patcher import SlicePatcher
from small_release import Record, SmallRelease

from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.errors import Terminal
from include.state.release_files import PatchDirection
from spark_jobs.history.rebuild_gold import refuse_expired_grains
from spark_jobs.tables.failpoints import Step

GOLD = """
  meter_sessions:
    kind: additive
    session: {column: read_at, gap: 10 minutes, start: since, end: until}
    keys: [device]
    measures:
      readings: {count: "*"}
      litres: {sum: litres}
      closed_by: {last: litres}
"""
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
Found = list[tuple[str, float, float, int, int]]


def sessions(release: SmallRelease) -> Found:
    """Return device, first and last minute, readings and litres of each session."""
    rows = release.read("gold.meter_sessions").sort("device", "since").to_dicts()
    minutes = [[(row[name] - MIDNIGHT).total_seconds() / 60 for name in ("since", "until")] for row in rows]
    return [(row["device"], *at, row["readings"], row["litres"]) for row, at in zip(rows, minutes, strict=True)]  # type: ignore[misc]


def by_python(readings: list[tuple[str, float, int]]) -> Found:
    found: Found = []
    for device, minute, litres in sorted(readings):
        if found and found[-1][0] == device and minute - found[-1][2] <= 10:
            _, since, _, count, sum_ = found.pop()
            found.append((device, since, minute, count + 1, sum_ + litres))
        else:
            found.append((device, minute, minute, 1, litres))
    return found


def records(readings: list[tuple[str, float, int]]) -> list[Record]:
    return [reading(device, minute, litres) for device, minute, litres in readings]


# A gap of exactly 10 minutes joins; 10.1 does not. After 4,320 minutes March begins, and another partition.
FIRST = [("d1", 0.0, 1), ("d1", 30.0, 2), ("d1", 50.1, 4), ("d2", 4315.0, 8), ("d2", 4330.0, 16)]
LATE = [("d1", 10.0, 32), ("d1", 20.0, 64), ("d1", 40.0, 128), ("d2", 4322.0, 256), ("d3", 5.0, 512), ("d3", 5.5, 1)]


@pytest.fixture(scope="module")
def release(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    release = meter_release(spark, tmp_path_factory.mktemp("sessions"), GOLD)
    release.cut_gold()
    release.take(records(FIRST))
    assert sessions(release) == by_python(FIRST)
    release.take(records(LATE))
    return release


def test_late_rows_join_sessions_also_across_partitions(release: SmallRelease) -> None:
    assert sessions(release) == by_python(FIRST + LATE)
    assert sessions(release)[:2] == [("d1", 0, 40, 5, 227), ("d1", 50.1, 50.1, 1, 4)]


def test_audit_recomputes_sessions(release: SmallRelease) -> None:
    assert audited(release, "meter_sessions") == []


def without_row_that_joins(folder: Path) -> None:
    path = folder / "silver.py"
    kept = 'return accepted.withColumn("device", accepted.device).selectExpr("*")'
    path.write_text(path.read_text().replace("return accepted", kept))
    contract = folder / "contract.yaml"
    contract.write_text(contract.read_text().replace("maximum: 1000", "maximum: 100"))


@pytest.mark.extended
def test_rebuild_is_equal_and_a_patch_splits_sessions(release: SmallRelease, tmp_path: Path) -> None:
    patcher = SlicePatcher(release, tmp_path)
    _, _, differing = patcher.rebuild(WHOLE_HISTORY)
    assert not any(differing.values())
    patch, _, differing = patcher.rebuild(WHOLE_HISTORY, without_row_that_joins)
    assert differing["gold.meter_sessions"] == 3
    patcher.apply(patch)
    assert sessions(release) == by_python([each for each in FIRST + LATE if each[2] <= 100])
    assert audited(release, "meter_sessions") == []


def wrong(release: SmallRelease, changes: dict[str, str] | None, condition: str) -> None:
    """Change or delete published sessions behind the platform's back."""
    delta = DeltaTable(str(release.release.gold[0].table.spec.path))
    if changes is None:
        delta.delete(condition)
    else:
        delta.update(changes, predicate=condition)
    release.restart()
    release.take([])


@pytest.mark.extended
def test_patch_recomputes_the_sessions_near_its_rows_as_they_are_now_and_no_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    near = [("d1", 0.0, 1), ("d1", 9.0, 500), ("d1", 18.0, 2), ("d1", 40.0, 4)]
    far, joining = [("d1", 600.0, 7), ("d1", 605.0, 7)], [("d1", 27.0, 8), ("d1", 34.0, 16)]
    release = meter_release(spark, tmp_path / "site", GOLD)
    release.cut_gold()
    release.take(records(near + far))
    # A far session of the same key is made wrong, so that its recomputation would show.
    wrong(release, {"litres": "litres + 1000"}, f"since > '{MIDNIGHT:%Y-%m-%d} 09:00:00'")
    patcher = SlicePatcher(release, tmp_path)
    patch, _, differing = patcher.rebuild(Slice([Span(0, 101, 102, BRONZE)]), without_row_that_joins)
    assert differing["gold.meter_sessions"] == 1
    before = pl.read_parquet(patch.folder.rows("before", "gold.meter_sessions") / "*.parquet")
    assert before["litres"].to_list() == [503]
    release.take(records(joining))
    revisions = release.read("gold.meter_sessions").sort("since")["_revision"].to_list()
    patcher.apply(patch)
    right = by_python([each for each in near + joining + far if each[2] != 500])
    assert sessions(release) == [*right[:-1], (*right[-1][:4], 1014)]
    assert sessions(release)[:2] == [("d1", 0, 0, 1, 1), ("d1", 18, 40, 4, 30)], "rows that came later are in it"
    assert release.read("gold.meter_sessions").sort("since")["_revision"].to_list()[-1] == revisions[-1]
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    assert sessions(release)[0] == ("d1", 0, 40, 6, 531)


@pytest.mark.extended
def test_session_that_gold_lacks_is_computed_whole_although_the_slice_has_a_part_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [("d1", float(minute), 1) for minute in (0, 8, 16, 24, 300, 308)]
    release = meter_release(spark, tmp_path / "site", GOLD)
    release.take(records(rows))
    wrong(release, None, f"since < '{MIDNIGHT:%Y-%m-%d} 01:00:00'")
    assert sessions(release) == by_python(rows[4:])
    patcher = SlicePatcher(release, tmp_path)
    patch, _, differing = patcher.rebuild(Slice([Span(0, 102, 103, BRONZE)]))
    assert differing["gold.meter_sessions"] == 1
    patcher.apply(patch)
    assert sessions(release) == by_python(rows)
    assert audited(release, "meter_sessions") == []


@pytest.mark.extended
def test_patch_leaves_far_sessions_of_its_keys_when_a_later_row_lengthens_one_that_it_does_not_correct(
    spark: SparkSession, tmp_path: Path
) -> None:
    others = [(f"d{number}", 5.0 + later, 1) for number in range(2, 10) for later in range(0, 400, 20)]
    release = meter_release(spark, tmp_path / "site", GOLD)
    release.cut_gold()
    release.take(records([("d1", 9.0, 500), *others, ("d1", 600.0, 7)]))
    wrong(release, {"litres": "litres + 1000"}, f"since > '{MIDNIGHT:%Y-%m-%d} 09:00:00'")
    release.cut_gold()
    assert len(release.release.gold[0].table.files()) > 1, "other keys are in other files"
    patcher = SlicePatcher(release, tmp_path)
    patch, _, differing = patcher.rebuild(Slice([Span(0, 100, 261, BRONZE)]), without_row_that_joins)
    assert differing["gold.meter_sessions"] == 1
    release.take(records([("d1", 900.0, 3), *((f"d{number}", 392.0, 2) for number in range(2, 10))]))
    patcher.apply(patch)
    assert [row for row in sessions(release) if row[0] == "d1"] == [("d1", 600, 600, 1, 1007), ("d1", 900, 900, 1, 3)]


@pytest.mark.extended
def test_patch_is_refused_when_a_session_that_later_rows_joined_has_expired_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    release = meter_release(spark, tmp_path / "site", GOLD)
    release.take(records([("d1", 40.0, 4)]))
    release.take(records([("d1", 0.0, 1), ("d1", 9.0, 500), ("d1", 18.0, 2)]))
    patch, _, _ = SlicePatcher(release, tmp_path).rebuild(Slice([Span(0, 102, 103, BRONZE)]), without_row_that_joins, 1)
    writer, target = release.release.writer, release.release.gold[0]
    refuse_expired_grains(release.release.backend, target, writer.silver, patch.folder, release.refined(), complete=1)
    release.take(records([("d1", 27.0, 8), ("d1", 34.0, 16)]))
    writer, target = release.release.writer, release.release.gold[0]
    with pytest.raises(Terminal, match="gold.meter_sessions: 1 rows") as refused:
        refuse_expired_grains(
            release.release.backend, target, writer.silver, patch.folder, release.refined(), complete=1
        )
    assert refused.value.code == "grains-expired"


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(6))
def test_patches_of_random_slices_give_the_sessions_of_plain_python_despite_later_rows_and_a_crash(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    numbers = random.Random(seed)
    minutes = numbers.sample(range(4000), 160)
    rows = [(f"d{numbers.randrange(4)}", minute / 2, numbers.randrange(200)) for minute in minutes]
    release = meter_release(spark, tmp_path / "site", GOLD)
    release.cut_gold()
    for first in (0, 60):
        release.take(records(rows[first : first + 60]))
    patcher, begin = SlicePatcher(release, tmp_path), numbers.randrange(100)
    end = begin + 1 + numbers.randrange(20)
    patch, _, _ = patcher.rebuild(Slice([Span(0, 100 + begin, 100 + end, BRONZE)]), without_row_that_joins)
    release.take(records(rows[120:]))
    with pytest.raises(Died), dying_at(Step.PATCH_GOLD_COMMITTED):
        patcher.apply(patch)
    release.restart()
    patcher.apply(patch)
    kept = [each for place, each in enumerate(rows) if each[2] <= 100 or not begin <= place < end]
    assert len(kept) < len(rows), "the slice removes rows"
    assert sessions(release) == by_python(kept)
    assert audited(release, "meter_sessions") == []
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    assert sessions(release) == by_python(rows)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(3))
def test_random_rows_in_any_batches_give_the_sessions_of_plain_python(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    numbers = random.Random(seed)
    minutes = numbers.sample(range(3000), 250)
    readings = [(f"d{numbers.randrange(5)}", minute / 2, numbers.randrange(100)) for minute in minutes]
    release = meter_release(spark, tmp_path, GOLD)
    release.cut_gold()
    for first in range(0, len(readings), 50):
        release.take(records(readings[first : first + 50]))
        assert sessions(release) == by_python(readings[: first + 50])
    assert audited(release, "meter_sessions") == []
