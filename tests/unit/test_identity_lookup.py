"""Candidates of an identity are found whatever the state of the index: current, behind, missing, damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from indexed_silver import IndexedSilver, ten_batches
from typer.testing import CliRunner

from include.cli import upkeep as repair_command
from include.cli.main import app
from include.ground.settings import Settings
from include.state.owner_requests import OwnerRequest, OwnerResponse, RequestKind
from spark_jobs.backends.local import identity_index
from spark_jobs.backends.local.identities import IdentityLookup
from spark_jobs.backends.local.identity_index import IdentityIndex, index_file
from spark_jobs.stream.active_releases import ActiveReleases
from spark_jobs.tables.delta_table import Table


@pytest.fixture
def silver(settings: Settings) -> IndexedSilver:
    return ten_batches(settings)


def test_only_rows_with_the_identity_are_candidates(silver: IndexedSilver) -> None:
    assert silver.candidates([3, 49, 700]) == ["e3", "e49"]
    silver.take([700])
    assert silver.candidates([3, 49, 700]) == ["e3", "e49", "e700"]


def test_index_is_not_built_again_for_new_commits(silver: IndexedSilver, monkeypatch: pytest.MonkeyPatch) -> None:
    silver.candidates([1])
    silver.restart()
    silver.take([60])
    monkeypatch.setattr(IdentityIndex, "build", lambda self: pytest.fail("rebuilt"))
    assert silver.candidates([1, 60]) == ["e1", "e60"]


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
    monkeypatch.setattr("spark_jobs.backends.local.identity_index.ROWS_AT_ONCE", 12)
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
    backend = SimpleNamespace(rebuild_identities=lambda writer: writer.identities.rebuild())
    owner = SimpleNamespace(backend=backend, refined_batch=9, writer=SimpleNamespace(identities=silver.lookup))
    published: Any = SimpleNamespace(name="aaa", release=owner)
    active = ActiveReleases(Settings(), Mock(), Mock(), published)
    response = active.answer(OwnerRequest("", RequestKind.REBUILD_IDENTITIES, "aaa"))
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
