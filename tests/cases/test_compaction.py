"""Compaction: readers and later batches see the same rows in fewer files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from compactable_release import (
    EARLY,
    METER,
    WHOLE_HISTORY,
    assert_same_rows,
    head_rows,
    published_rows,
    reading,
    sorted_rows,
)
from polars.testing import assert_frame_equal
from slice_patcher import SlicePatcher
from small_release import SmallRelease

from include.audit.kafka import Topic
from include.audit.verified_history import audit_scope
from include.change.slices import PublishedHistory
from include.declare.dataset import load_dataset
from include.ground.delta_log import commits
from include.observe.ledger_writer import rebuild
from include.read.publication import Publication, read_publication
from include.read.publication import tables_of as tables_of_publication
from include.read.published_tables import PinnedTables
from spark_jobs.backends.local import backend
from spark_jobs.backends.release import open_release, tables_of
from spark_jobs.stream import refine as refine_module
from spark_jobs.stream import upkeep
from spark_jobs.stream.active_releases import refuse_incomplete
from spark_jobs.stream.compaction import (
    AUTOMATIC,
    MEGABYTE,
    CompactedTable,
    CompactionPolicy,
    compact_tables,
    compactable_tables,
)
from spark_jobs.stream.refine import refine
from spark_jobs.stream.upkeep import AutomaticCompaction
from spark_jobs.tables.delta_table import CompactedRowsDiffer
from spark_jobs.tables.failpoints import Step


def double_litres(folder: Path) -> None:
    path = folder / "silver.py"
    path.write_text(
        path.read_text().replace("return accepted", 'return accepted.withColumn("litres", accepted.litres * 2)')
    )


def audited(release: SmallRelease) -> tuple[Publication, PinnedTables, Topic]:
    """Return what an audit is about: a publication, its tables, and a topic that is never read."""
    published = read_publication(release.settings, "meter")
    tables = PinnedTables(tables_of_publication(release.settings, published))
    return published, tables, Topic("meter", "meter-id", {}, {}, lambda *_: iter(()))


def test_compaction_keeps_rows_in_fewer_files(patcher: SlicePatcher) -> None:
    release = patcher.production
    before, verified = published_rows(release), audit_scope(None, *audited(release)).reached
    assert verified is not None
    done = compact_tables(release.settings, [release.release], 600, EARLY)
    assert {facts["left"] for facts in done.values()} == {0}
    fewer = {table for table, facts in done.items() if facts["now"] < facts["files"]}
    assert any(table.endswith("/rejected") for table in fewer)
    assert any("/gold/" in table for table in fewer)
    assert any(table.endswith("/silver") for table in fewer)
    assert any(table.endswith("/bronze") for table in fewer)
    assert_same_rows(published_rows(release), before)
    assert_same_rows(head_rows(release), before)

    # A restarted owner reads the compacted tables and writes the next batch.
    release.restart()
    release.take([reading(40, 5), reading(41, "five")])
    assert release.silver().height == before["silver.meter"].height + 1
    scope = audit_scope(verified, *audited(release))
    assert scope.why_all == "", "other files have the same rows"
    assert frozenset() < scope.unchanged("silver.meter") < set(verified.files["silver.meter"])
    twice = compact_tables(release.settings, [release.release], 600, EARLY)
    assert all(twice[table]["files"] <= done[table]["now"] + 1 for table in fewer)
    assert not any(patcher.rebuild(WHOLE_HISTORY)[2].values()), "the rebuild must give the same rows"
    patch, _, differing = patcher.rebuild(WHOLE_HISTORY, double_litres)
    patcher.apply(patch)
    assert differing["silver.meter"] > 0
    assert "have changed in silver.meter" in audit_scope(verified, *audited(release)).why_all
    assert release.silver()["litres"].sum() == 2 * (before["silver.meter"]["litres"].sum() + 5)
    rebuild(release.settings)


def test_change_feed_reader_sees_no_rows_of_compaction(patcher: SlicePatcher) -> None:
    table = patcher.production.release.writer.rejected
    version = table.version
    compact_tables(patcher.production.settings, [patcher.production.release], 600, EARLY)
    log = table.spec.path / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{version + 1:020}.json").read_text().splitlines()]
    changes = [action[kind]["dataChange"] for action in actions for kind in ("add", "remove") if kind in action]
    assert changes
    assert not any(changes)
    assert all(commit.metadata is None for commit in commits(table.spec.path, version))


@pytest.mark.extended
def test_unfinished_run_keeps_its_files(patcher: SlicePatcher) -> None:
    release = patcher.production
    for minute in range(50, 53):
        release.ingest([reading(minute, 1)])
    tables = (release.release.writer.silver, release.release.writer.rejected)
    with pytest.raises(Died):
        dying_before_gold(release, 5, 7)
    assert release.begun() == (5, 7)
    before = [{file.path for file in table.files()} for table in tables]
    compact_tables(release.settings, [release.release], 600, CompactionPolicy(min_files=2))
    assert [{file.path for file in table.files()} for table in tables] == before
    release.restart()
    release.refine(5, 7)
    assert release.silver().height == 13
    assert not any(patcher.rebuild(WHOLE_HISTORY)[2].values())


class Died(Exception):
    """The process is dead."""


def dying_before_gold(release: SmallRelease, first: int, last: int) -> None:
    def die(*_: object) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refine_module, "pass_step", lambda step, *_: die() if step is Step.REJECTED_COMMITTED else None)
        release.refine(first, last)


def test_compaction_stops_at_time_limit(patcher: SlicePatcher) -> None:
    release = patcher.production
    before = published_rows(release)
    done = compact_tables(release.settings, [release.release], 0, EARLY)
    assert sum(facts["left"] for facts in done.values()) > 0
    assert all(facts["now"] == facts["files"] for facts in done.values())
    assert_same_rows(published_rows(release), before)
    assert_same_rows(head_rows(release), before)


def test_compaction_that_changes_row_count_is_refused(patcher: SlicePatcher) -> None:
    silver = patcher.production.release.writer.silver
    version, files = silver.version, silver.files()
    with pytest.raises(CompactedRowsDiffer, match="nothing was committed"):
        silver.compact(files[:1], files[:2])
    assert silver.version == version


def test_new_release_is_built_from_compacted_bronze_in_small_runs(patcher: SlicePatcher) -> None:
    release = patcher.production
    before = published_rows(release)
    compact_tables(release.settings, [release.release], 600, CompactionPolicy(min_files=2))
    bronze = release.release.writer.bronze
    whole = [file for file in bronze.files() if file.last_batch > file.first_batch]
    assert whole, "bronze has files of several batches"
    assert bronze.count_rows(0, 4) == 15
    assert bronze.count_rows(1, 2) == 6
    folder = patcher.folder / "meter"
    shutil.copytree(METER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "silver.py").write_text((folder / "silver.py").read_text() + "\n# another release\n")
    other = open_release(release.spark, release.settings, load_dataset("meter", folder), bronze)
    runs = []
    while (run := other.next_run(4, 4)) is not None:
        runs.append(run)
        refine(release.settings, other, *run, 1, publishing=False)
    assert runs == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)], "a run ends inside a compacted file"
    silver = sorted_rows(pl.read_delta(str(other.writer.silver.spec.path)))
    assert_frame_equal(silver, before["silver.meter"], check_column_order=False)
    refuse_incomplete(other, 4)


def test_planning_finds_the_same_batches_after_compaction(patcher: SlicePatcher) -> None:
    release = patcher.production

    def planned() -> tuple[set[int], list[Any]]:
        tables = tables_of_publication(release.settings, read_publication(release.settings, "meter"))
        history = PublishedHistory(tables["bronze.meter"], tables["silver.meter"])
        since, until = datetime(2024, 2, 11, tzinfo=UTC), datetime(2024, 2, 13, tzinfo=UTC)
        parts = [part for part in history.batch_offsets if part.batch < 5]
        return history.batches_with_events(["read_at"], since, until), history.missing(parts)

    before = planned()
    assert before == ({1, 2}, [])
    compact_tables(release.settings, [release.release], 600, CompactionPolicy(min_files=2))
    release.take([reading(50, 1)])
    assert planned() == before


def test_owner_compacts_by_itself_and_keeps_few_files(patcher: SlicePatcher) -> None:
    release = patcher.production
    before = head_rows(release)
    compaction = AutomaticCompaction(replace(AUTOMATIC, min_files=2))
    steps = 0
    while compaction.step(compactable_tables([release.release])):
        steps += 1
    assert steps >= 4, "one group of one table at a time"
    counts = {table.spec.name: table.file_count for table in tables_of([release.release])}
    assert max(counts[name] for name in ("bronze.meter", "silver.meter", "rejected.meter")) <= 5
    assert_same_rows(head_rows(release), before)
    assert not compaction.step(compactable_tables([release.release])), "nothing is left to compact"
    release.take([reading(52, 1)])
    compaction.note_run()
    assert not compaction.step(compactable_tables([release.release])), "one more file is not enough"
    assert not any(patcher.rebuild(WHOLE_HISTORY)[2].values())


def test_failed_compaction_pauses_and_runs_continue(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    now, failed = [0.0], list[str]()
    compaction = AutomaticCompaction(replace(AUTOMATIC, min_files=2), clock=lambda: now[0])

    def fail(compacted: CompactedTable, _: object) -> None:
        failed.append(compacted.table.spec.name)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "compact_group", fail)
        compact_all(compaction, patcher.production)
    assert len(failed) == len(set(failed)) > 1, "each table is tried once"
    assert not compaction.step(compactable_tables([patcher.production.release])), "it pauses"
    now[0] += 61
    assert compaction.step(compactable_tables([patcher.production.release]))
    patcher.production.take([reading(52, 1)])


@pytest.mark.parametrize("large", [MEGABYTE, 1], ids=["between runs", "by the thread"])
def test_table_with_a_damaged_file_does_not_keep_the_others_from_compaction(
    patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(upkeep, "LARGE_GROUP", large)
    now, release = [0.0], patcher.production
    first, *others = (each.table for each in compactable_tables([release.release]))
    file = first.files()[0].path
    damaged, before = first.spec.path / file, {table.spec.name: table.file_count for table in others}
    content = damaged.read_bytes()
    damaged.write_bytes(b"damaged")
    compaction = AutomaticCompaction(replace(AUTOMATIC, min_files=2), clock=lambda: now[0])
    compact_all(compaction, release)
    assert file in {each.path for each in first.files()}
    fewer = {table.spec.name for table in others if table.file_count < before[table.spec.name]}
    assert fewer == {name for name, count in before.items() if count > 1}
    assert {"bronze.meter", "silver.meter"} <= fewer
    damaged.write_bytes(content)
    now[0] += 61
    compact_all(compaction, release)
    assert file not in {each.path for each in first.files()}, "a later look takes the table in again"


@pytest.mark.parametrize("large", [MEGABYTE, 1], ids=["between runs", "by the thread"])
def test_damaged_group_does_not_block_the_groups_behind_it(
    patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(upkeep, "LARGE_GROUP", large)
    now, release = [0.0], patcher.production
    compaction = AutomaticCompaction(replace(AUTOMATIC, min_files=2), clock=lambda: now[0])
    tables = [(each.table, each.groups(compaction.policy)) for each in compactable_tables([release.release])]
    table, (first, *behind) = next((table, groups) for table, groups in tables if len(groups) > 1)
    damaged = table.spec.path / first[0].path
    content = damaged.read_bytes()
    damaged.write_bytes(b"damaged")
    compact_all(compaction, release)
    current = {file.path for file in table.files()}
    healthy = {file.path for file in first[1:]}
    assert first[0].path in current
    assert current.isdisjoint(healthy) == (len(healthy) >= compaction.policy.min_files)
    assert current.isdisjoint(file.path for group in behind for file in group)
    attempts = [path for path in table.spec.path.rglob("compacted-*") if path.is_dir()]
    assert attempts, "the groups behind it were written"
    assert [path for path in attempts if not list(path.rglob("*.parquet"))] == [], "a failed attempt leaves nothing"
    damaged.write_bytes(content)
    now[0] += 61
    compact_all(compaction, release)
    assert first[0].path not in {file.path for file in table.files()}, "a later look takes the group in again"


def compact_all(compaction: AutomaticCompaction, release: SmallRelease) -> None:
    """Do what the driver does between runs, until nothing is left to do now."""
    for _ in range(50):
        more = compaction.step(compactable_tables([release.release]))
        if compaction._in_progress is not None:
            compaction._in_progress.written.exception(60)
        elif not more:
            return
    raise AssertionError("compaction does not end")


def test_silver_is_split_by_event_day_when_large(patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    release = patcher.production
    monkeypatch.setattr(backend, "SPLIT_BY_DAY", 1)
    before = head_rows(release)["silver.meter"]
    compact_tables(release.settings, [release.release], 600, CompactionPolicy(min_files=2))
    assert_same_rows({"silver": head_rows(release)["silver.meter"]}, {"silver": before})
    compacted = [file for file in release.release.writer.silver.files() if "compacted" in file.path]
    assert len(compacted) > 1
    assert all(file.low["read_at"].date() == file.high["read_at"].date() for file in compacted)  # type: ignore[union-attr]
