"""Which small files are compacted together: files of one group key in a table, of similar size.

Sizes are tiers of a factor of eight, as in a size-tiered log-structured merge tree: a byte is rewritten once per tier,
and a group key has fewer than `min_files` files per tier after compaction; where files must stay in order, between two
larger ones.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from itertools import groupby

from spark_jobs.tables.data_files import HIVE_NULL, DataFile

MEGABYTE = 1 << 20
SMALLEST = 64 << 10
"""Upper size of the first tier."""
FACTOR = 8
SCATTERED = 4
"""Files of a stretch, in multiples of `min_files`, that become one although few of them are of its largest tier."""
SPLIT_BY_DAY = 4 * MEGABYTE
"""Smaller groups become a file of several days."""


@dataclass(frozen=True)
class CompactionPolicy:
    """Files below `small` bytes are compacted to files of about `target` bytes, and of at most `rows` rows.

    A file with half of `rows` is not small.

    Only when a group key has at least `min_files` of them, and at most `max_files` at once, which keeps a step short.
    With `tiered`, only files of one size tier are compacted together: many small steps instead of few large ones.
    """

    small: int = 32 * MEGABYTE
    target: int = 128 * MEGABYTE
    min_files: int = 8
    max_files: int = 500
    tiered: bool = False
    rows: int = sys.maxsize

    def is_small(self, file: DataFile) -> bool:
        """Whether a file is compacted."""
        return file.size < self.small and file.rows < self.rows / 2


ON_REQUEST = CompactionPolicy()
# Eight files of 4 MB and more become one of at least 12 MB, although zstd makes them smaller; with more they would be
# rewritten a second and a third time, which took an eighth of two cores at 92,600 events/s.
AUTOMATIC = CompactionPolicy(small=12 * MEGABYTE, target=64 * MEGABYTE, tiered=True)

GroupKey = Callable[[DataFile], Hashable]


def compaction_groups(
    files: Sequence[DataFile], policy: CompactionPolicy, group_key: GroupKey, *, in_order: bool = False
) -> list[list[DataFile]]:
    """Return groups of files of one key, smallest first; each group becomes one file, of silver one for each day.

    With `in_order`, no other small file lies between those of a group by batch, so that their row groups can be copied.
    """
    keyed: dict[Hashable, list[DataFile]] = defaultdict(list)
    for file in sorted(files, key=_first_batch):
        keyed[group_key(file)].append(file)
    alike = _following_one_another if in_order else _of_one_tier
    crowded = [group for each in keyed.values() for group in alike(each, policy)]
    groups = [group for each in crowded for group in _filled(each, policy)]
    return sorted(groups, key=lambda group: sum(file.size for file in group))


def _of_one_tier(files: Sequence[DataFile], policy: CompactionPolicy) -> Iterator[list[DataFile]]:
    found: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        if policy.is_small(file):
            found[tier(file.size) if policy.tiered else 0].append(file)
    return (each for each in found.values() if len(each) >= policy.min_files)


def _following_one_another(files: Sequence[DataFile], policy: CompactionPolicy) -> Iterator[list[DataFile]]:
    """Yield, tier by tier, stretches that no larger small file divides, with smaller ones up to the last of the tier.

    Smaller files that larger ones divide would otherwise become one file around these, and everything after it would
    be out of order. Files that are not small divide nothing: no later group has them.
    """
    small, taken = [file for file in files if policy.is_small(file)], set[str]()
    for number in sorted({tier(file.size) for file in small}):
        for is_part, found in groupby(small, partial(_is_within, most=number, taken=taken)):
            stretch = list(found) if is_part else []
            own = [place for place, file in enumerate(stretch) if tier(file.size) == number]
            group = stretch[: own[-1] + 1] if own else []
            if len(own) >= policy.min_files or len(group) >= SCATTERED * policy.min_files:
                taken |= {file.path for file in group}
                yield group


def _is_within(file: DataFile, most: int, taken: Collection[str]) -> bool:
    return tier(file.size) <= most and file.path not in taken


def tier(size: int) -> int:
    """Return the tier of a file: 0 below 64 KB, 1 below 512 KB, 2 below 4 MB, 3 below 32 MB."""
    number, bound = 0, SMALLEST
    while size >= bound:
        number, bound = number + 1, bound * FACTOR
    return number


def partition_of(file: DataFile) -> str:
    """Return the partition's text; the log has none for null."""
    return file.partition or HIVE_NULL


def kafka_partition_of(file: DataFile) -> Hashable:
    """Return date and Kafka partition of a bronze file: its offsets stay one range."""
    return partition_of(file), file.low.get("partition")


def event_day_of(column: str) -> GroupKey:
    """Return a function that keys silver files by month, and those of a single day of `column` also by that day.

    Files of the first tier only by month: a few late rows of each day must not become a file each. Larger files of one
    day must not be compacted with those of other days, since the group would be divided into the same files again.
    """

    def group_key(file: DataFile) -> Hashable:
        is_dated = file.size >= SMALLEST and are_of_one_day([file], column)
        return partition_of(file), _day(file.low[column]) if is_dated else None

    return group_key


def are_of_one_day(files: Sequence[DataFile], column: str) -> bool:
    """Return whether all rows of the files have one day of `column`, by their bounds."""
    days = {_day(bound) for file in files for bound in (file.low.get(column), file.high.get(column))}
    return len(days) == 1 and None not in days


def _day(bound: object) -> date | None:
    if isinstance(bound, datetime):
        return bound.date()
    return bound if isinstance(bound, date) else None


def _first_batch(file: DataFile) -> int:
    """Return the first batch of a file of bronze or silver; files of gold keep the order that they are given in."""
    return int(str(file.low.get("_batch_id", 0)))


def _filled(files: Sequence[DataFile], policy: CompactionPolicy) -> Iterator[list[DataFile]]:
    group, size, rows = list[DataFile](), 0, 0
    for file in files:
        is_full = size + file.size > policy.target or rows + file.rows > policy.rows or len(group) == policy.max_files
        if group and is_full:
            yield group
            group, size, rows = [], 0, 0
        group.append(file)
        size, rows = size + file.size, rows + file.rows
    if len(group) > 1:
        yield group
