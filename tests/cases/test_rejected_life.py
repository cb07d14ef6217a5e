"""The life of rejected records: fixed, reinstated, discarded, and wherever they are judged again, judged as decided."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from histories import History, copy_of
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from small_events import departed
from small_release import Record, SmallRelease, small_release

from include.catalog.history_slice import BRONZE, Slice, Span
from include.planning.rejected_decisions import record_spans
from include.reading.amendments import DISCARD, FIX, REINSTATE, Decision, amendments, append_decisions
from include.reading.publication import published_tables
from include.reading.published_tables import PinnedTables
from include.reading.rejected_records import (
    DISCARDED,
    DUPLICATE,
    FIXED,
    OPEN,
    RejectedFilter,
    reinstated_coordinates,
    rejected_coordinates,
    rejected_records,
)
from include.settings import Settings
from spark_jobs.storage.failpoints import Step

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
BROKEN, FAR, WINNER, LOSER = (0, 101), (0, 102), (0, 100), (1, 5000)
BATCHES = [
    [departed(1, 5), Record(b"broken"), departed(2, 9, distance=99_999)],
    [departed(1, 7, partition=1), departed(3, 1)],
]
EVERYTHING = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])


@pytest.fixture(scope="module")
def production(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    release = small_release(spark, Settings(state=tmp_path_factory.mktemp("life") / "production"), "flights")
    for records in BATCHES:
        release.take(records)
    return release


@pytest.fixture
def told(production: SmallRelease, tmp_path: Path) -> History:
    return History(copy_of(production, tmp_path / "production"), tmp_path)


def decide(told: History, act: str, place: tuple[int, int], payload: bytes | None = None) -> int:
    said = Decision(act, *place, batch=0, at=NOON, by="ann", why="a test", payload=payload)
    return append_decisions(told.production.settings, "flights", [said])


def reinstate(told: History, *places: tuple[int, int]) -> dict[str, int]:
    for place in places:
        decide(told, REINSTATE, place)
    correction, _, differing = told.redo(Slice(record_spans(places)))
    told.apply(correction)
    return differing


def statuses(told: History) -> dict[tuple[int, int], str]:
    decided = amendments(told.production.settings, "flights")
    reading = PinnedTables(published_tables(told.production.settings))
    found = {(r.partition, r.offset): r.status for r in rejected_records(reading, "flights", decided=decided)}
    assert not set(found) & set(reinstated_coordinates(reading, "flights", decided))
    return found


def everywhere(told: History) -> list[tuple[int, int]]:
    """The place of each record, silver and rejected together: each record once."""
    made = told.production
    found = [
        *made.silver().select("_partition", "_offset").rows(),
        *made.rejected().select("_partition", "_offset").rows(),
    ]
    bronze = made.read("bronze.flights").select("partition", "offset").rows()
    assert sorted(found) == sorted(bronze)
    return found


def value(record: Record) -> bytes:
    assert record.value is not None
    return record.value


def test_a_fix_is_judged_and_the_record_stays_as_it_came(told: History) -> None:
    bronze = told.production.read("bronze.flights")
    assert statuses(told) == {BROKEN: OPEN, FAR: OPEN, LOSER: DUPLICATE}
    assert decide(told, FIX, BROKEN, value(departed(8, 3))) == 1
    assert decide(told, FIX, BROKEN, value(departed(8, 3))) == 0, "the same decision again"
    assert statuses(told)[BROKEN] == FIXED
    differing = reinstate(told, BROKEN)
    assert (differing["silver.flights"], differing["rejected.flights"]) == (1, 1)
    assert statuses(told) == {FAR: OPEN, LOSER: DUPLICATE}
    assert set(reinstate(told, BROKEN).values()) == {0}, "twice is once"
    everywhere(told)
    assert told.production.read("bronze.flights").equals(bronze)
    # Whatever is judged again is judged with the fix: a backfill of all finds nothing to correct.
    assert set(told.redo(EVERYTHING)[2].values()) == {0}


def test_another_release_is_built_with_the_fixes(told: History, spark: SparkSession) -> None:
    decide(told, FIX, BROKEN, value(departed(8, 3)))
    decide(told, DISCARD, WINNER)
    other = small_release(spark, Settings(state=told.folder / "other"), "flights")
    for place, amendment in amendments(told.production.settings, "flights").items():
        assert place
        append_decisions(other.settings, "flights", amendment.decisions)
    for records in BATCHES:
        other.ingest(records)
    other.refine(0, 1)
    silver = {(p, o) for p, o in other.silver().select("_partition", "_offset").rows()}
    # The discarded record was the winner of its identity: the duplicate takes its place.
    assert silver == {BROKEN, LOSER, (0, 103)}
    reasons = {(r["_partition"], r["_offset"]): r["reasons"][0]["rule"] for r in other.rejected().to_dicts()}
    assert reasons == {WINNER: "discarded", FAR: "range"}


def test_a_fix_in_vain_stays_rejected_with_the_reasons_of_the_fix(told: History) -> None:
    decide(told, FIX, BROKEN, value(departed(8, 3, distance=0)))
    reinstate(told, BROKEN)
    assert statuses(told)[BROKEN] == FIXED
    rules = {r["_offset"]: r["reasons"][0]["rule"] for r in told.production.rejected().to_dicts()}
    assert rules[BROKEN[1]] == "range"


def test_a_fix_may_turn_out_to_be_a_duplicate(told: History) -> None:
    decide(told, FIX, BROKEN, value(departed(1, 5)))
    reinstate(told, BROKEN)
    assert statuses(told)[BROKEN] == DUPLICATE
    everywhere(told)


def test_reinstate_discard_reinstate(told: History) -> None:
    """Each step is done again from its start, as after a crash: every record is in one place all the while."""
    fixed = value(departed(8, 3))
    decide(told, FIX, BROKEN, fixed)
    decide(told, DISCARD, BROKEN)
    assert statuses(told)[BROKEN] == DISCARDED
    correction, _, differing = told.redo(Slice(record_spans([BROKEN])))
    # With the fix it would be accepted, but it is to stay out: only the reason is another one.
    assert (differing["silver.flights"], differing["rejected.flights"]) == (0, 1)
    told.apply(correction)
    told.apply(correction)
    assert statuses(told)[BROKEN] == DISCARDED
    assert BROKEN not in told.production.silver().select("_partition", "_offset").rows()
    for _ in range(2):
        reinstate(told, BROKEN)
        everywhere(told)
        assert BROKEN in told.production.silver().select("_partition", "_offset").rows()


def test_a_discarded_record_that_breaks_the_contract_keeps_its_reasons(told: History) -> None:
    decide(told, DISCARD, FAR)
    assert set(told.redo(EVERYTHING)[2].values()) == {0}


def test_what_is_selected(told: History) -> None:
    decide(told, DISCARD, FAR)
    decided = amendments(told.production.settings, "flights")
    reading = PinnedTables(published_tables(told.production.settings))

    def places(**said: object) -> set[tuple[int, int]]:
        return set(rejected_coordinates(reading, "flights", RejectedFilter(**said), decided))  # type: ignore[arg-type]

    assert places() == {BROKEN, FAR, LOSER}
    assert places(reason="range") == places(column="distance") == places(status=DISCARDED) == {FAR}
    assert places(status=OPEN) == {BROKEN}
    assert places(disposition="duplicate") == places(offsets={1: (0, 9999)}) == {LOSER}
    assert places(offsets={0: (101, 102), 1: (5000, 5001)}) == {BROKEN, LOSER}
    first = told.production.rejected()["first_seen"].min()
    assert places(until=first) == set()
    assert places(since=first) == {BROKEN, FAR, LOSER}


def test_a_decision_between_silver_and_rejected_waits_for_the_next_judgement(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Another release takes the record over, dies half way, and the record is fixed meanwhile: each record once."""
    release = small_release(spark, Settings(state=tmp_path / "production"), "flights")
    told = History(release, tmp_path)
    with pytest.raises(Died), dying_at(Step.SILVER_COMMITTED):
        release.take(BATCHES[0])
    assert decide(told, FIX, BROKEN, departed(9, 1).value) == 1
    release.restart()
    release.refine(0, 0)
    everywhere(told)
    assert statuses(told)[BROKEN] == FIXED
