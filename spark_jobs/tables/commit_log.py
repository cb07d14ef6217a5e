"""A table's Delta log: commits, claims of new owners, checkpoints, the history, and the log's end after a power cut.

A commit is a JSON file that is created whole, and only if its version is free (adr-0004): of two processes that commit
one version, one succeeds. Nothing here reads the log in order to commit, so a commit costs the same after years.
Old commits move into a compact history (adr-0003); superseded checkpoints are removed (adr-0002).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from include.ground.commit_history import extend_history, history_end, next_range, write_range
from include.ground.delta_log import (
    LOG,
    LogDamaged,
    checkpoint_file,
    commit_content,
    commit_name,
    last_checkpoint,
    latest_version,
    log_versions,
    open_delta,
    read_commit,
)
from include.ground.durable_files import sync_path, unique_suffix
from include.ground.errors import Terminal
from include.ground.stored_path import StoredPath, names_in
from spark_jobs.tables.failpoints import Step, pass_step

Action = Mapping[str, Any]
UNFINISHED = "_commit_*.json.tmp"


class VersionTaken(Exception):
    """Another process has committed the version."""


def put_commit(
    table: Path, version: int, facts: Mapping[str, Any], actions: Iterable[Action], *, durable: bool
) -> None:
    """Commit `version`. Raises VersionTaken.

    `facts` are added to `commitInfo`, the first line. A `txn` must be the last one: without it a file is known as cut.
    """
    info = {
        "timestamp": int(time.time() * 1000),
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "engineInfo": "headrace",
    }
    log = table / LOG
    if isinstance(log, StoredPath):
        # Two commits never have the same content: a repeated request recognises its own.
        if not (log / commit_name(version)).create(_content({**info, **facts, "txnId": uuid4().hex}, actions)):
            raise VersionTaken(f"the log has version {version}")
        return
    unfinished = log / UNFINISHED.replace("*", unique_suffix())
    try:
        _write(unfinished, _content({**info, **facts}, actions), durable)
        _create(table, version, unfinished)
    finally:
        unfinished.unlink(missing_ok=True)
    if durable:
        sync_path(log)


def _content(info: Mapping[str, Any], actions: Iterable[Action]) -> bytes:
    lines = (json.dumps(action, separators=(",", ":")) for action in ({"commitInfo": info}, *actions))
    return "\n".join(lines).encode()


def discard_unfinished_commits(table: Path) -> None:
    """Remove commits that earlier owners have not finished; one that is still in progress fails with VersionTaken.

    A store has only whole ones.
    """
    for path in () if isinstance(table, StoredPath) else (table / LOG).glob(UNFINISHED):
        path.unlink(missing_ok=True)


def _write(path: Path, content: bytes, durable: bool) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _create(table: Path, version: int, content: Path) -> None:
    path = table / LOG / commit_name(version)
    try:
        # Unlike a rename, a link does not replace the file of a process that was faster.
        os.link(content, path)
    except FileExistsError as error:
        raise VersionTaken(f"the log has version {version}") from error
    except FileNotFoundError as error:
        raise VersionTaken(f"a new owner has removed the unfinished commit of version {version}") from error
    # The owner that was faster may have moved its commit into the history meanwhile, so that the name was free again.
    if version < history_end(table):
        path.unlink()
        raise VersionTaken(f"the history has version {version}")


EPOCH = "headraceEpoch"


def take_over_tables(paths: Iterable[Path], epoch: int, *, leases_expire: bool) -> None:
    """Remove unfinished commits of earlier owners; where leases expire, also claim the tables.

    A lock of a file is free only when its holder has ended, so that its unfinished commits are leftovers of a crash.
    """
    existing = [path for path in paths if (path / LOG).is_dir()]
    for path in existing:
        discard_unfinished_commits(path)
    if leases_expire:
        claim_tables(existing, epoch)


def claim_tables(paths: Iterable[Path], epoch: int) -> None:
    """Commit an empty version to each existing table, with the owner's `epoch`.

    An earlier owner may have been stopped between the check of its lease and its commit. It then tries to create the
    same version of the log, and one of the two succeeds. If the earlier owner does, its commit is read and the claim
    becomes the next version. A table whose creation was interrupted has no version yet: the new owner creates it, and
    only one of two can. A claim would become version 0, without the table's schema.
    """
    for path in paths:
        if (path / LOG).is_dir() and latest_version(path) >= 0:
            while not _has_claimed(path, epoch):
                pass


def _has_claimed(path: Path, epoch: int) -> bool:
    try:
        put_commit(path, latest_version(path) + 1, {EPOCH: str(epoch)}, [], durable=False)
    except VersionTaken:
        return False
    return True


KEPT = 2
# One checkpoint per this many versions stays until the commits before it are in the history: it opens later versions.
SPARSE = 100
# A reader opens the checkpoint that it found in the log, so a superseded one stays a little longer.
OPENING = timedelta(minutes=5)
CHECKPOINT_FILE = re.compile(r"^(\d{20})\.checkpoint\.parquet$")


def checkpoint_versions(table: Path) -> list[int]:
    """Return the versions of all checkpoints, ascending; in a store, of the last ones. Lists the log."""
    after = commit_name(max(0, (last_checkpoint(table) or 0) - SPARSE))
    found = map(CHECKPOINT_FILE.match, names_in(table / LOG, after))
    return sorted(int(match[1]) for match in found if match)


def permanent_checkpoints(after: int, last: int) -> range:
    """Return the versions in (after, last] whose checkpoints stay, ascending."""
    return range((after + 1) // SPARSE * SPARSE + SPARSE - 1, last + 1, SPARSE)


class SupersededCheckpoints:
    """Removes one table's checkpoints that newer ones supersede: O(1) after each commit, by one listing at first."""

    def __init__(self, table: Path, version: int, interval: int) -> None:
        """`version`: of the table; the owner writes a checkpoint when a commit completes `interval` versions."""
        self._table, self._version, self._interval = table, version, interval
        self._written: deque[tuple[int, float]] = deque()
        """Version and time of each checkpoint that is not removed, oldest first."""
        for found in checkpoint_versions(table):
            self._note(found)
        self._remove()

    def is_due(self, version: int) -> bool:
        """Return whether the commit of a version completes an interval."""
        return (version + 1) % self._interval == 0

    def following(self, version: int) -> int:
        """Return the version of the next checkpoint after a version for which one is due."""
        return version + self._interval

    def advance(self, version: int) -> None:
        """Note the checkpoints of the commits up to `version`, and remove superseded ones."""
        written = [each for each in range(self._version + 1, version + 1) if self.is_due(each)]
        self._version = version
        for each in written:
            self._note(each)
        if written:
            self._remove()

    def _note(self, version: int) -> None:
        # On a full disk, for example, a commit is written but its checkpoint is not.
        with contextlib.suppress(FileNotFoundError):
            self._written.append((version, checkpoint_file(self._table, version).stat().st_mtime))

    def _remove(self) -> None:
        latest, named = time.time() - OPENING.total_seconds(), last_checkpoint(self._table)
        while len(self._written) > KEPT and self._written[KEPT][1] <= latest:
            version, _ = self._written.popleft()
            if (version + 1) % SPARSE and version != named:
                # One that cannot be removed is removed by the next process.
                with contextlib.suppress(OSError):
                    checkpoint_file(self._table, version).unlink(missing_ok=True)


KEPT_COMMITS = 100


def is_due(table: Path, version: int) -> bool:
    """Return whether a table at `version` has a range of commits that may move, if they are old enough."""
    return not isinstance(table, StoredPath) and version - KEPT_COMMITS >= history_end(table) + len(next_range(table))


def move_range(table: Path, version: int, needed: Collection[int], age: timedelta = OPENING) -> bool:
    """Move one range of commits into the history; return whether there was one. Removes what a crash left.

    Stay in the log: the last KEPT_COMMITS up to `version`, those younger than `age`, all from the checkpoint on that
    opens the oldest of these; and what opens the `needed` versions, which the history holds as well.
    """
    _remove_moved(table, needed)
    versions = next_range(table)
    if not _may_move(table, versions, version - KEPT_COMMITS, age):
        return False
    contents = [(table / LOG / commit_name(each)).read_bytes() for each in versions]
    # An empty or cut file is not a commit; it stays where `headrace repair` finds it.
    for each in versions:
        read_commit(table, each)
    write_range(table, contents)
    pass_step(Step.HISTORY_WRITTEN)
    extend_history(table)
    pass_step(Step.HISTORY_EXTENDED)
    _remove_moved(table, needed)
    return True


def oldest_version(table: Path) -> int:
    """Return the oldest version from which on each one opens: 0 while the history has no commits."""
    end = history_end(table)
    return min((each for each in checkpoint_versions(table) if each >= end), default=end) if end else 0


def _may_move(table: Path, versions: range, oldest: int, age: timedelta) -> bool:
    """Return whether a checkpoint after these versions opens the table at version `oldest`, and is old enough."""
    for checkpoint in permanent_checkpoints(versions[-1], oldest):
        if checkpoint_file(table, checkpoint).exists():
            is_old = read_commit(table, checkpoint).timestamp_ms / 1000 <= time.time() - age.total_seconds()
            # Raises DeltaError when the checkpoint is damaged.
            return is_old and open_delta(table, checkpoint).version() == checkpoint
    return False


def _remove_moved(table: Path, needed: Collection[int]) -> None:
    """Remove commits that the history holds, and checkpoints among them, but not what opens the needed versions."""
    end = history_end(table)
    checkpoints = checkpoint_versions(table)
    kept = set(_openers(checkpoints, needed))
    for each in checkpoints:
        if each < end and each not in kept:
            checkpoint_file(table, each).unlink(missing_ok=True)
    for each in log_versions(table):
        if each < end and each not in kept:
            (table / LOG / commit_name(each)).unlink(missing_ok=True)
            pass_step(Step.HISTORY_COMMIT_REMOVED, each)


def _openers(checkpoints: Collection[int], needed: Collection[int]) -> Iterator[int]:
    """Yield the versions whose checkpoints and commits open the needed versions."""
    for version in needed:
        yield from range(max((each for each in checkpoints if each <= version), default=0), version + 1)


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
    """Check the newest commits of a table, as many as `checked`. Raises Terminal (`table-missing`)."""
    if isinstance(table, StoredPath):
        # A store keeps each commit, whole, that it has acknowledged.
        return LogTail(table, last := latest_version(table), last, ())
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
