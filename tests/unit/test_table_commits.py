"""When a commit call fails, the Delta log decides whether it was committed."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from include.ground.delta_log import LOG, LogDamaged, checkpoint_name, commit_name, last_checkpoint, log_versions
from spark_jobs.tables.commit_log import move_range
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import OwnershipLost, Table

SPEC_COLUMNS = StructType().add("n", LongType()).add("_month", StringType())


def spec(folder: Path) -> TableSpec:
    return TableSpec("silver.small", folder / "a table", SPEC_COLUMNS, "_month", ("n",))


def file(name: str) -> DataFile:
    return DataFile(f"b1/_month=2024-01/{name}.parquet", "2024-01", 3, 100, {"n": 1}, {"n": 3})


class FullDisk:
    """The link that makes a commit visible fails once, after it was made (`late`) or before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
        self.real, self.late, self.monkeypatch = os.link, late, monkeypatch
        monkeypatch.setattr(os, "link", self.link)

    def link(self, source: Path, target: Path) -> None:
        self.monkeypatch.setattr(os, "link", self.real)
        if self.late:
            self.real(source, target)
        raise OSError(errno.ENOSPC, "No space left on device")


def test_commit_in_the_log_counts_although_its_call_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(spec(tmp_path))
    FullDisk(monkeypatch, late=True)
    with pytest.raises(OSError, match="No space left"):
        table.commit("app", 0, {}, [file("one")])
    assert table.committed("app") == 0
    assert [f.path for f in table.files()] == [file("one").path]
    assert table.commit("app", 1, {}, [file("two")]) == 2


def test_commit_not_in_the_log_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(spec(tmp_path))
    FullDisk(monkeypatch, late=False)
    with pytest.raises(OSError, match="No space left"):
        table.commit("app", 0, {}, [file("one")])
    assert (table.committed("app"), table.files()) == (-1, [])
    assert table.commit("app", 0, {}, [file("one")]) == 1
    assert not [path.name for path in (table.spec.path / LOG).iterdir() if path.name.startswith("_commit_")]


def test_commit_counts_although_its_checkpoint_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(spec(tmp_path))
    occupied = table.spec.path / LOG / checkpoint_name(24)
    occupied.mkdir()
    for number in range(60):
        table.commit("app", number, {}, [file(f"f{number}")])
    assert (table.version, table.committed("app"), table.file_count) == (60, 59, 60)
    assert last_checkpoint(table.spec.path) == 49
    (line,) = capsys.readouterr().err.splitlines()
    assert "silver.small: no checkpoint of the log at version 24 (" in line
    assert line.endswith("the commit counts, the next checkpoint is at version 49")
    occupied.rmdir()
    again = Table(spec(tmp_path))
    assert (again.version, again.committed("app"), again.file_count) == (60, 59, 60)


def test_owner_that_slept_is_refused_after_its_version_moved_into_the_history(tmp_path: Path) -> None:
    """The name of its next commit is free again then, and only the history has the version."""
    stale, owner = Table(spec(tmp_path)), Table(spec(tmp_path))
    for number in range(400):
        owner.commit("app", number, {}, [])
    assert move_range(owner.spec.path, owner.version, (), age=timedelta())
    before = log_versions(owner.spec.path)
    assert before[0] > stale.version + 1
    with pytest.raises(OwnershipLost, match="history has version 1"):
        stale.commit("another app", 0, {}, [file("one")])
    assert log_versions(owner.spec.path) == before
    assert Table(spec(tmp_path)).files() == []


def test_second_owner_of_a_table_is_refused(tmp_path: Path) -> None:
    stale, owner = Table(spec(tmp_path)), Table(spec(tmp_path))
    owner.commit("app", 0, {}, [file("one")])
    with pytest.raises(OwnershipLost) as refusal:
        stale.commit("app", 0, {}, [file("two")])
    assert (refusal.value.table, refusal.value.app_id) == ("silver.small", "app")
    assert [f.path for f in Table(spec(tmp_path)).files()] == [file("one").path]


def test_owner_refuses_a_log_with_an_empty_commit_file(tmp_path: Path) -> None:
    """delta-rs opens it without that commit's files."""
    table = Table(spec(tmp_path))
    for number in range(3):
        table.commit("app", number, {}, [file(f"f{number}")])
    lost = table.spec.path / LOG / commit_name(2)
    lost.write_bytes(b"")
    with pytest.raises(LogDamaged, match="2.json is empty") as refused:
        Table(spec(tmp_path))
    assert refused.value.path == lost


def test_stale_owner_is_refused_whatever_it_commits(tmp_path: Path) -> None:
    """Neither its app id nor its files conflict with the other owner's."""
    first = Table(spec(tmp_path))
    first.commit("app", 0, {}, [file("one"), file("two")])
    stale, owner = Table(spec(tmp_path)), Table(spec(tmp_path))
    owner.commit("app", 1, {}, [file("three")])
    with pytest.raises(OwnershipLost):
        stale.commit("another app", 0, {}, [file("four")])
    with pytest.raises(OwnershipLost):
        first.compact([replace(file("both"), rows=6)], [file("one"), file("two")])
    assert {f.path for f in Table(spec(tmp_path)).files()} == {file(name).path for name in ("one", "two", "three")}
