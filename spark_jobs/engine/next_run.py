"""Which run a release needs next: an unfinished one with the same bounds, else the next bronze batches.

A release's progress is the transaction version in its own tables; there is no second checkpoint.
"""

from __future__ import annotations

from collections import Counter

from spark_jobs.layers.bronze_layer import batch_files
from spark_jobs.layers.release_tables import Release
from spark_jobs.storage.batch_rows import batch_rows, first_batch
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.table_commits import commit_of, metadata_of


def refined_batch(release: Release) -> int:
    """Return the last batch that all of the release's tables have, -1 for none."""
    writer = release.writer
    versions = [
        writer.silver.committed(release.writer.app_id("silver")),
        writer.rejected.committed(release.writer.app_id("rejected")),
        *[target.table.committed(target.app_id) for target in release.gold],
    ]
    return min(versions)


def next_run(release: Release, last: int, most_rows: int) -> tuple[int, int] | None:
    """Return the bounds of the next run up to bronze batch `last`; None when the release has that batch.

    A run takes as many batches as have `most_rows` rows together, at least one.
    """
    unfinished = unfinished_run(release)
    if unfinished is not None:
        return unfinished
    first = refined_batch(release) + 1
    if last < first:
        return None
    rows = _next_rows(release.writer.bronze, first, last, most_rows)
    total, bound = rows.get(first, 0), first
    inheritance = release.writer.inheritance
    if inheritance is not None and first < inheritance.until:
        last = min(last, inheritance.until - 1)
    while bound < last and total + rows.get(bound + 1, 0) <= most_rows:
        bound += 1
        total += rows.get(bound, 0)
    return first, bound


def _next_rows(bronze: Table, first: int, last: int, most_rows: int) -> Counter[int]:
    """Return the rows of each batch from `first` on, up to `last` or until the batches exceed `most_rows` together."""
    rows: Counter[int] = Counter()
    unsettled: dict[int, int] = {}
    settled = 0
    for file in sorted(batch_files(bronze, first, last), key=first_batch):
        # No later file has rows of a batch before this file's first.
        for batch in [batch for batch in unsettled if batch < first_batch(file)]:
            settled += unsettled.pop(batch)
        if settled > most_rows:
            break
        found = batch_rows(bronze, [file], first, last)
        rows.update(found)
        for batch, count in found.items():
            unsettled[batch] = unsettled.get(batch, 0) + count
    return rows


def last_epoch(release: Release) -> int:
    """Return the epoch of the release's last commit to silver, 0 for none."""
    silver, app_id = release.writer.silver, release.writer.app_id("silver")
    batch = silver.committed(app_id)
    return int(metadata_of(commit_of(silver, app_id, batch))["epoch"]) if batch >= 0 else 0


def unfinished_run(release: Release) -> tuple[int, int] | None:
    """Return the bounds of the run that silver has committed and another table lacks; None without one."""
    silver, app_id = release.writer.silver, release.writer.app_id("silver")
    last = silver.committed(app_id)
    if last == refined_batch(release):
        return None
    first, last = metadata_of(commit_of(silver, app_id, last))["batches"]
    return first, last
