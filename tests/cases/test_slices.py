"""Rebuilt slices: equal rows with the same code, complete duplicate closures with other code, and reverted patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from fewer_gold_tables import flights_with_gold
from pyspark.sql import SparkSession
from slice_patcher import Edit, SlicePatcher, edited_dataset
from small_events import departed, flight_event
from small_release import Record, SmallRelease, small_release

from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings
from include.state.release_files import PatchDirection
from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.history.apply_patch import PatchOutdated
from spark_jobs.history.rebuild_slice import FEW_SPANS, in_spans

WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
ONE_OF_EACH_KIND = ("carrier_hours", "flight_status", "worst_delays")

Visible = dict[str, list[tuple[object, ...]]]


def lower_distance(folder: Path) -> None:
    """Make the contract stricter: flights of 1,400 miles are rejected."""
    path = folder / "contract.yaml"
    text = path.read_text("utf-8")
    assert "name: distance" in text
    head, _, tail = text.partition("name: distance")
    assert "maximum: " in tail
    number = tail.partition("maximum: ")[2].split("}")[0].split(",")[0].strip()
    path.write_text(head + "name: distance" + tail.replace(f"maximum: {number}", "maximum: 1399", 1), "utf-8")


def delay_united(folder: Path) -> None:
    """Change silver.py: United's flights are scheduled an hour later."""
    path = folder / "silver.py"
    path.write_text(
        path.read_text("utf-8")
        + """

original = silver


def silver(accepted: DataFrame, **reference: DataFrame) -> DataFrame:
    later = F.expr("scheduled_departure + if(carrier = 'UA', interval 1 hour, interval 0 hours)")
    return original(accepted, **reference).withColumn("scheduled_departure", later)
""",
        "utf-8",
    )


def visible(release: SmallRelease) -> Visible:
    """Return the rows of every published table, sorted, without revisions, sketches and contract version."""
    return {name: sorted(comparable_columns(release.read(name)).rows(), key=repr) for name in release.versions()}


def comparable_columns(table: pl.DataFrame) -> pl.DataFrame:
    excluded = {"_first_batch", "_last_batch", "_revision", "_tails_sketch", "contract_version"}
    return table.select(sorted(set(table.columns) - excluded))


@pytest.fixture(scope="module")
def patcher(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SlicePatcher:
    """Return a patcher on one release; every test but the last restores its rows."""
    folder = tmp_path_factory.mktemp("slices")
    settings = Settings(state=folder / "production")
    release = small_release(spark, settings, "flights", flights_with_gold(*ONE_OF_EACH_KIND))
    for records in BATCHES:
        release.take(records)
    return SlicePatcher(release, folder)


def from_scratch(patcher: SlicePatcher, edit: Edit, batches: Sequence[Sequence[Record]]) -> Visible:
    """Return the rows of a new release that refined all batches with the edited code."""
    settings = Settings(state=patcher.folder / f"scratch {edit.__name__} {len(batches)}")
    edited = edited_dataset(patcher.folder, edit, patcher.production.dataset.folder)
    release = small_release(patcher.production.spark, settings, "flights", edited)
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
WINNER_ONLY = Slice([Span(0, 100, 101, BRONZE)])


def test_rebuild_with_same_code_gives_same_rows(patcher: SlicePatcher) -> None:
    before = patcher.production.versions()
    window = (datetime(2013, 4, 2, 10, tzinfo=UTC), datetime(2013, 4, 2, 10, 15, tzinfo=UTC))
    for selection, core in ((WHOLE_HISTORY, 11), (Slice(WHOLE_HISTORY.spans, *window), 2)):
        _, rebuilt, differing = patcher.rebuild(selection)
        assert (rebuilt.core, rebuilt.closure) == (core, 0)
        assert differing == dict.fromkeys(before, 0), selection
    assert patcher.production.versions() == before


@pytest.mark.extended
def test_duplicate_is_accepted_when_its_winner_is_rejected(patcher: SlicePatcher) -> None:
    before = visible(patcher.production)
    # The slice selects only the winner; both duplicates are in other batches.
    patch, rebuilt, differing = patcher.rebuild(WINNER_ONLY, lower_distance)
    assert (rebuilt.core, rebuilt.closure) == (1, 2)
    assert (differing["silver.flights"], differing["rejected.flights"]) == (2, 3)
    patcher.apply(patch)
    assert visible(patcher.production) == from_scratch(patcher, lower_distance, BATCHES)
    versions = patcher.production.versions()
    patcher.apply(patch)
    assert patcher.production.versions() == versions
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    assert visible(patcher.production) == before


@pytest.mark.extended
def test_key_that_moves_to_another_window_leaves_the_old_one(patcher: SlicePatcher) -> None:
    before = visible(patcher.production)
    wrong, rebuilt, _ = patcher.rebuild(WHOLE_HISTORY, delay_united)
    assert rebuilt.closure == 0
    patcher.apply(wrong)
    assert visible(patcher.production) == from_scratch(patcher, delay_united, BATCHES)
    # A rebuild with the original code restores the rows.
    repair, _, differing = patcher.rebuild(WHOLE_HISTORY)
    assert all(differing[name] for name in ("silver.flights", "gold.carrier_hours", "gold.flight_status"))
    patcher.apply(repair)
    assert visible(patcher.production) == before


@pytest.mark.extended
def test_window_partly_in_slice_is_computed_completely(patcher: SlicePatcher) -> None:
    half = Slice(WHOLE_HISTORY.spans, datetime(2013, 4, 2, 10, 30, tzinfo=UTC), datetime(2013, 4, 2, 11, tzinfo=UTC))
    patch, rebuilt, differing = patcher.rebuild(half, delay_united)
    # One event moves from the hour with three to the next; the broken record belongs to every slice of its span.
    assert (rebuilt.core, differing["silver.flights"], differing["gold.carrier_hours"]) == (2, 1, 2)
    patcher.apply(patch)
    hours = patcher.production.read("gold.carrier_hours").filter(pl.col("hour").dt.month() == 4).sort("hour")
    assert hours.select(pl.col("hour").dt.hour(), "departed").rows() == [(10, 2), (11, 1)]
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))


def test_patch_keeps_newer_records_and_is_refused_when_outdated(patcher: SlicePatcher) -> None:
    patch, _, _ = patcher.rebuild(WINNER_ONLY, lower_distance)
    patcher.production.take(MORE)
    patcher.apply(patch)
    assert visible(patcher.production) == from_scratch(patcher, lower_distance, [*BATCHES, MORE])
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    patch, _, _ = patcher.rebuild(WINNER_ONLY, lower_distance)
    patcher.production.take([flight(1, distance=1000)])
    before = (visible(patcher.production), patcher.production.versions())
    with pytest.raises(PatchOutdated, match="since plan"):
        patcher.apply(patch)
    assert (visible(patcher.production), patcher.production.versions()) == before


@pytest.mark.parametrize("count", [1, FEW_SPANS, FEW_SPANS + 1, 3 * FEW_SPANS])
def test_spans_select_their_records(count: int) -> None:
    spans = [Span(number % 3, 10 * number, 10 * number + 3, BRONZE) for number in range(count)]
    with duckdb_session() as duck:
        duck.create_table(
            "places", "select p::int as part, o::bigint as place from range(4) as a(p), range(700) as b(o)"
        )
        found = duck.rows(in_spans(Slice(spans), "places", "part", "place"))
    assert sorted(found) == sorted((s.partition, place) for s in spans for place in range(s.start, s.end))
