"""Reading Delta logs: the facts of a commit, and every way in which its file can be damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from error_codes import raises
from ledgered_stream import commit, created

from include.ground.delta_log import LogDamaged, LogIncomplete, commits, commits_following, log_versions, read_commit
from include.ground.errors import Terminal

METADATA = {"app_id": "flights/bronze/g1", "rows": 3}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with four versions: its creation and three commits of ours."""
    path = tmp_path / "a table"
    for number in range(3):
        commit(path, "flights/bronze/g1", number, METADATA | {"batches": [number, number]})
    return path


def commit_file(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def test_commit_is_read_like_delta_rs_reads_it(table: Path) -> None:
    found = read_commit(table, 2)
    history = {entry["version"]: entry for entry in DeltaTable(str(table)).history()}
    assert found.timestamp_ms == history[2]["timestamp"]
    assert (found.app_id, found.app_version) == ("flights/bronze/g1", 1)
    assert found.metadata == METADATA | {"batches": [1, 1]}
    assert [(file.path, file.size) for file in found.added] == [("b00000001/part.parquet", 10)]
    assert found.removed == 0


def test_creation_has_no_metadata_and_no_transaction(table: Path) -> None:
    assert read_commit(table, 0).metadata is None
    assert read_commit(table, 0).app_id is None


def test_commits_are_ordered_by_version_and_start_after_the_given_one(table: Path) -> None:
    assert [found.version for found in commits(table)] == [0, 1, 2, 3]
    assert [found.version for found in commits(table, after=1)] == [2, 3]
    assert list(commits_following(table, 1)) == list(commits(table, after=1))
    assert list(commits_following(table, 3)) == []


def test_compaction_and_foreign_metadata_are_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "t"
    created(path)
    rows = pa.table({"a": pa.array([1, 2], pa.int64())})
    for written in ("hello", '"text"', '{"other": 1}', "[1]"):
        properties = CommitProperties(custom_metadata={"userMetadata": written})
        write_deltalake(str(path), rows, mode="append", commit_properties=properties)
    DeltaTable(str(path)).optimize.compact()
    found = list(commits(path))
    assert [one.metadata for one in found] == [None] * 6
    assert found[-1].removed == 4


def test_other_files_of_a_log_are_ignored(table: Path) -> None:
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / "00000000000000000001.00000000000000000003.compacted.json").write_text("{}")
    (table / "_delta_log" / ".00000000000000000009.json.tmp").write_text("")
    assert log_versions(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [0, 1, 200, -1, -40])
def test_truncated_commit_file_is_named(table: Path, size: int) -> None:
    path = commit_file(table, 2)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(LogDamaged) as caught:
        list(commits(table))
    assert caught.value.path == path


def test_commit_file_truncated_at_the_end_of_a_line_is_named(table: Path) -> None:
    path = commit_file(table, 2)
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    for kept in (1, 2):
        path.write_text("".join(lines[:kept]))
        with pytest.raises(LogDamaged, match="cut short"):
            read_commit(table, 2)


def test_missing_version_between_others_is_named(table: Path) -> None:
    commit_file(table, 2).unlink()
    with pytest.raises(LogIncomplete) as caught:
        list(commits(table))
    assert caught.value.version == 2


def test_log_with_a_removed_beginning_starts_at_its_first_version(table: Path) -> None:
    commit_file(table, 0).unlink()
    commit_file(table, 1).unlink()
    assert [found.version for found in commits(table)] == [2, 3]


def test_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with raises(Terminal, "table-missing"):
        list(commits(tmp_path))


def test_commit_without_a_timestamp_is_damaged(table: Path) -> None:
    path = commit_file(table, 1)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps(action) for action in actions if "commitInfo" not in action))
    with pytest.raises(LogDamaged, match="commitInfo"):
        read_commit(table, 1)
