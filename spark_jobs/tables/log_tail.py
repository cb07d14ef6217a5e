"""The end of a Delta log after a power cut: how far it is whole, and the removal of what follows.

A power cut can lose the newest files, or leave them empty or cut short: commits, checkpoints, data files.

Reads: the newest commits and the sizes of the data files that they added. Writes: moves log files out of the table.
After a crash: files are moved from the newest down, so that the rest is a log; call it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from include.ground.commit_history import history_end
from include.ground.delta_log import LOG, LogDamaged, checkpoint_file, commit_content, log_versions, read_commit
from include.ground.errors import Terminal
from spark_jobs.tables.log_checkpoints import checkpoint_versions

CHECKED = 500
"""Commits before the log's end that are checked: more than a system leaves unwritten."""


class RollbackTooFar(Terminal):
    """A rollback to version `keep` would leave the table without the checkpoint that its history ends before."""

    def __init__(self, table: Path, keep: int) -> None:
        super().__init__(
            f"{table}: version {keep} cannot be opened any more, its commits are in the history; nothing was changed",
            "restore the table's folder from a backup",
        )
        self.table, self.keep = table, keep


@dataclass(frozen=True)
class LogTail:
    """A table's last version, the last one up to which the log is whole, and its unreadable checkpoints."""

    table: Path
    last: int
    whole: int
    checkpoints: tuple[int, ...]


def log_tail(table: Path, checked: int = CHECKED) -> LogTail:
    """Check the newest commits of a table, as many as `checked`. Raises TableMissing."""
    last = max(log_versions(table), default=-1)
    first, whole = max(0, last - checked), last
    while (found := _whole_until(table, first, whole)) < whole:
        # A data file that a removed commit had superseded is needed again.
        whole = found
    return LogTail(table, last, whole, tuple(v for v in checkpoint_versions(table) if not _is_parquet(table, v)))


def _whole_until(table: Path, first: int, last: int) -> int:
    """Return the version before the first commit that is unreadable, or lacks a data file that is still in use."""
    commits: list[list[dict[str, Any]]] = []
    for version in range(first, last + 1):
        try:
            read_commit(table, version)
        except (LogDamaged, FileNotFoundError):
            break
        commits.append(list(_actions(table, version)))
    removed = {action["remove"]["path"] for actions in commits for action in actions if "remove" in action}
    for version, actions in enumerate(commits, first):
        added = [action["add"] for action in actions if "add" in action]
        if not all(add["path"] in removed or _has_size(table / unquote(add["path"]), add["size"]) for add in added):
            return version - 1
    return first + len(commits) - 1


def _actions(table: Path, version: int) -> Iterator[dict[str, Any]]:
    return (orjson.loads(line) for line in commit_content(table, version).splitlines() if line.strip())


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _is_parquet(table: Path, version: int) -> bool:
    try:
        pq.read_metadata(checkpoint_file(table, version))
    except (pa.ArrowException, OSError):
        return False
    return True


def _opens(tail: LogTail, keep: int) -> bool:
    """Return whether the log has all commits from a readable checkpoint to version `keep`.

    A checkpoint that stays for a protected version has only the commits up to that version (adr-0003).
    """
    whole = (version for version in checkpoint_versions(tail.table) if version <= keep)
    first = max((version for version in whole if version not in tail.checkpoints), default=-1) + 1
    return keep >= 0 and set(range(first, keep + 1)) <= set(log_versions(tail.table))


def obsolete_files(tail: LogTail, keep: int) -> list[Path]:
    """Return the log's files after version `keep`, newest first, and the unreadable checkpoints before it.

    Raises RollbackTooFar when version `keep` could not be opened without them.
    """
    if keep < tail.last and history_end(tail.table) and not _opens(tail, keep):
        raise RollbackTooFar(tail.table, keep)
    numbered = [path for path in (tail.table / LOG).iterdir() if path.name[:20].isdigit()]
    later = sorted((path for path in numbered if int(path.name[:20]) > keep), reverse=True)
    return later + [checkpoint_file(tail.table, version) for version in tail.checkpoints if version <= keep]


def move_files(files: list[Path], folder: Path) -> None:
    """Move log files of one table into `folder`, in this order."""
    if not files:
        return
    folder.mkdir(parents=True, exist_ok=True)
    # It may name a checkpoint that is moved; without it, readers list the log.
    (files[0].parent / "_last_checkpoint").unlink(missing_ok=True)
    for path in files:
        os.rename(path, folder / path.name)
