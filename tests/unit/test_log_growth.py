"""The Delta log's size and the cost of reading it do not grow with the number of commits."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructType

from include.ground.delta_log import CommitMissing, batch_commit, latest_version
from spark_jobs.stream.preflight import bronze_head
from spark_jobs.tables import commit_log, delta_table
from spark_jobs.tables.commit_log import checkpoint_file, checkpoint_versions
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table

INTERVAL = 5
COLUMNS = StructType().add("n", LongType()).add("_month", StringType())
Fill = Callable[[Table, int], None]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableSpec:
    """A table with a checkpoint in each INTERVAL versions; each fourth one is kept."""
    monkeypatch.setitem(delta_table.PROPERTIES, "delta.checkpointInterval", str(INTERVAL))
    monkeypatch.setattr(commit_log, "SPARSE", 4 * INTERVAL)
    monkeypatch.setattr(commit_log, "OPENING", timedelta())
    return TableSpec("silver.small", tmp_path / "a table", COLUMNS, "_month", ("n",))


def file(n: int) -> DataFile:
    return DataFile(f"b{n}/_month=2024-01/part.parquet", "2024-01", 3, 100, {"n": n}, {"n": n})


def fill(table: Table, count: int) -> None:
    """Commit `count` more files, each with the next number as transaction version."""
    first = table.committed("app") + 1
    for n in range(first, first + count):
        table.commit("app", n, {"app_id": "app", "batches": [n, n]}, [file(n)])


def test_superseded_checkpoints_are_removed_as_commits_are_made(spec: TableSpec) -> None:
    fill(Table(spec), 42)
    assert checkpoint_versions(spec.path) == [19, 34, 39]
    assert Table(spec).committed("app") == 41
    assert len(Table(spec).files()) == 42


def test_every_version_stays_readable_without_its_checkpoint(spec: TableSpec) -> None:
    fill(Table(spec), 42)
    for version in range(43):
        assert len(DeltaTable(str(spec.path), version=version).file_uris()) == version


def test_open_snapshot_outlives_its_checkpoint(spec: TableSpec) -> None:
    owner = Table(spec)
    owner.commit("plan/old", 1, {"app_id": "plan/old"}, [])
    fill(owner, 10)
    pinned, reader, later = DeltaTable(str(spec.path), version=8), Table(spec, version=8), Table(spec, version=8)
    fill(owner, 20)
    assert 4 not in checkpoint_versions(spec.path)
    assert len(pinned.file_uris()) == 7
    assert (reader.committed("plan/old"), reader.committed("app"), reader.version) == (1, 6, 8)
    later.advance()
    assert (later.version, later.committed("plan/old"), later.committed("none")) == (owner.version, 1, -1)
    assert owner.committed("none") == -1
    assert owner._delta.transaction_version("plan/old") == 1


def test_owner_removes_leftover_checkpoints_when_it_opens_a_table(
    spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "KEPT", 99)
    fill(Table(spec), 42)
    assert len(checkpoint_versions(spec.path)) == 8
    monkeypatch.setattr(commit_log, "KEPT", 2)
    Table(spec, version=30)
    assert len(checkpoint_versions(spec.path)) == 8
    fill(Table(spec), 1)
    assert checkpoint_versions(spec.path) == [19, 34, 39]


def test_checkpoint_that_the_log_names_stays_after_crashes_before_the_name_changes(
    spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(Table(spec), 4)
    hint = spec.path / "_delta_log" / "_last_checkpoint"
    first = hint.read_text()
    monkeypatch.setattr(commit_log, "KEPT", 99)
    fill(Table(spec), 15)
    hint.write_text(first)
    monkeypatch.setattr(commit_log, "KEPT", 2)
    owner = Table(spec)
    assert checkpoint_versions(spec.path) == [4, 14, 19]
    assert len(owner.files()) == 19


def test_superseded_checkpoint_stays_while_a_reader_may_open_it(
    spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "OPENING", timedelta(minutes=5))
    fill(Table(spec), 30)
    assert checkpoint_versions(spec.path) == [4, 9, 14, 19, 24, 29]


def test_commit_succeeds_although_its_checkpoint_was_not_written(spec: TableSpec) -> None:
    owner = Table(spec)
    fill(owner, 5)
    hint = spec.path / "_delta_log" / "_last_checkpoint"
    named = hint.read_text()
    with pytest.MonkeyPatch.context() as full_disk:
        full_disk.setattr(commit_log, "checkpoint_file", lambda table, version: table / f"no checkpoint {version}")
        fill(owner, 5)
    checkpoint_file(spec.path, 9).unlink()
    hint.write_text(named)
    fill(owner, 23)
    assert checkpoint_versions(spec.path) == [19, 24, 29]
    assert len(Table(spec).files()) == 33


class LogReads:
    """Counts what Python reads of Delta logs: names of opened commit files, and listings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.listings = 0
        real_open, real_list = builtins.open, os.listdir

        def counted_open(path: Any, *arguments: Any, **named: Any) -> Any:
            if "_delta_log/" in str(path) and str(path).endswith(".json"):
                self.opened.append(Path(str(path)).name)
            return real_open(path, *arguments, **named)

        def counted_list(path: Any = ".") -> list[str]:
            self.listings += "_delta_log" in str(path)
            return real_list(path)

        monkeypatch.setattr(builtins, "open", counted_open)
        monkeypatch.setattr(io, "open", counted_open)
        monkeypatch.setattr(os, "listdir", counted_list)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> LogReads:
    return LogReads(monkeypatch)


def batch(n: int) -> dict[str, Any]:
    """The metadata of a bronze batch, as far as the head needs it."""
    named = {"epoch": 1, "offsets": {"0": [n, n + 1]}, "query_id": "q", "topic_id": "t"}
    return {"app_id": "app", "batches": [n, n], **named}


@pytest.fixture
def bronze(spec: TableSpec) -> Table:
    """A table with 60 batches, and after each tenth a compaction."""
    table = Table(spec)
    for n in range(60):
        table.commit("app", n, batch(n), [file(n)])
        if n % 10 == 9:
            table.compact([file(1000 + n)], [file(n)])
    return table


def test_owner_finds_its_own_commit_by_reading_one_file(bronze: Table, reads: LogReads) -> None:
    assert bronze.commit_of("app", 59).version == 65
    assert (len(reads.opened), reads.listings) == (1, 0)


def test_commit_is_found_after_a_restart_without_listing_the_log(bronze: Table, reads: LogReads) -> None:
    restarted = Table(bronze.spec)
    reads.listings = 0
    assert restarted.commit_of("app", 59).version == 65
    assert latest_version(bronze.spec.path) == 66
    assert (len(reads.opened), reads.listings) == (2, 0)


def test_commits_between_checkpoints_neither_list_nor_read_the_log(spec: TableSpec, reads: LogReads) -> None:
    """delta-rs, whose reads are not counted here, lists a log at each commit."""
    owner = Table(spec)
    fill(owner, INTERVAL - 1)
    reads.listings = 0
    reads.opened.clear()
    snapshot, owner._delta = owner._delta, None  # type: ignore[assignment]
    fill(owner, INTERVAL - 1)
    assert (reads.opened, reads.listings) == ([], 0)
    owner._delta = snapshot
    fill(owner, 1)
    assert len(Table(spec).files()) == 2 * INTERVAL - 1


def test_missing_commit_is_named(bronze: Table) -> None:
    with pytest.raises(CommitMissing):
        bronze.commit_of("app", 60)
    with pytest.raises(CommitMissing):
        batch_commit(bronze.spec.path, 60)


def test_bronze_batch_far_behind_the_head_is_found_by_few_reads(bronze: Table, reads: LogReads) -> None:
    for n in range(60):
        assert batch_commit(bronze.spec.path, n).facts["batches"] == [n, n]
    reads.opened.clear()
    batch_commit(bronze.spec.path, 3)
    assert len(reads.opened) <= 20
    reads.opened.clear()
    batch_commit(bronze.spec.path, 58)
    assert len(reads.opened) <= 8
    assert reads.listings == 0


def test_preflight_reads_the_end_of_bronze_only(bronze: Table, reads: LogReads) -> None:
    head = bronze_head(bronze)
    assert head is not None
    assert (head.batch, head.transaction, head.ends) == (59, 59, {0: 60})
    assert (len(reads.opened), reads.listings) == (2, 0)


@pytest.mark.parametrize("hint", ["", '{"version": 0}', '{"version": 999}', None])
def test_latest_version_does_not_depend_on_the_last_checkpoints_name(bronze: Table, hint: str | None) -> None:
    path = bronze.spec.path / "_delta_log" / "_last_checkpoint"
    path.unlink() if hint is None else path.write_text(hint)
    assert latest_version(bronze.spec.path) == 66
