"""Find a table's commits in its Delta log, by transaction or by metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from include.clients.delta_log import Commit, commits_following, log_versions, read_commit
from include.errors import Terminal
from spark_jobs.storage.delta_table import Table


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
    """Return the commit of a transaction. Raises CommitMissing."""
    return last_commit(table, version, lambda commit: (commit.app_id, commit.app_version) == (app_id, version))


def bronze_commit(bronze: Table, batch: int) -> Commit:
    """Return the commit of a bronze batch of any checkpoint generation. Raises CommitMissing."""
    return last_commit(bronze, batch, lambda commit: metadata_of(commit).get("batches") == [batch, batch])


def latest_patch(table: Table, own: Commit) -> Commit:
    """Return the last patch commit between a batch's commit `own` and the next batch's; `own` if there is none."""
    newest = own
    for commit in commits_following(table.spec.path, own.version):
        if "plan" in metadata_of(commit):
            newest = commit
        elif commit.app_id is not None:
            break
    return newest


def last_commit(table: Table, batch: int, matches: Callable[[Commit], bool]) -> Commit:
    """Return the newest commit for which `matches` is true. Raises CommitMissing, which names `batch`."""
    for version in sorted(log_versions(table.spec.path), reverse=True):
        commit = read_commit(table.spec.path, version)
        if matches(commit):
            return commit
    raise CommitMissing(table.spec.name, batch)
