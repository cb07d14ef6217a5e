"""Rejected records are fixed, reinstated or discarded; every later validation follows the decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from fewer_gold_tables import small_flights
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from slice_patcher import SlicePatcher
from small_events import departed
from small_release import Record, SmallRelease

from include.change.reinstate import record_spans
from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings
from include.read.publication import published_tables
from include.read.published_tables import PinnedTables
from include.read.rejected_records import (
    ALL_REJECTED,
    DISCARD,
    DISCARDED,
    DUPLICATE,
    FIX,
    FIXED,
    OPEN,
    REINSTATE,
    Decision,
    RejectedFilter,
    append_decisions,
    decided_records,
    rejected_coordinates,
    rejected_records,
)
from spark_jobs.tables.failpoints import Step

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
BROKEN, FAR, WINNER, LOSER = (0, 101), (0, 102), (0, 100), (1, 5000)
BATCHES = [
    [departed(1, 5), Record(b"broken"), departed(2, 9, distance=99_999)],
    [departed(1, 7, partition=1), departed(3, 1)],
]
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])


@pytest.fixture(scope="module")
def production(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    return small_flights(spark, Settings(state=tmp_path_factory.mktemp("life") / "production"), BATCHES)


def decide(patcher: SlicePatcher, action: str, coordinates: tuple[int, int], payload: bytes | None = None) -> int:
    decision = Decision(action, *coordinates, batch=0, at=NOON, by="ann", why="a test", payload=payload)
    return append_decisions(patcher.production.settings, "flights", [decision])


def reinstate(patcher: SlicePatcher, *records: tuple[int, int]) -> dict[str, int]:
    for coordinates in records:
        decide(patcher, REINSTATE, coordinates)
    patch, _, differing = patcher.rebuild(Slice(record_spans(records)))
    patcher.apply(patch)
    return differing


def statuses(patcher: SlicePatcher) -> dict[tuple[int, int], str]:
    decided = decided_records(patcher.production.settings, "flights")
    reading = PinnedTables(published_tables(patcher.production.settings))
    found = {(r.partition, r.offset): r.status for r in rejected_records(reading, "flights", decided=decided)}
    assert set(found) == set(rejected_coordinates(reading, "flights", ALL_REJECTED, decided))
    return found


def assert_each_record_once(patcher: SlicePatcher) -> None:
    """Every bronze record is once in silver or rejected."""
    production = patcher.production
    found = [
        *production.silver().select("_partition", "_offset").rows(),
        *production.rejected().select("_partition", "_offset").rows(),
    ]
    bronze = production.read("bronze.flights").select("partition", "offset").rows()
    assert sorted(found) == sorted(bronze)


def value(record: Record) -> bytes:
    assert record.value is not None
    return record.value


def test_fix_is_validated_and_bronze_stays_unchanged(patcher: SlicePatcher) -> None:
    bronze = patcher.production.read("bronze.flights")
    assert statuses(patcher) == {BROKEN: OPEN, FAR: OPEN, LOSER: DUPLICATE}
    assert decide(patcher, FIX, BROKEN, value(departed(8, 3))) == 1
    assert decide(patcher, FIX, BROKEN, value(departed(8, 3))) == 0, "a repeated decision must not be added"
    assert statuses(patcher)[BROKEN] == FIXED
    differing = reinstate(patcher, BROKEN)
    assert (differing["silver.flights"], differing["rejected.flights"]) == (1, 1)
    assert statuses(patcher) == {FAR: OPEN, LOSER: DUPLICATE}
    assert set(reinstate(patcher, BROKEN).values()) == {0}, "a second reinstatement must change nothing"
    assert_each_record_once(patcher)
    assert patcher.production.read("bronze.flights").equals(bronze)
    # Later validations use the fix: a backfill of all batches finds no difference.
    assert set(patcher.rebuild(WHOLE_HISTORY)[2].values()) == {0}


@pytest.mark.extended
def test_new_release_is_built_with_decisions(patcher: SlicePatcher, spark: SparkSession) -> None:
    decide(patcher, FIX, BROKEN, value(departed(8, 3)))
    decide(patcher, DISCARD, WINNER)
    other = small_flights(spark, Settings(state=patcher.folder / "other"))
    for record in decided_records(patcher.production.settings, "flights").values():
        append_decisions(other.settings, "flights", record.decisions)
    for records in BATCHES:
        other.ingest(records)
    other.refine(0, 1)
    silver = {(p, o) for p, o in other.silver().select("_partition", "_offset").rows()}
    # The discarded record was the winner of its identity: its duplicate is accepted.
    assert silver == {BROKEN, LOSER, (0, 103)}
    reasons = {(r["_partition"], r["_offset"]): r["reasons"][0]["rule"] for r in other.rejected().to_dicts()}
    assert reasons == {WINNER: "discarded", FAR: "range"}


def test_invalid_fix_stays_rejected_with_its_own_reasons(patcher: SlicePatcher) -> None:
    decide(patcher, FIX, BROKEN, value(departed(8, 3, distance=0)))
    reinstate(patcher, BROKEN)
    assert statuses(patcher)[BROKEN] == FIXED
    rules = {r["_offset"]: r["reasons"][0]["rule"] for r in patcher.production.rejected().to_dicts()}
    assert rules[BROKEN[1]] == "range"


@pytest.mark.extended
def test_fix_with_known_identity_is_a_duplicate(patcher: SlicePatcher) -> None:
    decide(patcher, FIX, BROKEN, value(departed(1, 5)))
    reinstate(patcher, BROKEN)
    assert statuses(patcher)[BROKEN] == DUPLICATE
    assert_each_record_once(patcher)


@pytest.mark.extended
def test_record_is_reinstated_after_discard(patcher: SlicePatcher) -> None:
    """Every record stays in exactly one table."""
    decide(patcher, FIX, BROKEN, value(departed(8, 3)))
    decide(patcher, DISCARD, BROKEN)
    assert statuses(patcher)[BROKEN] == DISCARDED
    patch, _, differing = patcher.rebuild(Slice(record_spans([BROKEN])))
    # The fix is valid but the record is discarded: only its reason changes.
    assert (differing["silver.flights"], differing["rejected.flights"]) == (0, 1)
    patcher.apply(patch)
    assert statuses(patcher)[BROKEN] == DISCARDED
    assert BROKEN not in patcher.production.silver().select("_partition", "_offset").rows()
    reinstate(patcher, BROKEN)
    assert_each_record_once(patcher)
    assert BROKEN in patcher.production.silver().select("_partition", "_offset").rows()


def test_discarded_invalid_record_keeps_its_reasons(patcher: SlicePatcher) -> None:
    decide(patcher, DISCARD, FAR)
    assert set(patcher.rebuild(WHOLE_HISTORY)[2].values()) == {0}


def test_filters_select_rejected_records(patcher: SlicePatcher) -> None:
    decide(patcher, DISCARD, FAR)
    decided = decided_records(patcher.production.settings, "flights")
    reading = PinnedTables(published_tables(patcher.production.settings))

    def selected(**filters: object) -> set[tuple[int, int]]:
        return set(rejected_coordinates(reading, "flights", RejectedFilter(**filters), decided))  # type: ignore[arg-type]

    assert selected() == {BROKEN, FAR, LOSER}
    assert selected(reason="range") == selected(column="distance") == selected(status=DISCARDED) == {FAR}
    assert selected(status=OPEN) == {BROKEN}
    assert selected(disposition="duplicate") == selected(offsets={1: (0, 9999)}) == {LOSER}
    assert selected(offsets={0: (101, 102), 1: (5000, 5001)}) == {BROKEN, LOSER}
    first = patcher.production.rejected()["first_seen"].min()
    assert selected(until=first) == set()
    assert selected(since=first) == {BROKEN, FAR, LOSER}


def test_decision_between_silver_and_rejected_commit_waits_for_next_validation(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A run dies between both commits and the record is fixed meanwhile: every record is still in one table."""
    settings = Settings(state=tmp_path / "production")
    release = small_flights(spark, settings)
    patcher = SlicePatcher(release, tmp_path)
    with pytest.raises(Died), dying_at(Step.SILVER_COMMITTED):
        release.take(BATCHES[0])
    assert decide(patcher, FIX, BROKEN, departed(9, 1).value) == 1
    release.restart()
    release.refine(0, 0)
    assert_each_record_once(patcher)
    assert statuses(patcher)[BROKEN] == FIXED
