"""Reference tables: valid and invalid files, and the versions that loads create."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from error_codes import raises
from ledgered_stream import Stream

from include.declare import reference_tables
from include.declare.dataset import Dataset, declared_dataset
from include.declare.reference_tables import (
    ReferenceRefused,
    create_reference_tables,
    current_versions,
    declared_table,
    load_reference,
    read_version,
    validate_reference_tables,
)
from include.ground.errors import Refused, Terminal
from include.ground.paths import reference_path
from include.ground.settings import Settings

PLANES = "tailnum,year,seats\n"


@pytest.fixture
def flights(settings: Settings) -> Dataset:
    dataset = declared_dataset(settings, "flights")
    create_reference_tables(settings, dataset)
    return dataset


def test_first_version_is_the_file_of_the_dataset_folder(settings: Settings, flights: Dataset) -> None:
    create_reference_tables(settings, flights)
    assert current_versions(settings, "flights") == {"airlines": 0, "airports": 0, "planes": 0}
    counted = {t.name: read_version(settings, "flights", t, 0).num_rows for t in flights.pipeline.reference}
    assert counted == {"airlines": 16, "airports": 1458, "planes": 3322}


def test_load_of_changed_rows_makes_a_version_and_of_equal_rows_none(
    settings: Settings, flights: Dataset, tmp_path: Path
) -> None:
    file = tmp_path / "planes.csv"
    file.write_text(PLANES + "N2,,180\nN1,2001,\n")
    first = load_reference(settings, flights, "planes", file)
    assert (first.version, first.rows, first.is_new) == (1, 2, True)
    file.write_text("seats,extra,tailnum,year\n,x,N1,2001\n180,y,N2,\n")
    assert load_reference(settings, flights, "planes", file).is_new is False
    planes = declared_table(flights, "planes")
    assert read_version(settings, "flights", planes, 1).to_pylist() == [
        {"tailnum": "N1", "year": 2001, "seats": None},
        {"tailnum": "N2", "year": None, "seats": 180},
    ]
    assert read_version(settings, "flights", planes, 0).num_rows == 3322


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PLANES + "N1,2001,1\nN1,2002,1\n", "more than once"),
        (PLANES + ",2001,1\n", "1 rows have no tailnum"),
        (PLANES + "N1,new,1\n", "invalid value 'new'"),
        ("tailnum,year\nN1,2001\n", "seats"),
        (PLANES + "N1,2001\n", "Expected 3 columns, got 2"),
        ("", "Empty CSV file"),
        (PLANES, "has no rows"),
    ],
)
def test_file_that_breaks_the_declaration_is_refused(
    text: str, why: str, settings: Settings, flights: Dataset, tmp_path: Path
) -> None:
    file = tmp_path / "planes.csv"
    file.write_text(text)
    with pytest.raises(ReferenceRefused, match=why):
        load_reference(settings, flights, "planes", file)
    assert current_versions(settings, "flights")["planes"] == 0


def test_reference_table_named_by_bronze_is_not_recreated(settings: Settings, flights: Dataset) -> None:
    stream = Stream(settings, release=flights.release)
    stream.bronze(0, reference={"planes": 2})
    shutil.rmtree(reference_path(settings, "flights", "planes"))
    with raises(Terminal, "reference-lost", match="planes has no version 2"):
        create_reference_tables(settings, flights)
    shutil.rmtree(reference_path(settings, "flights", "airlines"))
    with raises(Terminal, "reference-lost"):
        read_version(settings, "flights", declared_table(flights, "airports"), 7)


def test_missing_column_of_the_table_is_refused(settings: Settings, flights: Dataset) -> None:
    planes = declared_table(flights, "planes")
    grown = replace(planes, columns=(*planes.columns, ("engines", "integer")))
    pipeline = replace(flights.pipeline, reference=(grown,))
    with raises(Terminal, "reference-changed", match="no column engines"):
        validate_reference_tables(settings, replace(flights, pipeline=pipeline))
    validate_reference_tables(settings, flights)


def test_file_with_too_many_rows_is_refused(
    settings: Settings, flights: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_tables, "MOST_ROWS", 1)
    file = tmp_path / "planes.csv"
    file.write_text(PLANES + "N1,2001,1\nN2,2001,1\n")
    with pytest.raises(ReferenceRefused, match="has 2 rows, 1 are allowed"):
        load_reference(settings, flights, "planes", file)


def test_missing_file_or_table_is_refused(settings: Settings, flights: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ReferenceRefused, match="the file does not exist"):
        load_reference(settings, flights, "planes", tmp_path / "none.csv")
    with raises(Refused, "reference-unknown", match="airlines, airports, planes"):
        load_reference(settings, flights, "pilots", tmp_path / "none.csv")
