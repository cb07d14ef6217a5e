"""Slices of history done again: equal where nothing changed, closed where something did, taken back where asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from histories import Edit, History, edited
from pyspark.sql import SparkSession
from small_events import departed, flight_event
from small_release import Record, SmallRelease, small_release

from include.catalog.history_slice import BRONZE, Slice, Span
from include.settings import CLONE, Settings
from spark_jobs.engine.apply_patch import REVERT, PatchOutdated
from spark_jobs.engine.rebuild_slice import FEW_SPANS, in_spans
from spark_jobs.storage.duckdb_session import duckdb_session

FLIGHTS = CLONE / "include" / "datasets" / "flights"
EVERYTHING = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
GOLD = ("carrier_hours", "route_days", "flight_status", "worst_delays")
TABLES = ("silver.flights", "rejected.flights", *(f"gold.{name}" for name in GOLD))

Visible = dict[str, list[tuple[object, ...]]]


def lower_distance(folder: Path) -> None:
    """A stricter contract: what flew 1,400 miles is rejected."""
    path = folder / "contract.yaml"
    text = path.read_text("utf-8")
    assert "name: distance" in text
    head, _, tail = text.partition("name: distance")
    assert "maximum: " in tail
    number = tail.partition("maximum: ")[2].split("}")[0].split(",")[0].strip()
    path.write_text(head + "name: distance" + tail.replace(f"maximum: {number}", "maximum: 1399", 1), "utf-8")


def an_hour_later(folder: Path) -> None:
    """Another transformation: United's flights leave an hour later than they say."""
    path = folder / "silver.py"
    path.write_text(
        path.read_text("utf-8")
        + """

told = silver


def silver(accepted: DataFrame, **reference: DataFrame) -> DataFrame:
    later = F.expr("scheduled_departure + if(carrier = 'UA', interval 1 hour, interval 0 hours)")
    return told(accepted, **reference).withColumn("scheduled_departure", later)
""",
        "utf-8",
    )


def visible(release: SmallRelease) -> Visible:
    """Return what every table says, in an order of its own, without the history of gold."""
    return {name: sorted(plain(release.read(name)).rows(), key=repr) for name in TABLES}


def plain(table: pl.DataFrame) -> pl.DataFrame:
    left_out = {"_first_batch", "_last_batch", "_revision", "_tails_sketch", "contract_version"}
    return table.select(sorted(set(table.columns) - left_out))


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> History:
    """One release in production; every test leaves its tables saying what they said."""
    place = tmp_path_factory.mktemp("slices")
    release = small_release(spark, Settings(state=place / "production"), "flights")
    for records in BATCHES:
        release.take(records)
    return History(release, place)


def from_scratch(told: History, edit: Edit, batches: Sequence[Sequence[Record]]) -> Visible:
    """What all of history says with the other code."""
    settings = Settings(state=told.folder / f"scratch {edit.__name__} {len(batches)}")
    release = small_release(told.production.spark, settings, "flights", edited(told.folder, edit, FLIGHTS))
    for records in batches:
        release.ingest(records)
    release.refine(0, len(batches) - 1)
    return visible(release)


def flight(number: int, **fields: object) -> Record:
    return departed(number, 20, **fields)  # type: ignore[arg-type]


WINNER = flight(1, distance=1400)
LOSER = flight(1, distance=1200, partition=1)
TENS = [f"2013-04-02T10:{minute}:00Z" for minute in (10, 20, 40)]
BATCHES = [
    [WINNER, flight(2, distance=900), flight_event("scheduled", 1, distance=900), Record(b"no json")],
    [LOSER, flight(3, distance=900, carrier="DL"), flight(2, distance=900)],
    [flight(1, distance=1100), *[flight(5, distance=900, at=at, scheduled=at) for at in TENS]],
]
MORE = [flight(7, distance=800), flight(8, distance=800, scheduled="2013-04-02T10:00:00Z")]
WINNERS_OWN = Slice([Span(0, 100, 101, BRONZE)])


def test_the_same_code_gives_the_same_rows(told: History) -> None:
    before = told.production.versions()
    window = (datetime(2013, 4, 2, 10, tzinfo=UTC), datetime(2013, 4, 2, 10, 15, tzinfo=UTC))
    for wanted, core in ((EVERYTHING, 11), (Slice(EVERYTHING.spans, *window), 2)):
        _, done, differing = told.redo(wanted)
        assert (done.core, done.closure) == (core, 0)
        assert differing == dict.fromkeys(TABLES, 0), wanted
    assert told.production.versions() == before


def test_a_winner_that_is_rejected_makes_room_for_its_duplicate(told: History) -> None:
    before = visible(told.production)
    # The winner alone is asked for; both duplicates are of other batches.
    correction, done, differing = told.redo(WINNERS_OWN, lower_distance)
    assert (done.core, done.closure) == (1, 2)
    assert (differing["silver.flights"], differing["rejected.flights"]) == (2, 3)
    told.apply(correction)
    assert visible(told.production) == from_scratch(told, lower_distance, BATCHES)
    versions = told.production.versions()
    told.apply(correction)
    assert told.production.versions() == versions
    told.apply(replace(correction, way=REVERT))
    assert visible(told.production) == before


def test_a_key_that_moves_to_another_window_leaves_the_old_one(told: History) -> None:
    before = visible(told.production)
    wrong, done, _ = told.redo(EVERYTHING, an_hour_later)
    assert done.closure == 0
    told.apply(wrong)
    assert visible(told.production) == from_scratch(told, an_hour_later, BATCHES)
    # What somebody has changed by hand is mended in the same way.
    mend, _, differing = told.redo(EVERYTHING)
    assert all(differing[name] for name in ("silver.flights", "gold.carrier_hours", "gold.flight_status"))
    told.apply(mend)
    assert visible(told.production) == before


def test_a_window_half_in_the_slice_is_computed_whole(told: History) -> None:
    half = Slice(EVERYTHING.spans, datetime(2013, 4, 2, 10, 30, tzinfo=UTC), datetime(2013, 4, 2, 11, tzinfo=UTC))
    correction, done, differing = told.redo(half, an_hour_later)
    # One event moves from the hour with three to the next; the broken record belongs to every slice of its span.
    assert (done.core, differing["silver.flights"], differing["gold.carrier_hours"]) == (2, 1, 2)
    told.apply(correction)
    hours = told.production.read("gold.carrier_hours").filter(pl.col("hour").dt.month() == 4).sort("hour")
    assert hours.select(pl.col("hour").dt.hour(), "departed").rows() == [(10, 2), (11, 1)]
    told.apply(replace(correction, way=REVERT))


def test_what_came_since_stays_and_what_has_moved_on_is_refused(told: History) -> None:
    correction, _, _ = told.redo(WINNERS_OWN, lower_distance)
    told.production.take(MORE)
    told.apply(correction)
    assert visible(told.production) == from_scratch(told, lower_distance, [*BATCHES, MORE])
    told.apply(replace(correction, way=REVERT))
    correction, _, _ = told.redo(WINNERS_OWN, lower_distance)
    told.production.take([flight(1, distance=1000)])
    before = (visible(told.production), told.production.versions())
    with pytest.raises(PatchOutdated, match="since plan"):
        told.apply(correction)
    assert (visible(told.production), told.production.versions()) == before


@pytest.mark.parametrize("count", [1, FEW_SPANS, FEW_SPANS + 1, 3 * FEW_SPANS])
def test_records_of_few_spans_and_of_many(count: int) -> None:
    spans = [Span(number % 3, 10 * number, 10 * number + 3, BRONZE) for number in range(count)]
    with duckdb_session() as duck:
        duck.create_table(
            "places", "select p::int as part, o::bigint as place from range(4) as a(p), range(700) as b(o)"
        )
        found = duck.rows(in_spans(Slice(spans), "places", "part", "place"))
    assert sorted(found) == sorted((s.partition, place) for s in spans for place in range(s.start, s.end))
