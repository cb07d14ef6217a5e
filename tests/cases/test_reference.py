"""Reference tables: a batch is always joined with the versions that its bronze commit names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fewer_gold_tables import small_flights
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_events import departed, escaped
from small_release import Record, SmallRelease
from test_recomputed_history import differing

from include.declare.history_slice import BRONZE, Slice, Span
from include.declare.reference_tables import current_versions, load_reference
from include.ground.settings import Settings
from include.state.release_files import PatchDirection

WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
OLD, NEW = "Alaska Airlines Inc.", "Alaska"
Named = list[tuple[str, str | None]]


def flight(carrier: str, number: int, partition: int = 0, **fields: object) -> Record:
    return departed(number, 20, carrier=carrier, partition=partition, **fields)  # type: ignore[arg-type]


def airlines(release: SmallRelease) -> Named:
    return [(row["flight_id"][18:], row["airline"]) for row in release.silver().to_dicts()]


def write_new_airlines(folder: Path) -> Path:
    """Write a table with another name for Alaska and one new airline; return its path."""
    path = folder / "airlines.csv"
    path.write_text("carrier,name\nAS,Alaska\nZZ,Zeppelins\n")
    return path


@pytest.fixture(scope="module")
def production(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Return a release with two batches before the new airlines and two after, the last one not yet refined."""
    folder = tmp_path_factory.mktemp("reference")
    settings = Settings(state=folder / "production")
    release = small_flights(spark, settings)
    first = flight("AS", 1)
    release.take([first, flight("ZZ", 2), flight("AS", 3, tailnum="N10156", dest="BQN")])
    release.take([flight("AS", 4, partition=1)])
    assert load_reference(release.settings, release.dataset, "airlines", write_new_airlines(folder)).version == 1
    release.take([first, flight("AS", 5), flight("ZZ", 6, partition=1)])
    release.ingest([flight("AS", 7)])
    return release


BEFORE: Named = [("AS1/EWR", OLD), ("ZZ2/EWR", None), ("AS3/EWR", OLD), ("AS4/EWR", OLD)]
AFTER: Named = [("AS5/EWR", NEW), ("ZZ6/EWR", "Zeppelins"), ("AS7/EWR", NEW)]


def test_batch_is_joined_with_versions_of_its_commit(patcher: SlicePatcher) -> None:
    release = patcher.production
    release.refine(3, 3)
    assert airlines(release) == [*BEFORE, *AFTER]
    row = next(r for r in release.silver().to_dicts() if r["flight_id"].endswith("AS3/EWR"))
    assert (row["plane_year"], row["seats"], row["destination"]) == (2004, 55, None)


def test_one_run_joins_batches_of_two_versions(patcher: SlicePatcher) -> None:
    settings = Settings(state=patcher.folder / "other")
    other = small_flights(patcher.production.spark, settings)
    other.ingest([flight("AS", 1), flight("ZZ", 2), escaped(flight("AS", 3))])
    other.ingest([flight("AS", 4, partition=1)])
    load_reference(settings, other.dataset, "airlines", write_new_airlines(patcher.folder))
    other.ingest([flight("AS", 1), escaped(flight("AS", 5)), flight("ZZ", 6, partition=1)])
    other.ingest([flight("AS", 7)])
    other.refine(0, 3)
    assert airlines(other) == [*BEFORE, *AFTER]


@pytest.mark.extended
def test_rebuild_changes_rows_only_with_current_reference_tables(patcher: SlicePatcher) -> None:
    release = patcher.production
    release.refine(3, 3)
    before = airlines(release)
    _, _, differing = patcher.rebuild(WHOLE_HISTORY)
    assert not any(differing.values())
    current = current_versions(release.settings, "flights")
    assert current == {"airlines": 1, "airports": 0, "planes": 0}
    patch, _, differing = patcher.rebuild(replace(WHOLE_HISTORY, reference=current))
    assert differing["silver.flights"] == 4
    assert not any(rows for name, rows in differing.items() if name != "silver.flights")
    patcher.apply(patch)
    assert airlines(release) == [(flight, NEW if "AS" in flight else "Zeppelins") for flight, _ in before]
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    assert airlines(release) == before


@pytest.mark.extended
def test_deep_audit_joins_records_with_the_reference_tables_of_their_plan(patcher: SlicePatcher) -> None:
    release = patcher.production
    release.refine(3, 3)
    current = current_versions(release.settings, "flights")
    patch, _, _ = patcher.rebuild(replace(WHOLE_HISTORY, reference=current))
    patcher.apply(patch)
    assert differing(release) == {}
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    assert differing(release) == {}
    unrecorded, _, _ = patcher.rebuild(replace(WHOLE_HISTORY, reference=current))
    patcher.apply(replace(unrecorded, reference=None))
    assert differing(release) == {"silver.flights": {"different": 4}}, "no plan explains these rows"
