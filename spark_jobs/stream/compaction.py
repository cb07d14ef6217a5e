"""Compacts small files of every layer: which are compacted together, and how (adr-0003).

Sizes are tiers of a factor of eight, as in a size-tiered log-structured merge tree: a byte is rewritten once per tier,
and a group key has fewer than `min_files` files per tier after compaction; where files must stay in order, between two
larger ones. Rows stay the same, in the same order where it matters; a commit of a compaction has no transaction.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from uuid import uuid4

from include.ground.durable_files import is_whole, named_checksum
from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.ground.stored_path import remove_tree
from spark_jobs.backends.backend import Backend, FilesDamaged
from spark_jobs.backends.release import Release
from spark_jobs.layers.gold_files import MOST_COMPACTED, GoldTable
from spark_jobs.stream.expiry import RetainedTables, delete_obsolete_files, files_to_delete, retained_tables
from spark_jobs.tables.data_files import DataFile, are_of_one_day, day_of
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.log_lines import log_line

MEGABYTE = 1 << 20
SMALLEST = 64 << 10
"""Upper size of the first tier."""
FACTOR = 8
SCATTERED = 4
"""Files of a stretch, in multiples of `min_files`, that become one although few of them are of its largest tier."""


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
    # Files of gold have no batch, and keep the order that they are given in.
    for file in sorted(files, key=lambda file: int(str(file.low.get("_batch_id", 0)))):
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


def kafka_partition_of(file: DataFile) -> Hashable:
    """Return date and Kafka partition of a bronze file: its offsets stay one range."""
    return file.partition_text, file.low.get("partition")


def event_day_of(column: str) -> GroupKey:
    """Return a function that keys silver files by month, and those of a single day of `column` also by that day.

    Files of the first tier only by month: a few late rows of each day must not become a file each. Larger files of one
    day must not be compacted with those of other days, since the group would be divided into the same files again.
    """

    def group_key(file: DataFile) -> Hashable:
        is_dated = file.size >= SMALLEST and are_of_one_day([file], column)
        return file.partition_text, day_of(file.low[column]) if is_dated else None

    return group_key


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


COMPACTION_SECONDS = 20.0
"""The longest delay of a publication by a requested compaction, apart from one group of files."""
LEAST_SECONDS = 1.0
SILVER_ORDER = ("_batch_id", "_partition", "_offset")


@dataclass(frozen=True)
class CompactedTable:
    """A table and how it is compacted.

    `group_key`: files with one key may become one file. `group_keys`: the keys by path, in the order in which files
    become one; other files are not compacted. `order`: columns that rows are sorted by when they are written again.
    `day`: column whose days get a file each, when there are enough rows. `before`: only files of batches before this
    one; None for all. `in_order`: files that follow one another by batch become one. `most_rows`: of a compacted file.
    """

    table: Table
    backend: Backend
    group_key: GroupKey = attrgetter("partition_text")
    order: tuple[str, ...] = ()
    day: str = ""
    before: int | None = None
    group_keys: Callable[[], Mapping[str, Hashable]] | None = None
    in_order: bool = False
    most_rows: int = sys.maxsize

    def groups(self, policy: CompactionPolicy) -> list[list[DataFile]]:
        """Return the groups of files to compact now, smallest first."""
        files, policy = self.table.files(), replace(policy, rows=min(policy.rows, self.most_rows))
        if self.group_keys is not None:
            found, by_path = self.group_keys(), {file.path: file for file in files}
            return compaction_groups([by_path[path] for path in found], policy, lambda file: found[file.path])
        if self.before is not None:
            files = [file for file in files if file.last_batch < self.before]
        return compaction_groups(files, policy, self.group_key, in_order=policy.tiered and self.in_order)


def compact_tables(
    settings: Settings,
    releases: Sequence[Release],
    seconds: float,
    policy: CompactionPolicy = ON_REQUEST,
    is_owner: Callable[[], bool] = lambda: True,
) -> dict[str, dict[str, int]]:
    """Compact small files and remove obsolete ones; return by table `files` before, `now`, `removed` and `left`.

    `releases`: the published one, then its shadows. `left`: groups that were not compacted within `seconds`. Stops when
    this process is not the owner any more.
    """
    compactable, retained = compactable_tables(releases), retained_tables(settings, releases)
    return compact_and_delete(warehouse(settings), compactable, retained, seconds, policy, is_owner)


def compact_and_delete(
    root: Path,
    tables: Iterable[CompactedTable],
    retained: RetainedTables,
    seconds: float,
    policy: CompactionPolicy,
    is_owner: Callable[[], bool] = lambda: True,
) -> dict[str, dict[str, int]]:
    """Compact `tables` and remove obsolete files of the `retained` ones; return what `compact_tables` does."""
    end, compactable = time.monotonic() + seconds, {each.table.spec.path: each for each in tables}
    done: dict[str, dict[str, int]] = {}
    for table in retained.tables:
        path, before = table.spec.path, len(table.files())
        left = _compact_until(end, compactable[path], policy, is_owner) if path in compactable else 0
        obsolete = files_to_delete(retained, table, sweep=True) if is_owner() else []
        # However long compaction took, deletion has LEAST_SECONDS.
        removed = delete_obsolete_files(table, obsolete, max(end, time.monotonic() + LEAST_SECONDS))
        facts = {"files": before, "now": table.file_count, "removed": removed, "left": left}
        done[str(path.relative_to(root))] = facts
    return done


def _compact_until(
    end: float, compacted: CompactedTable, policy: CompactionPolicy, is_owner: Callable[[], bool]
) -> int:
    """Compact the groups of a table until `end` (monotonic); return how many are left, those with damage included."""
    groups, damaged = compacted.groups(policy), 0
    while groups and time.monotonic() < end and is_owner():
        try:
            compact_group(compacted, groups.pop(0))
        except FilesDamaged as error:
            log_line(str(error))
            damaged += 1
    return len(groups) + damaged


def compactable_tables(releases: Sequence[Release]) -> Iterator[CompactedTable]:
    """Yield the tables whose files may be compacted: not those of a release while one of its runs is unfinished.

    The last batch of bronze and silver stays as it is: a restart may need its files.
    """
    for release in releases:
        if release.unfinished_run is not None:
            continue
        writer, batch, time_column = release.writer, release.refined_batch, release.dataset.pipeline.event_time
        backend = release.backend
        yield CompactedTable(writer.rejected, backend, order=SILVER_ORDER)
        by_day = event_day_of(time_column)
        yield CompactedTable(writer.silver, backend, by_day, SILVER_ORDER, time_column, batch, in_order=True)
        for target in release.gold:
            yield compacted_gold(target, target.gold.row_columns, batch, backend)
    batch, backend = releases[0].refined_batch, releases[0].backend
    bronze, order = releases[0].writer.bronze, ("_batch_id", "partition", "offset")
    yield CompactedTable(bronze, backend, kafka_partition_of, order, before=batch, in_order=True)


def compacted_gold(target: GoldTable, order: tuple[str, ...], batch: int, backend: Backend) -> CompactedTable:
    """Return how a table of gold is compacted at `batch`."""
    neighbours = partial(target.old_neighbours, batch)
    return CompactedTable(target.table, backend, order=order, group_keys=neighbours, most_rows=MOST_COMPACTED)


def compact_group(compacted: CompactedTable, group: Sequence[DataFile]) -> None:
    """Compact files of one group."""
    commit_group(compacted.table, write_group(compacted, group), group)


def write_group(compacted: CompactedTable, group: Sequence[DataFile], *, aside: bool = False) -> list[DataFile]:
    """Write the rows of a group into new files; return them, invisible to readers until `commit_group`.

    `aside`: in a thread that no run waits for. Raises FilesDamaged.
    """
    table = compacted.table
    # The new file's checksum would hide the damage.
    _refuse_damaged(table, [file for file in group if named_checksum(file.path) is not None])
    attempt = table.attempt_folder(f"compacted-{table.version}-{uuid4().hex[:6]}")
    try:
        return compacted.backend.rewrite(table, group, attempt, compacted.order, compacted.day, aside=aside)
    except BaseException as error:
        # A group that fails is tried again later: what it wrote would fill the disk.
        remove_tree(attempt)
        if isinstance(error, Exception):
            _refuse_damaged(table, group)
        raise


def _refuse_damaged(table: Table, files: Sequence[DataFile]) -> None:
    """Raise FilesDamaged unless each file is whole."""
    if damaged := [path for file in files if not is_whole(path := table.spec.path / file.path)]:
        raise FilesDamaged(table.spec.name, damaged)


def commit_group(table: Table, added: Sequence[DataFile], group: Sequence[DataFile]) -> None:
    """Replace the files of a group. `dataChange=false`: change-feed readers see no rows."""
    pass_step(Step.COMPACTION_WRITTEN)
    table.compact(added, group)


def discard_files(table: Table, files: Sequence[DataFile]) -> None:
    """Delete files that were written and never committed."""
    for file in files:
        (table.spec.path / file.path).unlink(missing_ok=True)
