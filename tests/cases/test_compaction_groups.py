"""Which files are compacted together, and in which order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import pytest
from slice_patcher import SlicePatcher

from spark_jobs.stream.compaction import (
    AUTOMATIC,
    MEGABYTE,
    CompactionPolicy,
    compactable_tables,
    compaction_groups,
    event_day_of,
    tier,
)
from spark_jobs.tables.data_files import BATCH, HIVE_NULL, DataFile


def file(name: str, size: int, batch: int, partition: Any = "2024-02") -> DataFile:
    return DataFile(name, partition, 1, size, {"_batch_id": batch}, {"_batch_id": batch})


def day_file(path: str, size: int, first: int, last: int) -> DataFile:
    """Return a file with rows of these days of February."""
    low, high = (datetime(2024, 2, day, 12, tzinfo=UTC) for day in (first, last))
    return DataFile(path, "2024-02", 100, size, {"read_at": low, "_batch_id": 1}, {"read_at": high, "_batch_id": 1})


def test_files_that_were_divided_by_day_are_not_divided_again() -> None:
    by_day, pieces = event_day_of("read_at"), [day_file(f"d{day}", MEGABYTE, day, day) for day in range(1, 29)]
    fresh = [day_file(f"f{number}", MEGABYTE, 28, 28) for number in range(6)]
    assert compaction_groups([*pieces, *fresh], AUTOMATIC, by_day) == []
    several = [day_file(f"s{number}", MEGABYTE, number, number + 1) for number in range(1, 9)]
    (group,) = compaction_groups([*pieces, *fresh, *several], AUTOMATIC, by_day)
    assert {each.path for each in group} == {each.path for each in several}
    (group,) = compaction_groups([*pieces, *fresh, day_file("f7", MEGABYTE, 28, 28)], AUTOMATIC, by_day)
    assert {each.path for each in group} == {*(each.path for each in fresh), "f7", "d28"}


def test_few_rows_of_each_day_become_no_file_each() -> None:
    late = [day_file(f"d{day}", 10_000, day, day) for day in range(1, 9)]
    assert [len(group) for group in compaction_groups(late, AUTOMATIC, event_day_of("read_at"))] == [8]


def test_tiers_grow_by_a_factor_of_eight() -> None:
    bounds = [64 << 10, 512 << 10, 4 << 20, 32 << 20]
    assert [tier(bound - 1) for bound in bounds] == [0, 1, 2, 3]
    assert [tier(bound) for bound in bounds] == [1, 2, 3, 4]


def batches_of(group: list[DataFile]) -> list[int]:
    return [int(str(each.low["_batch_id"])) for each in group]


def files_of_sizes(*sizes: int) -> list[DataFile]:
    return [DataFile(f"f{n}", "d", 9, size, {"_batch_id": n}, {"_batch_id": n}) for n, size in enumerate(sizes)]


def groups_in_order(*sizes: int) -> list[list[int]]:
    groups = compaction_groups(files_of_sizes(*sizes), AUTOMATIC, attrgetter("partition_text"), in_order=True)
    return [batches_of(group) for group in groups]


def test_small_files_between_larger_ones_are_compacted_with_them() -> None:
    """Else they would become one file around those, after which no row group could be copied."""
    small, large = 300 << 10, 900 << 10
    divided = [small, large] * 7
    assert groups_in_order(*divided) == []
    assert [
        len(each)
        for each in compaction_groups(files_of_sizes(*divided, small), AUTOMATIC, attrgetter("partition_text"))
    ] == [8]
    assert groups_in_order(*divided, small) == []
    assert groups_in_order(*divided, small, large, small) == [[*range(16)]], "up to the last one of the tier"


def test_files_in_order_are_compacted_by_tiers_and_never_around_a_larger_one() -> None:
    tiny, small, large, whole = 5_000, 300 << 10, 700 << 10, 13 * MEGABYTE
    assert groups_in_order(*[small] * 8, *[large] * 8) == [[*range(8)], [*range(8, 16)]]
    assert groups_in_order(*[large] * 7) == []
    assert groups_in_order(*[large] * 4, whole, *[large] * 4) == [[*range(4), *range(5, 9)]], "no later group has it"
    assert groups_in_order(*[large] * 4, tiny, *[large] * 4, tiny) == [[*range(9)]]


def test_files_that_are_scattered_among_larger_ones_are_bounded() -> None:
    small, large = 300 << 10, 900 << 10
    assert groups_in_order(*([small] * 6 + [large]) * 4, *[small] * 6) == []
    assert groups_in_order(*([small] * 6 + [large]) * 5, small) == [[*range(35)]]


def test_file_of_gold_has_no_more_rows_than_a_run_rewrites_at_once(patcher: SlicePatcher) -> None:
    """A run that has a late record for a file writes all of it again, while readers wait."""
    (gold,) = [each for each in compactable_tables([patcher.production.release]) if "gold" in each.table.spec.name][:1]
    policy = replace(AUTOMATIC, rows=gold.most_rows)
    rows = [DataFile(f"f{9 - n}", "d", gold.most_rows * 2 // 5, 100_000) for n in range(9)]
    groups = compaction_groups(rows, policy, attrgetter("partition_text"))
    assert [[each.path for each in group] for group in groups] == [
        ["f9", "f8"],
        ["f7", "f6"],
        ["f5", "f4"],
        ["f3", "f2"],
    ]
    assert (
        compaction_groups(
            [replace(file, rows=gold.most_rows // 2) for file in rows], policy, attrgetter("partition_text")
        )
        == []
    )
    assert [len(group) for group in compaction_groups(rows, AUTOMATIC, attrgetter("partition_text"))] == [9]


def test_table_whose_row_groups_are_copied_has_its_files_in_order(
    patcher: SlicePatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bronze,) = [each for each in compactable_tables([patcher.production.release]) if "bronze" in each.table.spec.name]
    divided = [
        replace(file, low={**file.low, "partition": 0}, high={**file.high, BATCH: 0})
        for file in files_of_sizes(*[300 << 10, 900 << 10] * 8)
    ]
    monkeypatch.setattr(type(bronze.table), "files", lambda _: divided)
    assert bronze.groups(AUTOMATIC) == [divided]
    assert replace(bronze, in_order=False).groups(AUTOMATIC) != [divided]


def test_small_files_are_grouped_by_partition_and_size() -> None:
    size = CompactionPolicy(small=10, target=12, min_files=3)
    small = [file(f"f{n}", 5, 9 - n) for n in range(5)]
    assert [[f.path for f in group] for group in compaction_groups(small, size, attrgetter("partition_text"))] == [
        ["f4", "f3"],
        ["f2", "f1"],
    ]
    few = CompactionPolicy(small=10, target=1000, min_files=3, max_files=2)
    assert [len(group) for group in compaction_groups(small, few, attrgetter("partition_text"))] == [2, 2]
    null_partition = [file(f"n{n}", 1, n, partition) for n, partition in enumerate([None, HIVE_NULL, None, HIVE_NULL])]
    assert [len(group) for group in compaction_groups(null_partition, size, attrgetter("partition_text"))] == [4], (
        "null has two spellings"
    )
    assert compaction_groups(small[:2], size, attrgetter("partition_text")) == [], "fewer than min_files"
    assert compaction_groups([file(f"g{n}", 10, n) for n in range(9)], size, attrgetter("partition_text")) == [], (
        "not small"
    )
    one_each = [file(f"p{n}", 1, n, partition=f"2024-0{n}") for n in range(1, 6)]
    assert compaction_groups(one_each, size, attrgetter("partition_text")) == [], "each in its own partition"
