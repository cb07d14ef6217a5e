"""Compacts small files of gold and rejected, and removes obsolete files of all tables.

Reads / Writes: bronze, and silver, rejected and gold of each active release.
Guarantee: the rows stay the same. Published versions, and those that a rollback would publish, stay readable; other
versions for the retention of the tables. The stream waits meanwhile: no new group is begun after `seconds`.
After a crash: uncommitted files are removed when they are older than the retention; the next call does the rest.
Does not: compact bronze and silver (adr-0003), remove entries of a table's log (the ledger is built from them), touch
retired releases, or publish: the next publication makes compacted files visible.
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
from spark_jobs.engine.next_run import refined_batch, unfinished_run
from spark_jobs.engine.release_publication import publication_of
from spark_jobs.layers.release_tables import Release
from spark_jobs.storage.data_files import HIVE_NULL, DataFile
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.failpoints import Step, pass_step

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class CompactionSize:
    """Files below `small` bytes are compacted to files of about `target` bytes.

    Only in partitions with at least `min_files` of them, and at most `max_files` per group, which keeps a step short.
    """

    small: int = 32 * MEGABYTE
    target: int = 128 * MEGABYTE
    min_files: int = 8
    max_files: int = 500


SIZE = CompactionSize()


def compact_tables(
    settings: Settings,
    spark: SparkSession,
    releases: Sequence[Release],
    seconds: float,
    size: CompactionSize = SIZE,
    is_owner: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Compact small files and remove obsolete ones; return by table `files` before, `now`, `removed` and `left`.

    `releases`: the published one, then its shadows. `left`: groups that were not compacted within `seconds`. Stops when
    this process is not the owner any more.
    """
    end, kept, root = time.monotonic() + seconds, protected_versions(settings, releases), warehouse(settings)
    done: dict[str, Any] = {}
    for table, compactable in tables_to_compact(releases):
        path, before = table.spec.path, table.files()
        groups = list(small_groups(before, size)) if compactable else []
        while groups and time.monotonic() < end and is_owner():
            compact_group(spark, table, groups.pop(0))
        removed = table.vacuum(sorted(kept.get(path, ()))) if is_owner() else 0
        facts = {"files": len(before), "now": len(table.files()), "removed": removed, "left": len(groups)}
        done[str(path.relative_to(root))] = facts
    return done


def protected_versions(settings: Settings, releases: Sequence[Release]) -> Mapping[Path, set[int]]:
    """Return by table the versions that are published, and those that publishing another of the releases would show."""
    root, kept = warehouse(settings), dict[Path, set[int]]()
    named = [read_publication(settings, releases[0].dataset.name)]
    named += [publication_of(settings, each, last) for each in releases if (last := refined_batch(each)) >= 0]
    for table in [table for publication in named for table in publication.tables.values()]:
        kept.setdefault(root / table.path, set()).add(table.version)
    return kept


def tables_to_compact(releases: Sequence[Release]) -> Iterator[tuple[Table, bool]]:
    """Yield each table once, and whether its files may be compacted: not while a run is unfinished."""
    for release in releases:
        whole = unfinished_run(release) is None
        yield release.writer.rejected, whole
        for target in release.gold:
            yield target.table, whole
        yield release.writer.silver, False
    yield releases[0].writer.bronze, False


def small_groups(files: Sequence[DataFile], size: CompactionSize) -> Iterator[list[DataFile]]:
    """Yield groups of files, each of one partition, that become one file."""
    small = sorted((file for file in files if file.size < size.small), key=lambda file: (_partition(file), file.path))
    for _, found in groupby(small, key=_partition):
        files = list(found)
        if len(files) >= size.min_files:
            yield from _filled(files, size)


def _partition(file: DataFile) -> str:
    """Return the partition's text; the log has none for null."""
    return file.partition or HIVE_NULL


def _filled(files: Sequence[DataFile], size: CompactionSize) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    for file in files:
        if group and (sum(each.size for each in group) + file.size > size.target or len(group) == size.max_files):
            yield group
            group = []
        group.append(file)
    if len(group) > 1:
        yield group


def compact_group(spark: SparkSession, table: Table, group: Sequence[DataFile]) -> None:
    """Compact files of one partition. `dataChange=false`: change-feed readers see no rows."""
    value = None if _partition(group[0]) == HIVE_NULL else group[0].partition
    partition = F.lit(value).cast("string").alias(table.spec.partition)
    rows = table.read(spark, group).coalesce(1).select("*", partition)
    added = table.write(rows, f"maintained-{table.version}")
    pass_step(Step.COMPACTION_WRITTEN)
    table.compact(added, group)
