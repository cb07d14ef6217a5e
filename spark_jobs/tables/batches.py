"""Bronze batches in a table: the commits that brought them, and how many rows its files have of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from include.ground.app_ids import is_refresh
from include.ground.delta_log import Commit, commits_descending, commits_following, latest_version
from include.ground.errors import Terminal
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import BATCH, Table


class CommitMissing(Terminal):
    """The log has no commit of a batch, although the table's transaction version includes it."""

    def __init__(self, table: str, batch: int) -> None:
        super().__init__(
            f"{table}: the log has no commit of batch {batch}, although the table includes it; nothing was written",
            "headrace audit",
        )
        self.table = table
        self.batch = batch


def metadata_of(commit: Commit) -> Mapping[str, Any]:
    """Return a commit's metadata; empty when it has none."""
    return commit.metadata or {}


def commit_of(table: Table, app_id: str, version: int) -> Commit:
    """Return the commit of a transaction. Raises CommitMissing. Reads one file when this process made the commit."""
    known = table.version_of(app_id, version)
    for commit in commits_descending(table.spec.path, known):
        if (commit.app_id, commit.app_version) == (app_id, version):
            return commit
    raise CommitMissing(table.spec.name, version)


def batch_commit(table: Table, batch: int) -> Commit:
    """Return the commit of bronze, or of silver's run, that has a batch. Raises CommitMissing.

    Batches ascend with versions: reads O(log n) files, n = batches after this one.
    """
    path, step = table.spec.path, 1
    high = latest_version(path)
    low = high
    while low > 0 and _batch_at(path, low)[0] > batch:
        high, low, step = low, max(0, low - step), step * 2
    while low <= high:
        middle = (low + high) // 2
        found, commit = _batch_at(path, middle)
        if commit is not None and metadata_of(commit)["batches"][0] <= batch <= found:
            return commit
        if commit is None or found < batch:
            low = middle + 1
        else:
            high = commit.version - 1
    raise CommitMissing(table.spec.name, batch)


def last_run(path: Path, version: int) -> tuple[int, int]:
    """Return first and last batch of the last run committed in versions up to `version`; (-1, -1) for none."""
    _, commit = _batch_at(path, version)
    if commit is None:
        return -1, -1
    first, last = metadata_of(commit)["batches"]
    return first, last


def _batch_at(path: Path, version: int) -> tuple[int, Commit | None]:
    """Return the last batch committed in versions up to `version`, with its commit; -1 for none."""
    for commit in commits_descending(path, version):
        batches = metadata_of(commit).get("batches")
        if batches and "plan" not in metadata_of(commit):
            return batches[1], commit
    return -1, None


def latest_patch(table: Table, own: Commit) -> Commit:
    """Return the last patch, refresh or expiry between a batch's commit `own` and the next batch's; `own` if there is
    none."""
    newest = own
    for commit in commits_following(table.spec.path, own.version):
        is_between = not {"plan", "expired"}.isdisjoint(metadata_of(commit))
        if is_between or is_refresh(commit.app_id):
            newest = commit
        elif commit.app_id is not None:
            break
    return newest


def first_batch(file: DataFile) -> int:
    """Return the lowest batch of a file."""
    return int(str(file.low[BATCH]))


def last_batch(file: DataFile) -> int:
    """Return the highest batch of a file."""
    return int(str(file.high[BATCH]))


def batch_rows(table: Table, files: Iterable[DataFile], first: int, last: int) -> Counter[int]:
    """Return by batch how many rows of batches [first, last] these files of the table have."""
    rows: Counter[int] = Counter()
    for file in files:
        rows.update({b: n for b, n in rows_of_file(table, file).items() if first <= b <= last})
    return rows


def rows_of_file(table: Table, file: DataFile) -> Mapping[int, int]:
    """Return the rows of one file by batch."""
    if file.lies_within(BATCH, first_batch(file), first_batch(file)):
        return {first_batch(file): file.rows}
    return _column_counts(table.spec.path / file.path)


@lru_cache(maxsize=256)
def _column_counts(path: Path) -> Mapping[int, int]:
    column = pq.read_table(path, columns=[BATCH], partitioning=None)[BATCH]
    return {item["values"]: item["counts"] for item in pc.value_counts(column).to_pylist()}


def count_rows(table: Table, first: int, last: int) -> int:
    """Return how many rows of batches [first, last] a table has; reads only files that have other batches too."""
    files = table.batch_files(first, last)
    whole = [file for file in files if file.lies_within(BATCH, first, last)]
    mixed = [file for file in files if not file.lies_within(BATCH, first, last)]
    return sum(file.rows for file in whole) + batch_rows(table, mixed, first, last).total()
