"""Rows that were looked up are known when they are written: the index and the next look-up read no file for them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from indexed_silver import COLUMNS, START, IndexedSilver, ten_batches
from pyspark.sql.pandas.types import to_arrow_schema

from include.ground.settings import Settings
from spark_jobs.backends.local import identities
from spark_jobs.backends.local.arrow_files import Words
from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.backends.local.identities import IdentityLookup, identify_rows
from spark_jobs.backends.local.identity_index import FACTOR, IdentityIndex, index_file
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table


@pytest.fixture
def silver(settings: Settings) -> IndexedSilver:
    return ten_batches(settings)


def test_index_gets_the_rows_that_were_looked_up_without_reading_their_file(
    silver: IndexedSilver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.run([60, 61])
    monkeypatch.setattr(IdentityIndex, "_add", lambda *_: pytest.fail("read from the file"))
    assert silver.candidates([1, 60, 61]) == ["e1", "e60", "e61"]
    silver.restart()
    assert silver.candidates([60]) == ["e60"]


def test_index_gets_no_duplicate_of_the_rows_that_were_looked_up(silver: IndexedSilver) -> None:
    silver.run([60, 60, 61], duplicates=[51, 52])
    silver.candidates([1])
    record = index_file(silver.index).read()
    assert record is not None
    assert sum(segment.rows for segment in record.segments) == 51


def test_rows_written_last_are_found_without_reading_their_file(
    silver: IndexedSilver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.run([60, 61])
    monkeypatch.setattr(identities, "rows_at", no_rows)
    assert silver.candidates([60, 62]) == ["e60"]
    silver.restart()
    assert silver.candidates([60, 62]) == []


def test_rows_written_last_are_still_in_memory_after_a_compaction(
    silver: IndexedSilver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.run([60, 61])
    silver.candidates([])
    silver.compact()
    monkeypatch.setattr(identities, "rows_at", no_rows)
    assert silver.candidates([60, 62]) == ["e60"]


def test_segments_of_many_runs_are_merged(silver: IndexedSilver) -> None:
    for run in range(4 * FACTOR):
        silver.run([100 + run])
        if silver.lookup._index._merges._running is not None:
            silver.lookup._index._merges._running.whole.result(10)
    assert len(silver.lookup._index._segments) < 2 * FACTOR
    silver.restart()
    assert silver.candidates([3, 100, 99 + 4 * FACTOR]) == sorted(["e3", "e100", f"e{99 + 4 * FACTOR}"])


def test_columns_of_an_identity_have_any_names() -> None:
    names = ("hash", "time", "partition", "offset")
    rows = pa.table({**dict.fromkeys(names, pa.array([1, 1])), "_partition": [0, 0], "_offset": [5, 4]})
    dataset: Any = SimpleNamespace(pipeline=SimpleNamespace(identity=names, event_time="time"))
    with duckdb_session() as duck:
        duck.view_arrow("given", rows.set_column(1, "time", pa.array([START, START], pa.timestamp("us", "UTC"))))
        found = identify_rows(duck, dataset, "given", names)
    assert found.rows.column_names == list(names)
    assert found.rows["hash"].to_pylist() == [1, 1]
    assert sorted(found.identities.places.tolist()) == [4, 5]


def no_rows(places: Words, _table: Table, _files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
    schema = to_arrow_schema(COLUMNS, timezone="UTC")
    return pa.schema([schema.field(name) for name in columns]).empty_table()


@pytest.mark.parametrize("removed", [["e60"], ["e60", "e61"]])
@pytest.mark.parametrize("is_last_commit", [True, False])
def test_rows_that_another_program_removed_are_no_candidates(
    silver: IndexedSilver, removed: list[str], *, is_last_commit: bool
) -> None:
    silver.run([60, 61])
    assert silver.candidates([60]) == ["e60"]
    DeltaTable(str(silver.spec.path)).delete(" or ".join(f"event_id = '{identity}'" for identity in removed))
    silver.restart_table()
    if not is_last_commit:
        silver.run([62])
    assert silver.candidates([60, 62]) == ([] if is_last_commit else ["e62"])


def test_given_rows_that_may_share_an_identity_are_those_of_a_candidate_or_of_each_other(silver: IndexedSilver) -> None:
    assert silver.sharing([3, 60, 61, 61]) == ["e3", "e61", "e61"]
    shutil.rmtree(silver.index)
    reader = IdentityLookup(silver.dataset, silver.table, silver.index, owns=False)
    assert {"e3", "e61"} <= set(silver.sharing([3, 60, 61, 61], reader))


def test_rows_of_another_commit_are_read_from_their_file(silver: IndexedSilver) -> None:
    silver.run([60, 61])
    silver.take([70])
    assert silver.candidates([60, 61, 70]) == ["e60", "e61", "e70"]
