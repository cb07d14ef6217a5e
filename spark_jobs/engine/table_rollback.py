"""Roll tables back to the last batch that all of them have, when a power cut took commits of some.

Reads: the ends of the logs of bronze and of the tables of each active release. Writes: moves log files out of the
tables into the `removed/` folder of the state.
Guarantee: afterwards the tables are what they were after an earlier batch; later batches are refined again.
After a crash: run it again.
Does not: move the publication (`republish`), or change a data file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from include.catalog.dataset import released_dataset
from include.clients.delta_log import LOG, commits_descending
from include.errors import Terminal
from include.paths import bronze_path, gold_path, identities_path, rejected_path, silver_path, warehouse
from include.reading.publication import find_publication
from include.settings import Settings
from spark_jobs.engine.active_releases import recorded_releases
from spark_jobs.engine.next_run import are_one_run_apart
from spark_jobs.engine.publication_recovery import last_active_release
from spark_jobs.storage.identity_index import index_file
from spark_jobs.storage.log_tail import LogTail, log_tail, move_files, obsolete_files
from spark_jobs.storage.table_commits import last_run


class PatchInTheWay(Terminal):
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

    `indexes`: folders of the releases' identity indexes, which are derived again; a power cut may have damaged them.
    """

    files: dict[str, list[Path]]
    bronze: int
    indexes: tuple[Path, ...]

    def sentences(self, folder: Path) -> list[str]:
        """Return what is removed, one line for each table, and where it goes."""
        lines = ["found: commits of some tables are lost or cut short, as after a power cut"]
        lines += [f"remedy: remove from the log of {table}: {_names(files)}" for table, files in self.files.items()]
        return [*lines, f"the removed files go to {folder}; their batches are read and refined again"]

    def execute(self, folder: Path) -> None:
        """Move the files into `folder`."""
        for index in self.indexes:
            index_file(index).remove()
        for table, files in self.files.items():
            move_files(files, folder / table)


def _names(files: list[Path]) -> str:
    names = sorted(path.name for path in files)
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]} ({len(names)} files)"


def planned_rollback(settings: Settings, dataset: str) -> Rollback | None:
    """Return the rollback that the dataset's tables need, None when they need none. Raises PatchInTheWay."""
    path = bronze_path(settings, dataset)
    if not (path / LOG).is_dir():
        return None
    bronze = table_end(path)
    ends, releases = [bronze], release_names(settings, dataset)
    for release in releases:
        ends += _rolled_back([table_end(path) for path in release_paths(settings, dataset, release)], bronze.run[1])
    root = warehouse(settings)
    files = {str(end.tail.table.relative_to(root)): obsolete_files(end.tail, end.keep) for end in ends}
    found = {table: removed for table, removed in files.items() if removed}
    indexes = tuple(identities_path(settings, dataset, release) for release in releases)
    return Rollback(found, bronze.keep, indexes) if found else None


def release_names(settings: Settings, dataset: str) -> list[str]:
    """Return the names of the published release and of the active ones."""
    publication = find_publication(settings, dataset)
    published = publication.release if publication else last_active_release(settings, dataset)
    return list(dict.fromkeys([*filter(None, [published]), *recorded_releases(settings, dataset)]))


def release_paths(settings: Settings, dataset: str, release: str) -> list[Path]:
    """Return the paths of a release's tables, silver first."""
    gold = released_dataset(settings, dataset, release).pipeline.gold
    own = [silver_path(settings, dataset, release), rejected_path(settings, dataset, release)]
    return own + [gold_path(settings, dataset, release, table.name) for table in gold]


def table_end(path: Path) -> TableEnd:
    """Return the end of a table's log; only what follows its whole part is to be removed."""
    if not (path / LOG).is_dir():
        return TableEnd(LogTail(path, -1, -1, ()), (-1, -1), -1)
    tail = log_tail(path)
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
            raise PatchInTheWay(str(end.tail.table), metadata["plan"])
        if "batches" in metadata:
            if metadata["batches"][1] <= batch:
                break
            keep = commit.version - 1
    return keep
