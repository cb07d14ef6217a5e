"""Old commits move into a table's history: nothing that reads commits notices, after a crash neither."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from grown_history import GrownHistory
from pyspark.sql.types import LongType, StringType, StructType
from simulated_deaths import Died, dying_at

from include.ground import commit_history
from include.ground.commit_history import HISTORY, HistoryDamaged, history_end
from include.ground.delta_log import (
    LOG,
    Commit,
    LogIncomplete,
    batch_commit,
    checkpoint_file,
    commit_content,
    commit_name,
    commits,
    commits_descending,
    commits_following,
    has_commit,
    latest_version,
    log_versions,
    read_commit,
)
from include.ground.paths import reading_lock_path
from include.ground.settings import Settings
from include.observe.ended_plans import disk_use
from include.observe.ledger_writer import project_dataset, rebuild
from include.read.published_tables import batch_offsets
from include.state.lease import shared_lock
from spark_jobs.backends.release import tables_of
from spark_jobs.stream.upkeep import HISTORY_EVERY, AutomaticHistory
from spark_jobs.tables import commit_log, delta_table
from spark_jobs.tables.commit_log import (
    LogTail,
    RollbackTooFar,
    checkpoint_versions,
    is_due,
    move_range,
    obsolete_files,
    oldest_version,
)
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import Step

COLUMNS = StructType().add("n", LongType()).add("_month", StringType())
STEPS = [step for step in Step if step.value.startswith("history.")]
NOW = timedelta()


@pytest.fixture(autouse=True)
def _small_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints at 4, 9, 14, …, of which 19, 39, 59 stay; ranges of 10 commits; the last 15 commits stay."""
    monkeypatch.setitem(delta_table.PROPERTIES, "delta.checkpointInterval", "5")
    monkeypatch.setattr(commit_log, "SPARSE", 20)
    monkeypatch.setattr(commit_log, "OPENING", NOW)
    monkeypatch.setattr(commit_history, "RANGE", 10)
    monkeypatch.setattr(commit_log, "KEPT_COMMITS", 15)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with versions 0 to 66: its creation, 60 batches, and after each tenth a compaction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(delta_table.PROPERTIES, "delta.checkpointInterval", "5")
        patch.setattr(commit_log, "SPARSE", 20)
        patch.setattr(commit_log, "OPENING", NOW)
        table = Table(spec(tmp_path_factory.mktemp("template")))
        for n in range(60):
            table.commit("app", n, {"app_id": "app", "batches": [n, n]}, [file(n)])
            if n % 10 == 9:
                table.compact([file(1000 + n)], [file(n)])
    return table.spec.path


@pytest.fixture
def table(template: Path, tmp_path: Path) -> Table:
    """The template's table, in a folder of its own."""
    copytree(template, spec(tmp_path).path)
    return Table(spec(tmp_path))


def spec(folder: Path) -> TableSpec:
    return TableSpec("bronze.small", folder / "a table", COLUMNS, "_month", ("n",))


def file(n: int) -> DataFile:
    return DataFile(f"b{n}/_month=2024-01/part.parquet", "2024-01", 3, 100, {"n": n}, {"n": n})


def move_all(table: Table, *needed: int) -> int:
    """Move all commits that may move; return the number of versions in the history."""
    while move_range(table.spec.path, table.version, needed, NOW):
        continue
    return history_end(table.spec.path)


def test_moved_commits_are_read_as_before(table: Table) -> None:
    path = table.spec.path
    before, found = list(commits(path)), {n: batch_commit(table.spec.path, n) for n in range(60)}
    contents = [commit_content(path, version) for version in range(67)]
    # Version 51 is the oldest to be kept; checkpoint 39 opens it.
    assert move_all(table) == 30
    assert log_versions(path) == list(range(30, 67))
    assert list(commits(path)) == list(commits_descending(path))[::-1] == before
    for after in (-1, 3, 4, 28, 29, 30, 66):
        assert list(commits(path, after)) == list(commits_following(path, after)) == before[after + 1 :]
    assert [commit_content(path, version) for version in range(67)] == contents
    assert [has_commit(path, version) for version in (-1, 0, 29, 66, 67)] == [False, True, True, True, False]
    assert {n: batch_commit(table.spec.path, n) for n in range(60)} == found
    assert Table(table.spec).commit_of("app", 3) == found[3]
    (path / LOG / "_last_checkpoint").unlink()
    assert latest_version(path) == 66


def test_owner_and_delta_open_the_newest_and_all_kept_versions(table: Table) -> None:
    path = table.spec.path
    before = {version: sorted(DeltaTable(str(path), version=version).file_uris()) for version in range(39, 67)}
    assert move_all(table) == 30
    assert {v: sorted(DeltaTable(str(path), version=v).file_uris()) for v in range(39, 67)} == before
    assert sorted(DeltaTable(str(path)).file_uris()) == before[66]
    assert checkpoint_versions(path) == [39, 59, 64], "checkpoint 19 would open no version that has its commits"
    owner = Table(table.spec)
    for n in range(60, 90):
        owner.commit("app", n, {"app_id": "app", "batches": [n, n]}, [file(n)])
    assert move_all(owner) == 70, "checkpoint 79 opens version 81"
    assert [commit.version for commit in commits(path)] == list(range(97))


def test_vacuum_leaves_the_history(table: Table) -> None:
    assert move_all(table) == 30
    for parquet in (table.spec.path / HISTORY).iterdir():
        os.utime(parquet, (0, 0))
    options: dict[str, Any] = {"retention_hours": 0, "enforce_retention_duration": False, "full": True}
    assert not [name for name in DeltaTable(str(table.spec.path)).vacuum(dry_run=False, **options) if HISTORY in name]
    assert [commit.version for commit in commits(table.spec.path)][:67] == list(range(67))


def test_young_and_last_commits_stay(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not move_range(table.spec.path, table.version, (), timedelta(hours=1))
    monkeypatch.setattr(commit_log, "KEPT_COMMITS", 28)
    assert not is_due(table.spec.path, 37)
    assert is_due(table.spec.path, 38)
    assert move_all(table) == 10
    monkeypatch.setattr(commit_log, "KEPT_COMMITS", 27)
    assert move_all(table) == 30


def test_oldest_version_that_opens_is_a_checkpoint(table: Table) -> None:
    path = table.spec.path
    assert oldest_version(path) == 0
    assert move_all(table, 22) == 30
    assert oldest_version(path) == 39
    assert DeltaTable(str(path), version=39).version() == 39
    with pytest.raises(DeltaError):
        DeltaTable(str(path), version=38)


def test_needed_versions_open_until_they_are_not_needed_any_more(table: Table) -> None:
    path, before = table.spec.path, list(commits(table.spec.path))
    files = sorted(DeltaTable(str(path), version=22).file_uris())
    assert move_all(table, 66, 22) == 30, "one old version does not keep all later ones"
    assert log_versions(path) == [19, 20, 21, 22, *range(30, 67)]
    assert sorted(DeltaTable(str(path), version=22).file_uris()) == files
    assert list(commits(path)) == list(commits_descending(path))[::-1] == before
    assert move_all(table) == 30
    assert log_versions(path) == list(range(30, 67))
    assert 19 not in checkpoint_versions(path)


def test_nothing_moves_behind_a_damaged_checkpoint(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "KEPT_COMMITS", 28)
    checkpoint = checkpoint_file(table.spec.path, 19)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    with pytest.raises(Exception, match=r"(?i)parquet|corrupt|footer"):
        move_all(table)
    assert log_versions(table.spec.path) == list(range(67))
    checkpoint.unlink()
    assert move_all(table) == 0
    monkeypatch.setattr(commit_log, "KEPT_COMMITS", 15)
    assert move_all(table) == 30


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("passes", [1, 2])
def test_crash_while_commits_move_loses_and_repeats_none(table: Table, step: Step, passes: int) -> None:
    path, before = table.spec.path, list(commits(table.spec.path))
    with pytest.raises(Died), dying_at(step, passes):
        move_all(table)
    assert list(commits(path)) == list(commits_descending(path))[::-1] == before
    assert len(DeltaTable(str(path)).file_uris()) == 60
    assert move_all(Table(table.spec)) == 30
    assert list(commits(path)) == before
    assert log_versions(path) == list(range(30, 67))
    assert {p.name for p in (path / HISTORY).iterdir()} == {f"{first:020d}.parquet" for first in (0, 10, 20)}


def test_commits_that_move_while_they_are_read_are_read_once(table: Table) -> None:
    before = list(commits(table.spec.path))
    reading = commits(table.spec.path)
    found = [next(reading)]
    assert move_all(table) == 30
    assert [*found, *reading] == before


def test_history_that_lacks_a_commit_removes_none(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    write = pq.write_table
    monkeypatch.setattr(pq, "write_table", lambda rows, *more, **named: write(without_row(rows, 3), *more, **named))
    with pytest.raises(HistoryDamaged, match="each of the versions 0 to 9"):
        move_all(table)
    assert (history_end(table.spec.path), log_versions(table.spec.path)) == (0, list(range(67)))


def without_row(rows: Any, number: int) -> Any:
    return rows.filter([row != number for row in range(rows.num_rows)])


def drop_a_commit(path: Path) -> None:
    pq.write_table(without_row(pq.read_table(path), 3), path)


def repeat_a_commit(path: Path) -> None:
    pq.write_table(pq.read_table(path).take([0, 1, 2, 2, 4, 5, 6, 7, 8, 9]), path)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[pq.read_metadata(path).row_group(0).column(1).data_page_offset + 100] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-50]),
    "without a commit": drop_a_commit,
    "with a commit twice": repeat_a_commit,
    "with a flipped bit": flip_a_bit,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_history_is_an_error_that_names_the_file(table: Table, damage: str) -> None:
    path = table.spec.path
    assert move_all(table) == 30
    damaged = path / HISTORY / f"{10:020d}.parquet"
    DAMAGES[damage](damaged)
    readers: list[Callable[[], Any]] = [
        lambda: list(commits(path)),
        lambda: list(commits(path, after=12)),
        lambda: list(commits_descending(path)),
        lambda: read_commit(path, 11),
    ]
    for reader in readers:
        with pytest.raises(HistoryDamaged) as refused:
            reader()
        assert refused.value.path == damaged
    assert [commit.version for commit in commits(path, after=19)] == list(range(20, 67))
    assert len(DeltaTable(str(path)).file_uris()) == 60


@pytest.mark.parametrize("content", [None, b"", b"x", b"0", b"7"])
def test_history_without_its_number_of_versions_is_an_error(table: Table, content: bytes | None) -> None:
    assert move_all(table) == 30
    end = table.spec.path / LOG / HISTORY
    end.unlink() if content is None else end.write_bytes(content)
    with pytest.raises(HistoryDamaged) as refused:
        list(commits(table.spec.path))
    assert refused.value.path == end


def test_missing_commit_after_the_history_is_named(table: Table) -> None:
    assert move_all(table) == 30
    (table.spec.path / LOG / commit_name(30)).unlink()
    with pytest.raises(LogIncomplete) as refused:
        list(commits(table.spec.path))
    assert refused.value.version == 30


def test_rollback_into_the_history_is_refused(table: Table) -> None:
    tail = LogTail(table.spec.path, 66, 66, ())
    assert len(obsolete_files(tail, 38)) > 28
    assert move_all(table) == 30
    assert checkpoint_file(table.spec.path, 64) in obsolete_files(tail, 39)
    with pytest.raises(RollbackTooFar):
        obsolete_files(tail, 38)
    with pytest.raises(RollbackTooFar):
        obsolete_files(LogTail(table.spec.path, 66, 66, (39,)), 45)


def test_rollback_behind_a_protected_version_is_refused(table: Table) -> None:
    """Checkpoint 19 stays for version 22, but commits 23 to 29 are in the history only."""
    path, tail = table.spec.path, LogTail(table.spec.path, 66, 66, ())
    while move_range(path, table.version, (22,), NOW):
        continue
    for version in (-1, 23, 29, 38):
        with pytest.raises(RollbackTooFar):
            obsolete_files(tail, version)
    for obsolete in obsolete_files(tail, 22):
        obsolete.unlink()
    (path / LOG / "_last_checkpoint").unlink()
    assert DeltaTable(str(path)).version() == 22


def all_commits(history: GrownHistory) -> dict[str, list[Commit]]:
    return {table.spec.name: list(commits(table.spec.path)) for table in tables_of([history.release])}


def move_commits(moving: AutomaticHistory, history: GrownHistory) -> list[int]:
    """Look at all tables now; return the numbers of versions in their histories."""
    moving.next_check = 0
    while moving.step(history.settings, [history.release]):
        pass
    return [history_end(table.spec.path) for table in tables_of([history.release])]


def test_driver_moves_commits_and_ledger_and_planning_read_the_same(settings: Settings) -> None:
    history = GrownHistory(settings)
    history.moving.next_check = math.inf
    while history.batches < 42:
        history.add_batch(published=history.batches >= 40)
    bronze = history.release.writer.bronze.spec.path
    before, offsets = all_commits(history), batch_offsets(bronze, 50)
    assert rebuild(settings).identical
    moving = AutomaticHistory()
    assert not moving.step(settings, [history.release]), "the first look is ten seconds after the driver's start"
    assert move_commits(moving, history) == [0] * 4, "commits of the last five minutes stay"
    moving.age = NOW
    with shared_lock(reading_lock_path(settings, "flights")):
        assert move_commits(moving, history) == [0] * 4, "a job reads the tables"
    assert move_commits(moving, history) == [10] * 4
    assert moving.next_check - moving.clock() > HISTORY_EVERY - 5
    assert all_commits(history) == before
    assert batch_offsets(bronze, 50) == offsets
    rebuilt = rebuild(settings)
    assert (rebuilt.identical, rebuilt.cleaned) == (True, {})
    history.add_batch()
    assert rebuild(settings).commits == sum(map(len, before.values())) + 4
    assert project_dataset(history.ledger, settings, "flights").commits == 0
    logs = {use.part.table: use for use in disk_use(settings, "flights")}
    moved = (bronze / HISTORY / f"{0:020d}.parquet").stat().st_size
    assert logs[bronze].log == moved + sum(f.stat().st_size for f in (bronze / LOG).iterdir())
    (bronze / HISTORY / f"{0:020d}.parquet").unlink()
    with pytest.raises(HistoryDamaged):
        rebuild(settings)
