"""Maintenance of a dataset's tables by their owner: small files put together, old ones removed.

Reads / Writes: bronze, and silver, rejected and gold of each live release.
Guarantee: the same rows. What readers see stays readable, however old; any other version as long as the retention of
the tables says. At most `seconds` at a time: the stream waits meanwhile.
After a crash: files that were not committed are removed once they are as old as the retention; the next time does the
rest.
Does not: remove anything from a table's log (the ledger is made of it), look at a release that is no longer kept up, or
make the new files visible by itself: the next publication does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.places import warehouse
from include.reading.publication import read_publication
from include.settings import Settings
from spark_jobs.data_files import HIVE_NULL, DataFile
from spark_jobs.failpoints import Step, pass_step
from spark_jobs.layers.release import Release
from spark_jobs.refine import refined_batch, unfinished_run
from spark_jobs.tables import Table

MEGABYTE = 1 << 20
# What PROPERTIES of the tables promises to whoever reads an older version.
RETENTION = timedelta(days=7)


@dataclass(frozen=True)
class Size:
    """Files below `small` bytes are put together to `whole` bytes, when a partition has `fewest` of them or more."""

    small: int = 32 * MEGABYTE
    whole: int = 128 * MEGABYTE
    fewest: int = 8


SIZE = Size()


def maintain(
    settings: Settings, spark: SparkSession, releases: Sequence[Release], seconds: float, size: Size = SIZE
) -> dict[str, Any]:
    """Put small files together and remove old ones; return by table: files before and after, files removed, left.

    `left`: groups of small files for which there was no time.
    """
    end, seen = time.monotonic() + seconds, read_publication(settings, releases[0].dataset.name)
    root = warehouse(settings)
    named = {root / table.path: [table.version] for table in seen.tables.values()}
    done: dict[str, Any] = {}
    for table, last in tables_of(releases):
        path = table.spec.path
        done[str(path.relative_to(root))] = _maintained(spark, table, last, named.get(path, ()), end, size)
    return done


def _maintained(
    spark: SparkSession, table: Table, last: int | None, named: Sequence[int], end: float, size: Size
) -> dict[str, int]:
    before = table.files()
    whole = before if last is None else [file for file in before if file.lies_within("_batch_id", 0, last)]
    groups = list(small_groups(whole, size))
    while groups and time.monotonic() < end:
        put_together(spark, table, groups.pop(0))
    removed = table.vacuum(named, RETENTION)
    return {"files": len(before), "now": len(table.files()), "removed": removed, "left": len(groups)}


def tables_of(releases: Sequence[Release]) -> Iterator[tuple[Table, int | None]]:
    """Yield bronze with the last batch to be looked at, and the tables of each release that has no run half done.

    Who counts or reads what is not refined yet goes by whole files, and so does a run that is gone on with.
    """
    yield releases[0].refinery.bronze, min(refined_batch(release) for release in releases)
    for release in releases:
        if unfinished_run(release) is None:
            for table in (release.refinery.silver, release.refinery.rejected, *(each.table for each in release.gold)):
                yield table, None


def small_groups(files: Sequence[DataFile], size: Size) -> Iterator[list[DataFile]]:
    """Yield the files of a partition that are to become one, in the order in which they were written."""
    small = sorted((file for file in files if file.size < size.small), key=_place)
    for _, those in groupby(small, key=lambda file: file.partition):
        found = list(those)
        if len(found) >= size.fewest:
            yield from _filled(found, size.whole)


def _place(file: DataFile) -> tuple[str, int, str]:
    batch = file.low.get("_batch_id", 0)
    return file.partition, batch if isinstance(batch, int) else 0, file.path


def _filled(files: Sequence[DataFile], whole: int) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    for file in files:
        if group and sum(each.size for each in group) + file.size > whole:
            yield group
            group = []
        group.append(file)
    if len(group) > 1:
        yield group


def put_together(spark: SparkSession, table: Table, group: Sequence[DataFile]) -> None:
    """Write the rows of these files of one partition into one file, and let it stand for them."""
    value = None if group[0].partition == HIVE_NULL else group[0].partition
    partition = F.lit(value).cast("string").alias(table.spec.partition)
    rows = table.read(spark, group).coalesce(1).select("*", partition)
    added = table.write(rows, f"maintained-{table.version}")
    pass_step(Step.PUT_TOGETHER)
    table.rearrange(added, group)
