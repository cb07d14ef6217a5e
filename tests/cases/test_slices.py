"""Slices of history done again: equal where nothing changed, closed where something did, taken back where asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession
from small_events import departed, flight_event
from small_release import Record, SmallRelease, small_release

from include.catalog.dataset import load_dataset
from include.catalog.slice import BRONZE, Slice, Span
from include.places import correction_path
from include.reading.publication import publish, read_publication
from include.settings import CLONE, Settings
from spark_jobs.contract.judge import compiled_judge
from spark_jobs.layers.correct import APPLY, UNDO, Correction, MovedOn, apply_correction
from spark_jobs.layers.grains import redo_gold
from spark_jobs.layers.release import Release, load_transformation, pinned_release
from spark_jobs.layers.slices import Folder, Redone, redo_records, span_files, spans_condition
from spark_jobs.refine import publication_of, refined_batch

FLIGHTS = CLONE / "include" / "datasets" / "flights"
EVERYTHING = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
GOLD = ("carrier_hours", "route_days", "flight_status", "worst_delays")
TABLES = ("silver.flights", "rejected.flights", *(f"gold.{name}" for name in GOLD))

Edit = Callable[[Path], None]


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


def silver(accepted: DataFrame) -> DataFrame:
    later = F.expr("scheduled_departure + if(carrier = 'UA', interval 1 hour, interval 0 hours)")
    return told(accepted).withColumn("scheduled_departure", later)
""",
        "utf-8",
    )


@dataclass
class History:
    """A release in production, and slices of it done again, with the same code or with another."""

    production: SmallRelease
    folder: Path
    plans: int = 0

    def redo(self, wanted: Slice, edit: Edit | None = None) -> tuple[Correction, Redone, dict[str, int]]:
        self.plans += 1
        made, seen = self.production, read_publication(self.production.settings, "flights")
        versions = {name: table.version for name, table in seen.tables.items()}
        pinned = pinned_release(made.spark, made.settings, made.dataset, versions)
        release = pinned if edit is None else self._with_code_of(pinned, edit)
        plan = f"test-flights-{self.plans}"
        folder = Folder(correction_path(made.settings, "flights", made.dataset.release, plan))
        bronze = release.refinery.bronze
        files = span_files(bronze, wanted, "partition", "offset")
        records = bronze.read(made.spark, files).where(spans_condition(wanted, "partition", "offset"))
        done = redo_records(release, records, wanted, folder)
        gold = {t.table.spec.name: redo_gold(t, release.refinery.silver, folder, seen.batch) for t in release.gold}
        return Correction(plan, folder, seen.batch, APPLY), done, {**done.differing, **gold}

    def _with_code_of(self, pinned: Release, edit: Edit) -> Release:
        other = load_dataset("flights", edited(self.folder, edit))
        refinery = replace(pinned.refinery, judge=compiled_judge(other.contract), transform=load_transformation(other))
        return replace(pinned, refinery=refinery)

    def apply(self, correction: Correction) -> None:
        made = self.production
        batch = refined_batch(made.release)
        apply_correction(made.release, correction, batch, made.epoch)
        publish(made.settings, publication_of(made.settings, made.release, batch))

    def tables(self) -> dict[str, list[tuple[object, ...]]]:
        return visible(self.production)


def edited(place: Path, edit: Edit) -> Path:
    folder = place / edit.__name__
    if not folder.exists():
        shutil.copytree(FLIGHTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        edit(folder)
    return folder


def visible(release: SmallRelease) -> dict[str, list[tuple[object, ...]]]:
    """Return what every table says, in an order of its own, without the history of gold."""
    return {name: sorted(plain(release.read(name)).rows(), key=repr) for name in TABLES}


def plain(table: pl.DataFrame) -> pl.DataFrame:
    left_out = {"_first_batch", "_last_batch", "_revision", "_tails_sketch", "contract_version"}
    return table.select(sorted(set(table.columns) - left_out))


@pytest.fixture
def history(spark: SparkSession, tmp_path: Path) -> Callable[[Sequence[Sequence[Record]]], History]:
    def begun(batches: Sequence[Sequence[Record]]) -> History:
        release = small_release(spark, Settings(state=tmp_path / "production"), "flights")
        for records in batches:
            release.take(records)
        return History(release, tmp_path)

    return begun


def from_scratch(
    spark: SparkSession, history: History, edit: Edit, batches: Sequence[Sequence[Record]]
) -> dict[str, list[tuple[object, ...]]]:
    """What all of history says with the other code."""
    settings = Settings(state=history.folder / "from scratch")
    release = small_release(spark, settings, "flights", edited(history.folder, edit))
    for records in batches:
        release.take(records)
    return visible(release)


def flight(number: int, **fields: object) -> Record:
    return departed(number, 20, **fields)  # type: ignore[arg-type]


WINNER = flight(1, distance=1400)
LOSER = flight(1, distance=1200, partition=1)
BATCHES = [
    [WINNER, flight(2, distance=900), flight_event("scheduled", 1, distance=900), Record(b"no json")],
    [LOSER, flight(3, distance=900, carrier="DL"), flight(2, distance=900)],
    [flight(1, distance=1100), flight(4, distance=900, at="2013-04-02T10:10:00Z", scheduled="2013-04-02T10:00:00Z")],
]


def test_the_same_code_gives_the_same_rows(history: Callable[..., History]) -> None:
    told = history(BATCHES)
    before = told.production.versions()
    for wanted in (
        EVERYTHING,
        Slice([Span(0, 101, 103, BRONZE)]),
        Slice(EVERYTHING.spans, datetime(2013, 4, 2, 10, tzinfo=UTC), datetime(2013, 4, 2, 10, 5, tzinfo=UTC)),
    ):
        _, done, differing = told.redo(wanted)
        assert done.core > 0
        assert differing == dict.fromkeys(TABLES, 0), wanted
    assert told.production.versions() == before


def test_a_winner_that_is_rejected_makes_room_for_its_duplicate(
    spark: SparkSession, history: Callable[..., History]
) -> None:
    told = history(BATCHES)
    before = told.tables()
    # The winner alone is asked for; both duplicates are of other batches.
    correction, done, differing = told.redo(Slice([Span(0, 100, 101, BRONZE)]), lower_distance)
    assert (done.core, done.kin) == (1, 2)
    assert differing["silver.flights"] == 2
    assert differing["rejected.flights"] == 3
    told.apply(correction)
    assert told.tables() == from_scratch(spark, told, lower_distance, BATCHES)
    versions = told.production.versions()
    told.apply(correction)
    assert told.production.versions() == versions
    told.apply(replace(correction, way=UNDO))
    assert told.tables() == before


def test_a_key_moves_to_another_window(spark: SparkSession, history: Callable[..., History]) -> None:
    told = history(BATCHES)
    correction, done, _ = told.redo(EVERYTHING, an_hour_later)
    assert done.kin == 0
    told.apply(correction)
    assert told.tables() == from_scratch(spark, told, an_hour_later, BATCHES)


def test_a_window_half_in_the_slice_is_computed_whole(history: Callable[..., History]) -> None:
    told = history([[flight(n, at=f"2013-04-02T10:{n}:00Z", scheduled=f"2013-04-02T10:{n}:00Z") for n in (10, 20, 40)]])
    half = Slice(EVERYTHING.spans, datetime(2013, 4, 2, 10, 30, tzinfo=UTC), datetime(2013, 4, 2, 11, tzinfo=UTC))
    correction, done, differing = told.redo(half, an_hour_later)
    assert (done.core, differing["silver.flights"], differing["gold.carrier_hours"]) == (1, 1, 2)
    told.apply(correction)
    hours = told.production.read("gold.carrier_hours").sort("hour")
    assert hours.select(F_HOUR, "departed").rows() == [(10, 2), (11, 1)]


F_HOUR = pl.col("hour").dt.hour().cast(pl.Int64)


def test_rows_that_somebody_changed_are_mended(history: Callable[..., History], spark: SparkSession) -> None:
    told = history(BATCHES)
    before = told.tables()
    wrong, _, _ = told.redo(EVERYTHING, an_hour_later)
    told.apply(wrong)
    mend, _, differing = told.redo(EVERYTHING)
    assert all(differing[name] for name in ("silver.flights", "gold.carrier_hours", "gold.flight_status"))
    told.apply(mend)
    assert told.tables() == before


def test_what_has_moved_on_is_refused(history: Callable[..., History]) -> None:
    told = history(BATCHES)
    correction, _, _ = told.redo(Slice([Span(0, 100, 101, BRONZE)]), lower_distance)
    told.production.take([flight(1, distance=1000)])
    before = (told.tables(), told.production.versions())
    with pytest.raises(MovedOn, match="since plan"):
        told.apply(correction)
    assert (told.tables(), told.production.versions()) == before


def test_others_that_came_since_stay(spark: SparkSession, history: Callable[..., History]) -> None:
    told = history(BATCHES)
    correction, _, _ = told.redo(Slice([Span(0, 100, 101, BRONZE)]), lower_distance)
    more = [flight(7, distance=800), flight(8, distance=800, scheduled="2013-04-02T10:00:00Z")]
    told.production.take(more)
    told.apply(correction)
    assert told.tables() == from_scratch(spark, told, lower_distance, [*BATCHES, more])
