"""Reference tables: a batch is joined with the versions that its commit names, whenever it is done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from histories import History, copy_of
from pyspark.sql import SparkSession
from small_events import departed, escaped
from small_release import Record, SmallRelease, small_release

from include.catalog.history_slice import BRONZE, Slice, Span
from include.reference.reference_tables import current_versions, load_reference
from include.settings import Settings
from spark_jobs.engine.apply_patch import REVERT

EVERYTHING = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
OLD, NEW = "Alaska Airlines Inc.", "Alaska"
Named = list[tuple[str, str | None]]


def of(carrier: str, number: int, partition: int = 0, **fields: object) -> Record:
    return departed(number, 20, carrier=carrier, partition=partition, **fields)  # type: ignore[arg-type]


def airlines(release: SmallRelease) -> Named:
    return [(row["flight_id"][18:], row["airline"]) for row in release.silver().to_dicts()]


def renamed(folder: Path) -> Path:
    """Alaska has another name, and an airline has come that nobody knew."""
    path = folder / "airlines.csv"
    path.write_text("carrier,name\nAS,Alaska\nZZ,Zeppelins\n")
    return path


@pytest.fixture(scope="module")
def production(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Two batches before the new airlines and two after them, the third of which repeats a record of the first."""
    place = tmp_path_factory.mktemp("reference")
    release = small_release(spark, Settings(state=place / "production"), "flights")
    first = of("AS", 1)
    release.take([first, of("ZZ", 2), of("AS", 3, tailnum="N10156", dest="BQN")])
    release.take([of("AS", 4, partition=1)])
    assert load_reference(release.settings, release.dataset, "airlines", renamed(place)).version == 1
    release.take([first, of("AS", 5), of("ZZ", 6, partition=1)])
    release.ingest([of("AS", 7)])
    return release


@pytest.fixture
def told(production: SmallRelease, tmp_path: Path) -> History:
    """The production in a place of the test's own."""
    return History(copy_of(production, tmp_path / "production"), tmp_path)


EXPECTED: Named = [("AS1/EWR", OLD), ("ZZ2/EWR", None), ("AS3/EWR", OLD), ("AS4/EWR", OLD)]
AFTER: Named = [("AS5/EWR", NEW), ("ZZ6/EWR", "Zeppelins"), ("AS7/EWR", NEW)]


def test_a_batch_is_joined_with_the_versions_of_its_day(told: History) -> None:
    release = told.production
    release.refine(3, 3)
    assert airlines(release) == [*EXPECTED, *AFTER]
    row = next(r for r in release.silver().to_dicts() if r["flight_id"].endswith("AS3/EWR"))
    assert (row["plane_year"], row["seats"], row["destination"]) == (2004, 55, None)


def test_one_run_over_batches_of_two_versions(told: History) -> None:
    other = Settings(state=told.folder / "other")
    again = small_release(told.production.spark, other, "flights")
    again.ingest([of("AS", 1), of("ZZ", 2), escaped(of("AS", 3))])
    again.ingest([of("AS", 4, partition=1)])
    load_reference(other, again.dataset, "airlines", renamed(told.folder))
    again.ingest([of("AS", 1), escaped(of("AS", 5)), of("ZZ", 6, partition=1)])
    again.ingest([of("AS", 7)])
    again.refine(0, 3)
    assert airlines(again) == [*EXPECTED, *AFTER]


def test_done_again_it_is_the_same_unless_todays_tables_are_asked_for(told: History) -> None:
    release = told.production
    release.refine(3, 3)
    before = airlines(release)
    _, _, differing = told.redo(EVERYTHING)
    assert not any(differing.values())
    today = current_versions(release.settings, "flights")
    assert today == {"airlines": 1, "airports": 0, "planes": 0}
    correction, _, differing = told.redo(replace(EVERYTHING, reference=today))
    assert differing["silver.flights"] == 4
    assert not any(rows for name, rows in differing.items() if name != "silver.flights")
    told.apply(correction)
    assert airlines(release) == [(flight, NEW if "AS" in flight else "Zeppelins") for flight, _ in before]
    told.apply(replace(correction, way=REVERT))
    assert airlines(release) == before
