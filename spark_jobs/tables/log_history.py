"""Moves old commits of a Delta log into the table's compact history (adr-0003).

Reads: commit files of old versions. Writes: the history; then removes these files and the checkpoints between them.
Guarantee: a commit file is removed only after the history that holds it was written durably, read back, and extended.
After a crash: the next call removes what is left of the range, or writes the range again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from datetime import timedelta
from pathlib import Path

from deltalake import DeltaTable

from include.ground.commit_history import extend_history, history_end, next_range, write_range
from include.ground.delta_log import LOG, checkpoint_file, commit_name, log_versions, read_commit
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.log_checkpoints import OPENING, checkpoint_versions, permanent_checkpoints

KEPT_COMMITS = 100


def is_due(table: Path, version: int) -> bool:
    """Return whether a table at `version` has a range of commits that may move, if they are old enough."""
    return version - KEPT_COMMITS >= history_end(table) + len(next_range(table))


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
            return is_old and DeltaTable(str(table), version=checkpoint).version() == checkpoint
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
