"""Roll tables back to the last batch that all of them have, when a power cut took commits of some.

Reads: the ends of the logs of bronze and of the tables of each active release. Writes: moves log files out of the
tables into the `removed/` folder of the state.
Guarantee: afterwards the tables are what they were after an earlier batch; later batches are refined again.
After a crash: run it again.
Does not: move the publication (`republish`), or change a data file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

from include.declare.dataset import released_dataset
from include.ground.delta_log import LOG, LogDamaged, commits_descending, read_commit
from include.ground.errors import Terminal
from include.ground.paths import bronze_path, identities_path, warehouse
from include.ground.settings import Settings
from include.read.publication import find_publication
from spark_jobs.layers.release import are_one_run_apart, release_paths
from spark_jobs.stream.active_releases import recorded_releases
from spark_jobs.stream.publication_recovery import last_active_release
from spark_jobs.tables.batches import last_run
from spark_jobs.tables.commit_log import CHECKED, LogTail, log_tail, move_files, obsolete_files
from spark_jobs.tables.identity_index import index_file


class PatchBlocksRollback(Terminal):
    """The rollback would remove the patch of `plan`, which other tables may have."""

    def __init__(self, table: str, plan: str) -> None:
        super().__init__(
            f"{table}: the commits to remove include the patch of plan {plan}; nothing was changed",
            "restore the tables from a backup, or build the release again: headrace release plan",
        )
        self.table, self.plan = table, plan


@dataclass(frozen=True)
class TableEnd:
    """The end of a table's log, `run` the batches of the last run in its whole part, and the version to `keep`."""

    tail: LogTail
    run: tuple[int, int]
    keep: int


@dataclass(frozen=True)
class Rollback:
    """The log files to remove, by table (path below the warehouse), and the version that `bronze` goes back to.

    `span`: between the oldest readable commit to remove and the newest commit of all. `indexes`: folders of the
    releases' identity indexes, which are derived again; a power cut may have damaged them.
    """

    files: dict[str, list[Path]]
    bronze: int
    indexes: tuple[Path, ...]
    bronze_table: Path
    span: timedelta

    def sentences(self, folder: Path) -> list[str]:
        """Return what is removed, one line for each table, and where it goes."""
        lines = ["found: commits of some tables are lost or cut short, as after a power cut"]
        lines += [f"remedy: remove from the log of {table}: {_names(files)}" for table, files in self.files.items()]
        return [*lines, f"the removed files go to {folder}; their batches are read and refined again"]

    def execute(self, folder: Path) -> None:
        """Move the files into `folder`."""
        for index in self.indexes:
            index_file(index).remove()
        root = self.bronze_table.parents[1]
        _link_records(self.bronze_table, self.files.get(str(self.bronze_table.relative_to(root)), []), folder)
        for table, files in self.files.items():
            move_files(files, folder / table)


def _link_records(bronze: Path, removed: list[Path], folder: Path) -> None:
    """Keep the records of removed commits: Kafka may have lost them."""
    for version in (int(file.stem) for file in removed if file.suffix == ".json"):
        with suppress(LogDamaged):
            for file in read_commit(bronze, version).added:
                kept = folder / "records" / file.path
                kept.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError, FileExistsError):
                    os.link(bronze / unquote(file.path), kept)


def _names(files: list[Path]) -> str:
    names = sorted(path.name for path in files)
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]} ({len(names)} files)"


def planned_rollback(
    settings: Settings, dataset: str, bronze_version: int | None = None, checked: int = CHECKED
) -> Rollback | None:
    """Return the rollback that the dataset's tables need, None when they need none. Raises PatchBlocksRollback.

    `bronze_version`: bronze goes back to it or an earlier one. `checked`: commits that are checked in each table.
    """
    path = bronze_path(settings, dataset)
    if not (path / LOG).is_dir():
        return None
    bronze = table_end(path, checked)
    if bronze_version is not None and bronze_version < bronze.keep:
        _refuse_patches(path, bronze_version, bronze.keep)
        bronze = replace(bronze, run=last_run(path, bronze_version), keep=bronze_version)
    ends, releases = [bronze], release_names(settings, dataset)
    for release in releases:
        own = [
            table_end(path, checked) for path in release_paths(settings, released_dataset(settings, dataset, release))
        ]
        ends += _rolled_back(own, bronze.run[1])
    root = warehouse(settings)
    files = {str(end.tail.table.relative_to(root)): obsolete_files(end.tail, end.keep) for end in ends}
    found = {table: removed for table, removed in files.items() if removed}
    indexes = tuple(identities_path(settings, dataset, release) for release in releases)
    since = min((_removed_since(end) for end in ends if end.keep < end.tail.whole), default=None)
    until = max(_timestamp(end.tail.table, end.tail.whole) for end in ends)
    return Rollback(found, bronze.keep, indexes, path, until - since if since else timedelta()) if found else None


def _removed_since(end: TableEnd) -> datetime:
    return _timestamp(end.tail.table, end.keep + 1)


def _timestamp(table: Path, version: int) -> datetime:
    milliseconds = read_commit(table, version).timestamp_ms if version >= 0 else 0
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def release_names(settings: Settings, dataset: str) -> list[str]:
    """Return the names of the published release and of the active ones."""
    publication = find_publication(settings, dataset)
    published = publication.release if publication else last_active_release(settings, dataset)
    return list(dict.fromkeys([*filter(None, [published]), *recorded_releases(settings, dataset)]))


def _refuse_patches(path: Path, keep: int, last: int) -> None:
    for version in range(last, keep, -1):
        metadata = read_commit(path, version).metadata or {}
        if "plan" in metadata:
            raise PatchBlocksRollback(str(path), metadata["plan"])


def table_end(path: Path, checked: int = CHECKED) -> TableEnd:
    """Return the end of a table's log; only what follows its whole part is to be removed."""
    if not (path / LOG).is_dir():
        return TableEnd(LogTail(path, -1, -1, ()), (-1, -1), -1)
    tail = log_tail(path, checked)
    return TableEnd(tail, last_run(path, tail.whole), tail.whole)


def _rolled_back(ends: Sequence[TableEnd], bronze: int) -> list[TableEnd]:
    """Return a release's ends, rolled back where they are more than one run apart, or ahead of `bronze`'s batch."""
    silver, batches = ends[0], [end.run[1] for end in ends]
    if silver.run[1] <= bronze and are_one_run_apart(silver.run, batches):
        return list(ends)
    last = _run_end(silver, min(bronze, *batches))
    return [replace(end, keep=_version_of(end, last)) for end in ends if end.tail.last >= 0]


def _run_end(silver: TableEnd, limit: int) -> int:
    """Return the last batch of the last run that ends at or before batch `limit`; all tables had the same runs."""
    version = silver.tail.whole
    while (run := last_run(silver.tail.table, version))[1] > limit:
        version -= 1
    return run[1]


def _version_of(end: TableEnd, batch: int) -> int:
    """Return the version before the first commit of a later batch."""
    keep = end.tail.whole
    for commit in commits_descending(end.tail.table, end.tail.whole):
        metadata = commit.metadata or {}
        if "plan" in metadata:
            raise PatchBlocksRollback(str(end.tail.table), metadata["plan"])
        if "batches" in metadata:
            if metadata["batches"][1] <= batch:
                break
            keep = commit.version - 1
    return keep
