"""Files that no table version needs are deleted after the declared retention, and no others."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from compactable_release import EARLY, LONG_AGO, assert_same_rows, head_rows, published_rows, reading
from deltalake import DeltaTable
from polars.testing import assert_frame_equal
from slice_patcher import SlicePatcher
from small_release import SmallRelease

from include.declare.dataset import RELEASE_START, ReleaseStart
from include.ground import delta_log as table_files
from include.ground.paths import reading_lock_path, snapshot_path
from include.observe.ended_plans import disk_use
from include.state.lease import shared_lock
from spark_jobs.backends.release import tables_of
from spark_jobs.stream.compaction import compact_tables
from spark_jobs.stream.expiry import AutomaticDeletion, retained_tables
from spark_jobs.tables.delta_table import Table


def age_files(release: SmallRelease) -> None:
    """Set the modification times of all Parquet files back by eight days."""
    for path in (release.settings.state / "warehouse").rglob("*"):
        if path.suffix == ".parquet":
            then = path.stat().st_mtime - LONG_AGO.total_seconds()
            os.utime(path, (then, then))


def test_published_versions_survive_deletion(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    release = patcher.production
    before, settings = published_rows(release), release.settings
    table = release.release.writer.rejected
    looked_at = without_retention(monkeypatch)
    age_files(release)
    compact_tables(settings, [release.release], 600, EARLY)
    assert looked_at, "no table was looked at"
    # The publication names versions older than the compaction: their files are kept.
    assert_same_rows(published_rows(release), before)
    assert_same_rows(head_rows(release), before)
    release.take([reading(50, 1), reading(51, "one")])
    age_files(release)
    done = compact_tables(settings, [release.release], 600, EARLY)
    path = str(table.spec.path.relative_to(settings.state / "warehouse"))
    assert done[path]["removed"] > 0
    assert published_rows(release)["silver.meter"].height == before["silver.meter"].height + 1
    with pytest.raises(OSError, match="not found|No such file"):
        DeltaTable(str(table.spec.path), version=OLD_VERSION).to_pyarrow_table()


# The version before the last batch; compaction replaces two of its files.
OLD_VERSION = 4


def without_retention(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no version stay for its age; return the list that collects the names of the tables that are looked at."""
    found: list[str] = []
    original = table_files.obsolete_files

    def obsolete_files(table: Path, keep: list[int], retention: timedelta, *, sweep: bool = False) -> list[str]:
        found.append(table.name)
        return original(table, keep, timedelta(), sweep=sweep)

    monkeypatch.setattr(table_files, "obsolete_files", obsolete_files)
    return found


def test_recently_replaced_files_are_kept(patcher: SlicePatcher) -> None:
    release = patcher.production
    table = release.release.writer.rejected
    before = DeltaTable(str(table.spec.path), version=OLD_VERSION).to_pyarrow_table()
    age_files(release)
    compact_tables(release.settings, [release.release], 600, EARLY)
    release.take([reading(50, 1), reading(51, "one")])
    compact_tables(release.settings, [release.release], 600, EARLY)
    assert len(table.files()) < 6
    assert DeltaTable(str(table.spec.path), version=OLD_VERSION).to_pyarrow_table().equals(before)


def delete_obsolete(release: SmallRelease) -> None:
    """Do what the driver does between two runs, until nothing is left to do."""
    deletion = AutomaticDeletion(next_check=0)
    while deletion.step(lambda: retained_tables(release.settings, [release.release])):
        pass


def parquet_files(table: Table) -> set[Path]:
    return set(table.spec.path.rglob("*.parquet"))


def test_owner_deletes_replaced_files_without_a_commit(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    release = patcher.production
    compact_tables(release.settings, [release.release], 600, EARLY)
    release.take([reading(50, 1), reading(51, "one")])
    before, table = published_rows(release), release.release.writer.rejected
    versions = [each.version for each in tables_of([release.release])]
    current = {table.spec.path / file.path for file in table.files()}
    delete_obsolete(release)
    assert parquet_files(table) > current, "files are deleted within the retention"
    without_retention(monkeypatch)
    delete_obsolete(release)
    assert parquet_files(table) == current
    for each in tables_of([release.release]):
        assert not [folder for folder in each.spec.path.rglob("*") if folder.is_dir() and not any(folder.iterdir())]
    assert [each.version for each in tables_of([release.release])] == versions
    assert_same_rows(published_rows(release), before)
    release.restart()
    release.take([reading(60, 1)])
    assert_same_rows(head_rows(release), published_rows(release))


def test_table_that_cannot_be_cleaned_does_not_keep_the_others_from_it(
    patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = patcher.production
    compact_tables(release.settings, [release.release], 600, EARLY)
    release.take([reading(50, 1), reading(51, "one")])
    first, *others = tables_of([release.release])
    kept, current = parquet_files(first), {first.spec.path / file.path for file in first.files()}
    without_retention(monkeypatch)
    for path in kept - current:
        path.unlink()
        path.mkdir()
    delete_obsolete(release)
    assert parquet_files(first) == kept > current, "folders cannot be deleted as files"
    for table in others:
        assert parquet_files(table) == {table.spec.path / file.path for file in table.files()}
    for path in kept - current:
        path.rmdir()
        path.touch()
    delete_obsolete(release)
    assert parquet_files(first) == current, "a later look takes the table in again"


def test_storage_counts_each_byte_once(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    release = patcher.production
    settings, silver = release.settings, release.release.writer.silver
    compact_tables(settings, [release.release], 600, EARLY)
    release.take([reading(50, 1), reading(51, "one")])
    dataset = release.release.dataset
    shutil.copytree(dataset.folder, snapshot_path(settings, "meter", dataset.release), dirs_exist_ok=True)
    (settings.state / "logs").mkdir(exist_ok=True)
    (settings.state / "logs" / "runner.log").write_bytes(b"x" * 77)
    parts = disk_use(settings)
    assert sum(use.total for use in parts) == sum(p.lstat().st_size for p in settings.state.rglob("*") if p.is_file())
    by_name = {use.part.name: use for use in parts}
    assert by_name["logs"].total == 77
    assert by_name["silver.meter"].current == sum(file.size for file in silver.files())
    replaced = parquet_files(silver) - {silver.spec.path / file.path for file in silver.files()}
    assert by_name["silver.meter"].replaced == sum(path.stat().st_size for path in replaced) > 0
    assert not any(use.deletable for use in parts), "files are deletable within the retention"
    without_retention(monkeypatch)
    before = {use.part: use for use in disk_use(settings, "meter")}
    delete_obsolete(release)
    after = {use.part: use for use in disk_use(settings, "meter")}
    freed = {part: use.replaced - after[part].replaced for part, use in before.items()}
    assert freed == {part: use.deletable for part, use in before.items()}
    assert sum(freed.values()) > 0


def test_no_file_is_deleted_while_a_job_reads(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    release = patcher.production
    compact_tables(release.settings, [release.release], 600, EARLY)
    release.take([reading(50, 1), reading(51, "one")])
    table = release.release.writer.rejected
    before = parquet_files(table)
    without_retention(monkeypatch)
    with shared_lock(reading_lock_path(release.settings, "meter")):
        delete_obsolete(release)
        assert parquet_files(table) == before
    delete_obsolete(release)
    assert parquet_files(table) < before


def test_versions_that_a_planned_release_inherits_survive(
    patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = patcher.production
    silver, rejected = release.release.writer.silver, release.release.writer.rejected
    versions = (silver.version, rejected.version)
    rows = pl.read_delta(str(rejected.spec.path), version=versions[1])
    planned = snapshot_path(release.settings, "meter", "0" * 12)
    planned.mkdir(parents=True)
    start = ReleaseStart(batch=5, base=release.release.dataset.release, silver=versions[0], rejected=versions[1])
    (planned / RELEASE_START).write_text(json.dumps(asdict(start)))
    compact_tables(release.settings, [release.release], 600, EARLY)
    release.take([reading(50, 1), reading(51, "one")])
    without_retention(monkeypatch)
    delete_obsolete(release)
    assert_frame_equal(pl.read_delta(str(rejected.spec.path), version=versions[1]), rows)
    then = planned.stat().st_mtime - LONG_AGO.total_seconds()
    os.utime(planned, (then, then))
    delete_obsolete(release)
    with pytest.raises((OSError, pl.exceptions.ComputeError)):
        pl.read_delta(str(rejected.spec.path), version=versions[1])


def test_old_uncommitted_files_are_removed(patcher: SlicePatcher) -> None:
    release = patcher.production
    orphan = release.release.writer.silver.spec.path / "b00000099-feed" / "month=2024-02" / "part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"half")
    young = compact_tables(release.settings, [release.release], 600)
    assert orphan.exists()
    assert not any(facts["removed"] for facts in young.values())
    then = orphan.stat().st_mtime - LONG_AGO.total_seconds()
    os.utime(orphan, (then, then))
    compact_tables(release.settings, [release.release], 600)
    assert not orphan.exists()
