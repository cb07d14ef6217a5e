"""Automatic compaction: after runs, the owner compacts one group of small files at a time (adr-0003).

Reads / Writes: the tables of the active releases. Guarantee: that of `compact_tables`; a run waits for one group.
After a crash: an uncommitted file is deleted by a later `headrace maintain`; the group is compacted again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_jobs.engine.compact_tables import compact_group, compactable_tables
from spark_jobs.engine.compaction_groups import AUTOMATIC, CompactionPolicy
from spark_jobs.engine.log_lines import log_line
from spark_jobs.layers.release_tables import Release
from spark_jobs.storage.delta_table import OwnershipLost

PAUSE_AFTER_FAILURE = 60.0


@dataclass
class AutomaticCompaction:
    """Compaction by `policy`, whose `min_files` is 0 to do nothing.

    `_settled` has by table the number of files at which there was no group to compact.
    """

    policy: CompactionPolicy = AUTOMATIC
    clock: Callable[[], float] = time.monotonic
    _settled: dict[Path, int] = field(default_factory=dict)
    _is_pending: bool = True
    _retry_at: float = 0.0

    def note_run(self) -> None:
        """Take note that a run has written files."""
        self._is_pending = True

    def step(self, releases: Sequence[Release]) -> bool:
        """Compact the smallest group of one table; return whether there was one. Raises OwnershipLost."""
        if not self._is_pending or not self.policy.min_files or self.clock() < self._retry_at:
            return False
        try:
            self._is_pending = self._compact_one(releases)
        except OwnershipLost:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is, runs go on)
            self._retry_at = self.clock() + PAUSE_AFTER_FAILURE
            log_line(f"compaction failed, next try in {PAUSE_AFTER_FAILURE:.0f} s; runs continue", error)
            return False
        return self._is_pending

    def _compact_one(self, releases: Sequence[Release]) -> bool:
        for each in compactable_tables(releases):
            table, path = each.table, each.table.spec.path
            if path in self._settled and table.file_count < self._settled[path] + self.policy.min_files:
                continue
            groups = each.groups(self.policy)
            if groups:
                self._settled.pop(path, None)
                compact_group(each, groups[0])
                return True
            self._settled[path] = table.file_count
        return False
