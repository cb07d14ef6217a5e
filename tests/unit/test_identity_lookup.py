"""Candidates of an identity are found whatever the state of the index: current, behind, missing, damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType
from typer.testing import CliRunner

from include.catalog.dataset import declared_dataset
from include.cli import repair_command
from include.cli.main import app
from include.paths import identities_path
from include.settings import Settings
from include.state.owner_requests import OwnerRequest, OwnerResponse, RequestKind
from spark_jobs.engine.execute_request import execute
from spark_jobs.layers import identity_lookup
from spark_jobs.layers.identity_lookup import IdentityLookup
from spark_jobs.storage import identity_index
from spark_jobs.storage.data_files import DataFile, TableSpec, written_file
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.duckdb_session import duckdb_session
from spark_jobs.storage.identity_index import FACTOR, Words, index_file

START = datetime(2013, 3, 1, tzinfo=UTC)
COLUMNS = (
    StructType()
    .add("event_id", StringType())
    .add("occurred_at", TimestampType())
    .add("_topic", StringType())
    .add("_timestamp", TimestampType())
    .add("_partition", IntegerType())
    .add("_offset", LongType())
    .add("_batch_id", LongType())
    .add("_month", StringType())
)
BOUNDED = ("occurred_at", "event_id", "_partition", "_offset", "_batch_id")


@dataclass
class IndexedSilver:
    """A silver table without Spark: batch n holds identities by number, at increasing offsets of partition 0."""

    settings: Settings
    batches: int = 0
    offset: int = 0
    files: list[DataFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dataset = declared_dataset(self.settings, "flights")
        assert self.dataset.pipeline.identity == ("event_id",)
        path = self.settings.state / "warehouse" / "flights" / self.dataset.release / "silver"
        self.spec = TableSpec("silver.flights", path, COLUMNS, "_month", BOUNDED)
        self.index = identities_path(self.settings, "flights", self.dataset.release)
        self.restart()

    def restart(self) -> None:
        """Open table and index as a new owner."""
        self.table = Table(self.spec)
        self.lookup = IdentityLookup(self.dataset, self.table, self.index, owns=True)

    def write(self, numbers: Iterable[int], name: str) -> DataFile:
        """Write one file; identity n happens n minutes after START."""
        chosen = list(numbers)
        rows = {
            "event_id": [f"e{number}" for number in chosen],
            "occurred_at": pa.array([START + timedelta(minutes=n) for n in chosen], pa.timestamp("us", "UTC")),
            "_topic": ["flights"] * len(chosen),
            "_timestamp": pa.array([START] * len(chosen), pa.timestamp("us", "UTC")),
            "_partition": pa.array([0] * len(chosen), pa.int32()),
            "_offset": range(self.offset, self.offset + len(chosen)),
            "_batch_id": [self.batches] * len(chosen),
        }
        path = self.spec.path / name / "_month=2013-03" / "part.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(rows), path)
        self.offset += len(chosen)
        return written_file(self.spec, path)

    def take(self, numbers: Iterable[int]) -> None:
        """Commit a batch."""
        file = self.write(numbers, f"b{self.batches}")
        self.table.commit("silver", self.batches, {}, [file])
        self.files.append(file)
        self.batches += 1

    def compact(self, text: pa.DataType | None = None) -> None:
        """Replace all files by one with the same rows; `text` is the Arrow type of its texts."""
        whole = pa.concat_tables([pq.read_table(self.spec.path / f.path, partitioning=None) for f in self.files])
        whole = whole.set_column(0, "event_id", whole["event_id"].cast(text or pa.string()))
        path = self.spec.path / f"c{self.batches}" / "_month=2013-03" / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(whole, path)
        old, self.files = self.files, [written_file(self.spec, path)]
        self.table.compact(self.files, old)
        for file in old:
            (self.spec.path / file.path).unlink()

    def restart_table(self) -> None:
        """Read the table's log again; the lookup stays."""
        self.table = Table(self.spec)
        self.lookup._silver = self.table

    def candidates(self, numbers: Iterable[int], lookup: IdentityLookup | None = None) -> list[str]:
        """Return the identities of the candidates of these."""
        return self.viewed(numbers, "candidates", lookup)

    def sharing(self, numbers: Iterable[int], lookup: IdentityLookup | None = None) -> list[str]:
        """Return the identities of these that may share one."""
        return self.viewed(numbers, "candidates_sharing", lookup)

    def viewed(self, numbers: Iterable[int], view: str, lookup: IdentityLookup | None) -> list[str]:
        """Return the identities in a view after a look-up of these."""
        given = self.settings.state / "given.parquet"
        kept = self.offset
        shutil.copy(self.spec.path / self.write(numbers, "given").path, given)
        self.offset = kept
        with duckdb_session() as duck:
            (lookup or self.lookup).view_candidates(duck, "candidates", [given], with_sharing=True)
            return sorted(row[0] for row in duck.rows(f"select event_id from {view}"))


@pytest.fixture
def silver(settings: Settings) -> IndexedSilver:
    silver = IndexedSilver(settings)
    for start in range(0, 50, 5):
        silver.take(range(start, start + 5))
    return silver


def test_only_rows_with_the_identity_are_candidates(silver: IndexedSilver) -> None:
    assert silver.candidates([3, 49, 700]) == ["e3", "e49"]
    silver.take([700])
    assert silver.candidates([3, 49, 700]) == ["e3", "e49", "e700"]


def test_index_is_not_built_again_for_new_commits(silver: IndexedSilver, monkeypatch: pytest.MonkeyPatch) -> None:
    silver.candidates([1])
    silver.restart()
    silver.take([60])
    monkeypatch.setattr(IdentityLookup, "_build", lambda self: pytest.fail("rebuilt"))
    assert silver.candidates([1, 60]) == ["e1", "e60"]


def test_index_gets_the_rows_that_were_looked_up_without_reading_their_file(
    silver: IndexedSilver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.candidates([60, 61])
    silver.take([60, 61])
    note_written(silver)
    monkeypatch.setattr(IdentityLookup, "_add", lambda *_: pytest.fail("read from the file"))
    assert silver.candidates([1, 60, 61]) == ["e1", "e60", "e61"]
    silver.restart()
    assert silver.candidates([60]) == ["e60"]


def test_index_gets_no_duplicate_of_the_rows_that_were_looked_up(silver: IndexedSilver) -> None:
    silver.candidates([60, 60, 61])
    silver.take([60])
    note_written(silver, duplicates=[51, 52])
    silver.candidates([1])
    record = index_file(silver.index).read()
    assert record is not None
    assert sum(segment.rows for segment in record.segments) == 51


def note_written(silver: IndexedSilver, duplicates: Sequence[int] = ()) -> None:
    """Note that the last file has the rows looked up last, but those at these offsets."""
    rows = pa.table(
        {"_partition": pa.array([0] * len(duplicates), pa.int32()), "_offset": pa.array(duplicates, pa.int64())}
    )
    with duckdb_session() as duck:
        duck.view_arrow("duplicates", rows)
        silver.lookup.note_written(silver.files[-1:], duck, "duplicates")


def test_rows_written_last_are_found_without_reading_their_file(
    silver: IndexedSilver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.candidates([60, 61])
    silver.take([60, 61])
    note_written(silver)
    monkeypatch.setattr(identity_lookup, "rows_at", no_rows)
    assert silver.candidates([60, 62]) == ["e60"]
    silver.restart()
    assert silver.candidates([60, 62]) == []


def test_rows_written_last_are_still_in_memory_after_a_compaction(
    silver: IndexedSilver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.candidates([60, 61])
    silver.take([60, 61])
    note_written(silver)
    silver.candidates([])
    silver.compact()
    monkeypatch.setattr(identity_lookup, "rows_at", no_rows)
    assert silver.candidates([60, 62]) == ["e60"]


def test_segments_of_many_runs_are_merged(silver: IndexedSilver) -> None:
    for run in range(4 * FACTOR):
        silver.candidates([100 + run])
        silver.take([100 + run])
        note_written(silver)
        if silver.lookup._merges._running is not None:
            silver.lookup._merges._running.whole.result(10)
    assert len(silver.lookup._segments) < 2 * FACTOR
    silver.restart()
    assert silver.candidates([3, 100, 99 + 4 * FACTOR]) == sorted(["e3", "e100", f"e{99 + 4 * FACTOR}"])


def test_columns_of_an_identity_have_any_names() -> None:
    names = ("hash", "time", "partition", "offset")
    rows = pa.table({**dict.fromkeys(names, pa.array([1, 1])), "_partition": [0, 0], "_offset": [5, 4]})
    dataset: Any = SimpleNamespace(pipeline=SimpleNamespace(identity=names, event_time="time"))
    with duckdb_session() as duck:
        duck.view_arrow("given", rows.set_column(1, "time", pa.array([START, START], pa.timestamp("us", "UTC"))))
        found = identity_lookup._looked_up(duck, dataset, "given", names)
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
    silver.candidates([60, 61])
    silver.take([60, 61])
    note_written(silver)
    assert silver.candidates([60]) == ["e60"]
    DeltaTable(str(silver.spec.path)).delete(" or ".join(f"event_id = '{identity}'" for identity in removed))
    silver.restart_table()
    if not is_last_commit:
        silver.candidates([62])
        silver.take([62])
        note_written(silver)
    assert silver.candidates([60, 62]) == ([] if is_last_commit else ["e62"])


def test_given_rows_that_may_share_an_identity_are_those_of_a_candidate_or_of_each_other(silver: IndexedSilver) -> None:
    assert silver.sharing([3, 60, 61, 61]) == ["e3", "e61", "e61"]
    shutil.rmtree(silver.index)
    reader = IdentityLookup(silver.dataset, silver.table, silver.index, owns=False)
    assert {"e3", "e61"} <= set(silver.sharing([3, 60, 61, 61], reader))


def test_rows_of_another_commit_are_read_from_their_file(silver: IndexedSilver) -> None:
    silver.candidates([60, 61])
    silver.take([60, 61])
    note_written(silver)
    silver.take([70])
    assert silver.candidates([60, 61, 70]) == ["e60", "e61", "e70"]


def test_compacted_rows_are_found_and_not_indexed_again(silver: IndexedSilver) -> None:
    silver.candidates([1])
    silver.compact()
    assert silver.candidates([1, 48]) == ["e1", "e48"]
    record = index_file(silver.index).read()
    assert record is not None
    assert sum(segment.rows for segment in record.segments) == 50


def test_rows_of_files_that_delta_rs_rewrote_are_found(silver: IndexedSilver) -> None:
    silver.candidates([1])
    # What delta-rs writes itself, for DELETE, says that its texts are of this type.
    silver.compact(pa.string_view())
    assert silver.candidates([3, 49, 700]) == ["e3", "e49"]


def removed_index(silver: IndexedSilver) -> None:
    shutil.rmtree(silver.index)


def cut_segment(silver: IndexedSilver) -> None:
    next(silver.index.glob("*.hashes")).write_bytes(b"")


def unreadable_list(silver: IndexedSilver) -> None:
    index_file(silver.index).path.write_text("{")


def other_hashing(silver: IndexedSilver) -> None:
    path = index_file(silver.index).path
    path.write_text(path.read_text().replace('"hashing": "duckdb', '"hashing": "duckdb 0'))


def replaced_files_of_unindexed_commits(silver: IndexedSilver) -> None:
    silver.take([80, 81])
    silver.compact()


def lost_content(silver: IndexedSilver) -> None:
    """A power cut leaves a segment of the right length without its content."""
    path = index_file(silver.index).path
    path.write_text(path.read_text().replace(identity_index.boot_id(), "an earlier boot"))
    for segment in silver.index.glob("*.hashes"):
        segment.write_bytes(bytes(segment.stat().st_size))


def rolled_back_table(silver: IndexedSilver) -> None:
    """The table loses its last two commits and gets others with the same versions."""
    for version in (silver.table.version, silver.table.version - 1):
        (silver.spec.path / "_delta_log" / f"{version:020d}.json").unlink()
    silver.restart()
    silver.take([90])
    silver.take([91])


@pytest.mark.parametrize(
    "damage",
    [
        removed_index,
        cut_segment,
        unreadable_list,
        other_hashing,
        lost_content,
        replaced_files_of_unindexed_commits,
        rolled_back_table,
    ],
)
def test_unusable_index_is_built_again(silver: IndexedSilver, damage: Callable[[IndexedSilver], None]) -> None:
    silver.candidates([1])
    damage(silver)
    silver.restart()
    current = {number for number in range(100) if f"e{number}" in event_ids(silver)}
    assert silver.candidates(range(100)) == sorted(f"e{number}" for number in current)
    assert {path.stem for path in silver.index.glob("*.hashes")} == {s.name for s in segments(silver)}


def test_removed_index_is_built_again_while_the_owner_runs(silver: IndexedSilver) -> None:
    silver.candidates([1])
    removed_index(silver)
    assert silver.candidates([1]) == ["e1"]
    assert index_file(silver.index).path.exists()


def test_reader_finds_rows_that_the_index_does_not_cover(silver: IndexedSilver) -> None:
    """A plan's process reads the index as its owner left it, and writes nothing."""
    silver.candidates([1])
    silver.take([60, 61])
    before = index_file(silver.index).path.read_bytes()
    assert silver.candidates([1, 60], reader_at(silver, silver.table.version)) == ["e1", "e60", "e61"]
    assert index_file(silver.index).path.read_bytes() == before


def test_reader_of_an_older_version_than_the_index_was_built_at_uses_bounds(silver: IndexedSilver) -> None:
    version = silver.table.version
    silver.take([60])
    silver.candidates([1])
    assert "e1" in silver.candidates([1], reader_at(silver, version))
    assert "e60" not in silver.candidates([60], reader_at(silver, version))


def test_reader_without_an_index_writes_none(silver: IndexedSilver) -> None:
    assert "e7" in silver.candidates([7], reader_at(silver, silver.table.version))
    assert not silver.index.exists()


def test_building_takes_some_files_at_a_time(silver: IndexedSilver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.layers.identity_lookup.ROWS_AT_ONCE", 12)
    monkeypatch.setattr(identity_index, "SMALLEST", 1)
    assert silver.candidates([3, 49]) == ["e3", "e49"]
    assert [segment.rows for segment in segments(silver)] == [10] * 5


def test_owner_builds_an_index_with_wrong_entries_again_on_request(silver: IndexedSilver) -> None:
    """A segment of the right length is not checked at each look-up."""
    silver.candidates([1])
    for path in silver.index.glob("*.hashes"):
        path.write_bytes(bytes(path.stat().st_size))
    silver.restart()
    assert silver.candidates([1, 48]) == []
    owner: Any = SimpleNamespace(writer=SimpleNamespace(identities=silver.lookup))
    active: Any = Mock(all_releases=[SimpleNamespace(name="aaa", release=owner)])
    with patch("spark_jobs.engine.execute_request.refined_batch", lambda _: 9):
        response = execute(active, OwnerRequest("", RequestKind.REBUILD_IDENTITIES, "aaa"))
    assert (response.refused, response.done) == ("", {"aaa": 50})
    assert silver.candidates([1, 48]) == ["e1", "e48"]


def test_command_requests_the_index_from_the_owner(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[OwnerRequest] = []

    def respond(_: Settings, dataset: str, request: OwnerRequest) -> OwnerResponse:
        requested.append(request)
        return OwnerResponse("", request.kind, request.release, "", 9, done={request.release: 1_050})

    monkeypatch.setattr(repair_command, "load_settings", lambda: settings)
    monkeypatch.setattr(repair_command, "read_publication", lambda *_: Mock(release="aaa"))
    monkeypatch.setattr(repair_command, "request_owner", respond)
    shown = CliRunner().invoke(app, ["repair", "flights", "--identities"])
    assert (shown.exit_code, requested[0].requester) == (0, "headrace repair --identities")
    assert "release aaa: 1,050 identities indexed" in shown.stdout
    assert CliRunner().invoke(app, ["repair", "flights", "--identities", "--yes"]).exit_code == 2


def reader_at(silver: IndexedSilver, version: int) -> IdentityLookup:
    return IdentityLookup(silver.dataset, Table(silver.spec, version), silver.index, owns=False)


def segments(silver: IndexedSilver) -> tuple[identity_index.SegmentRecord, ...]:
    record = index_file(silver.index).read()
    assert record is not None
    return record.segments


def event_ids(silver: IndexedSilver) -> set[str]:
    paths: list[Path] = [silver.spec.path / file.path for file in silver.table.files()]
    return {name for path in paths for name in pq.read_table(path, partitioning=None)["event_id"].to_pylist()}
