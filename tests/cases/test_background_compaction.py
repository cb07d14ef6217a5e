"""Large groups of files are compacted by a thread: runs, requests and restarts go on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from compactable_release import assert_same_rows, head_rows, reading
from slice_patcher import SlicePatcher
from small_release import SmallRelease

from spark_jobs.backends.release import tables_of
from spark_jobs.stream import upkeep
from spark_jobs.stream.compaction import AUTOMATIC, CompactedTable, CompactionPolicy, compact_tables, compactable_tables
from spark_jobs.stream.upkeep import AutomaticCompaction
from spark_jobs.tables.data_files import DataFile

write_group = upkeep.write_group


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Every group is large; the thread waits for the event before it writes one."""
    opened = threading.Event()

    def wait_and_write(compacted: CompactedTable, group: Sequence[DataFile], **aside: Any) -> list[DataFile]:
        assert opened.wait(60)
        return write_group(compacted, group, **aside)

    monkeypatch.setattr(upkeep, "LARGE_GROUP", 1)
    monkeypatch.setattr(upkeep, "write_group", wait_and_write)
    yield opened
    opened.set()


def compaction_in_progress(release: SmallRelease) -> AutomaticCompaction:
    compaction = AutomaticCompaction(replace(AUTOMATIC, min_files=2))
    assert not compaction.step(compactable_tables([release.release])), "the owner does not wait for the group"
    assert compaction._in_progress is not None
    return compaction


def finish(compaction: AutomaticCompaction, release: SmallRelease) -> None:
    assert compaction._in_progress is not None
    compaction._in_progress.written.exception(60)
    assert compaction.step(compactable_tables([release.release]))


def file_counts(release: SmallRelease) -> dict[str, int]:
    return {table.spec.name: table.file_count for table in tables_of([release.release])}


def test_run_is_published_while_a_group_is_written(patcher: SlicePatcher, gate: threading.Event) -> None:
    release = patcher.production
    compaction = compaction_in_progress(release)
    assert compaction._in_progress is not None
    table, group = compaction._in_progress.table, len(compaction._in_progress.group)
    release.take([reading(52, 1)])
    compaction.note_run()
    assert not compaction.step(compactable_tables([release.release])), "the thread has not written the group"
    rows, files = head_rows(release), table.file_count
    gate.set()
    finish(compaction, release)
    assert table.file_count == files - group + 1
    assert_same_rows(head_rows(release), rows)


def test_group_whose_files_were_replaced_is_not_committed(patcher: SlicePatcher, gate: threading.Event) -> None:
    release = patcher.production
    compaction = compaction_in_progress(release)
    rows = head_rows(release)
    compact_tables(release.settings, [release.release], 600, CompactionPolicy(min_files=2))
    counts = file_counts(release)
    gate.set()
    finish(compaction, release)
    assert file_counts(release) == counts
    assert_same_rows(head_rows(release), rows)


def test_contended_table_is_compacted_between_runs(patcher: SlicePatcher, gate: threading.Event) -> None:
    release = patcher.production
    compaction = compaction_in_progress(release)
    assert compaction._in_progress is not None
    path = compaction._in_progress.table.spec.path
    release.restart()
    gate.set()
    finish(compaction, release)
    gate.clear()
    before = file_counts(release)
    assert compaction.step(compactable_tables([release.release])), "this group is not left to the thread"
    assert sum(file_counts(release).values()) < sum(before.values())
    assert path not in compaction._contended


def test_group_of_a_table_that_was_opened_again_is_not_committed(patcher: SlicePatcher, gate: threading.Event) -> None:
    release = patcher.production
    compaction = compaction_in_progress(release)
    assert compaction._in_progress is not None
    stale = compaction._in_progress.table
    release.restart()
    release.take([reading(52, 1)])
    rows, counts = head_rows(release), file_counts(release)
    gate.set()
    finish(compaction, release)
    assert file_counts(release) == counts
    assert_same_rows(head_rows(release), rows)
    assert not list(stale.spec.path.rglob("compacted-*/**/*.parquet")), "files that no commit names are deleted"
