"""Moves old commits of a Delta log into the table's compact history (adr-0003).

Reads: commit files of old versions. Writes: the history; then removes these files and the checkpoints between them.
Guarantee: a commit file is removed only after the history that holds it was written durably, read back, and extended.
After a crash: the next call removes what is left of the range, or writes the range again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

from deltalake import DeltaTable

from include.clients.commit_history import extend_history, next_range, write_range
from include.clients.delta_log import LOG, checkpoint_file, commit_name, read_commit
from spark_jobs.storage.failpoints import Step, pass_step
from spark_jobs.storage.log_checkpoints import permanent_checkpoints

KEPT_COMMITS = 10_000
KEPT_AGE = timedelta(days=7)


def move_range(table: Path, version: int, needed: Collection[int], retention: timedelta) -> bool:
    """Move one range of commits into the history, or finish the removal of the last one; return whether there was one.

    Stay in the log: the last KEPT_COMMITS up to `version`, those younger than KEPT_AGE and `retention`, and all from
    the checkpoint on that the oldest of these and of the `needed` versions is opened from.
    """
    versions = next_range(table)
    last = range(versions.start - len(versions), versions.start)
    # Files are removed in ascending order.
    if last.start >= 0 and (table / LOG / commit_name(last[-1])).exists():
        _remove(table, last)
        return True
    if not _may_move(table, versions, min([version - KEPT_COMMITS, *needed]), max(KEPT_AGE, retention)):
        return False
    contents = [(table / LOG / commit_name(each)).read_bytes() for each in versions]
    # An empty or cut file is no commit; it stays where `headrace repair` finds it.
    for each in versions:
        read_commit(table, each)
    write_range(table, contents)
    pass_step(Step.HISTORY_WRITTEN)
    extend_history(table)
    pass_step(Step.HISTORY_EXTENDED)
    _remove(table, versions)
    return True


def _may_move(table: Path, versions: range, oldest: int, age: timedelta) -> bool:
    """Return whether a checkpoint after these versions opens the table at version `oldest`, and is old enough."""
    for checkpoint in permanent_checkpoints(versions[-1], oldest):
        if checkpoint_file(table, checkpoint).exists():
            is_old = read_commit(table, checkpoint).timestamp_ms / 1000 <= time.time() - age.total_seconds()
            # Raises DeltaError when the checkpoint is damaged.
            return is_old and DeltaTable(str(table), version=checkpoint).version() == checkpoint
    return False


def _remove(table: Path, versions: range) -> None:
    permanent = set(permanent_checkpoints(versions.start - 1, versions[-1]))
    for each in versions:
        if each in permanent:
            checkpoint_file(table, each).unlink(missing_ok=True)
        (table / LOG / commit_name(each)).unlink(missing_ok=True)
        pass_step(Step.HISTORY_COMMIT_REMOVED, each)
