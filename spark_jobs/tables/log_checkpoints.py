"""Removes superseded checkpoints of a Delta log (adr-0002). Each names all files of the table; delta-rs removes none.

Guarantee: the newest two stay, the one that `_last_checkpoint` names, and sparse ones, so that older versions open.
After a crash: the next owner lists the log once and removes what is superseded.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from datetime import timedelta
from pathlib import Path

from include.ground.delta_log import LOG, checkpoint_file, last_checkpoint

KEPT = 2
# One checkpoint per this many versions stays until the commits before it are in the history: it opens later versions.
SPARSE = 100
# A reader opens the checkpoint that it found in the log, so a superseded one stays a little longer.
OPENING = timedelta(minutes=5)
CHECKPOINT_FILE = re.compile(r"^(\d{20})\.checkpoint\.parquet$")


def checkpoint_versions(table: Path) -> list[int]:
    """Return the versions of all checkpoints, ascending. Lists the log."""
    found = (CHECKPOINT_FILE.match(path.name) for path in (table / LOG).iterdir())
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
