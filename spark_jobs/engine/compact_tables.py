"""Maintenance of a dataset's tables by their owner: small files of gold and rejected put together, old ones removed.

Reads / Writes: bronze, and silver, rejected and gold of each live release.
Guarantee: the same rows. What readers see, or would see after a rollback, stays readable, however old; any other
version as long as the retention of the tables says. The stream waits meanwhile, for new groups at most `seconds`.
After a crash: files that were not committed are removed once they are as old as the retention; the next time does the
rest.
Does not: put files of bronze and silver together (adr-0004); remove anything from a table's log (the ledger is made of
it); look at a release that is no longer kept up; make the new files visible by itself: the next publication does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.paths import warehouse
from include.reading.publication import read_publication
from include.settings import Settings
from spark_jobs.engine.refine import publication_of, refined_batch, unfinished_run
from spark_jobs.layers.release_tables import Release
from spark_jobs.storage.data_files import HIVE_NULL, DataFile
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.failpoints import Step, pass_step

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class CompactionSize:
    """Files below `small` bytes are put together to `whole` bytes, when a partition has `fewest` of them or more.

    `most` at a time, so that one step is short.
    """

    small: int = 32 * MEGABYTE
    whole: int = 128 * MEGABYTE
    fewest: int = 8
    most: int = 500


SIZE = CompactionSize()


def compact_tables(
    settings: Settings,
    spark: SparkSession,
    releases: Sequence[Release],
    seconds: float,
    size: CompactionSize = SIZE,
    is_owner: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Put small files together and remove old ones; return by table: files before and after, files removed, left.

    `releases`: the one that readers see, then those kept up beside it. `left`: groups of small files for which there
    was no time. Nothing more is begun once this process is not the owner.
    """
    end, kept, root = time.monotonic() + seconds, protected_versions(settings, releases), warehouse(settings)
    done: dict[str, Any] = {}
    for table, together in tables_to_compact(releases):
        path, before = table.spec.path, table.files()
        groups = list(small_groups(before, size)) if together else []
        while groups and time.monotonic() < end and is_owner():
            compact_group(spark, table, groups.pop(0))
        removed = table.vacuum(sorted(kept.get(path, ()))) if is_owner() else 0
        facts = {"files": len(before), "now": len(table.files()), "removed": removed, "left": len(groups)}
        done[str(path.relative_to(root))] = facts
    return done


def protected_versions(settings: Settings, releases: Sequence[Release]) -> Mapping[Path, set[int]]:
    """Return by table the versions that readers see, or would see if another release of these were published."""
    root, kept = warehouse(settings), dict[Path, set[int]]()
    named = [read_publication(settings, releases[0].dataset.name)]
    named += [publication_of(settings, each, last) for each in releases if (last := refined_batch(each)) >= 0]
    for table in [table for publication in named for table in publication.tables.values()]:
        kept.setdefault(root / table.path, set()).add(table.version)
    return kept


def tables_to_compact(releases: Sequence[Release]) -> Iterator[tuple[Table, bool]]:
    """Yield each table once, and whether its small files may be put together: not while a run is half done."""
    for release in releases:
        whole = unfinished_run(release) is None
        yield release.writer.rejected, whole
        for target in release.gold:
            yield target.table, whole
        yield release.writer.silver, False
    yield releases[0].writer.bronze, False


def small_groups(files: Sequence[DataFile], size: CompactionSize) -> Iterator[list[DataFile]]:
    """Yield the files of a partition that are to become one."""
    small = sorted((file for file in files if file.size < size.small), key=lambda file: (_partition(file), file.path))
    for _, those in groupby(small, key=_partition):
        found = list(those)
        if len(found) >= size.fewest:
            yield from _filled(found, size)


def _partition(file: DataFile) -> str:
    """The log has no text for the partition of null, a folder has."""
    return file.partition or HIVE_NULL


def _filled(files: Sequence[DataFile], size: CompactionSize) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    for file in files:
        if group and (sum(each.size for each in group) + file.size > size.whole or len(group) == size.most):
            yield group
            group = []
        group.append(file)
    if len(group) > 1:
        yield group


def compact_group(spark: SparkSession, table: Table, group: Sequence[DataFile]) -> None:
    """Write the rows of these files of one partition into one file, and let it stand for them."""
    value = None if _partition(group[0]) == HIVE_NULL else group[0].partition
    partition = F.lit(value).cast("string").alias(table.spec.partition)
    rows = table.read(spark, group).coalesce(1).select("*", partition)
    added = table.write(rows, f"maintained-{table.version}")
    pass_step(Step.PUT_TOGETHER)
    table.compact(added, group)
