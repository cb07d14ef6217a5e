"""Moves old commits of the active releases' tables into their compact history, between runs (tables/adr-0003).

Reads / Writes: Delta logs and histories. Guarantee: that of `log_history`; a run waits for one range of commits.
After a crash: the next check continues.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from include.ground.paths import reading_lock_path
from include.ground.settings import Settings
from include.state.file_locks import is_free
from spark_jobs.layers.release import Release, tables_of
from spark_jobs.stream.automatic_step import AutomaticStep
from spark_jobs.stream.obsolete_files import protected_versions
from spark_jobs.tables.commit_log import OPENING, is_due, move_range
from spark_jobs.tables.delta_table import Table

CHECK_EVERY = 10.0


@dataclass
class AutomaticHistory(AutomaticStep):
    """Looks at the logs every ten seconds, and moves one range of commits at a time that are older than `age`."""

    age: timedelta = OPENING
    next_check: float = field(default_factory=lambda: time.monotonic() + CHECK_EVERY, kw_only=True)
    _tables: list[Table] = field(default_factory=list)

    def step(self, settings: Settings, releases: Sequence[Release]) -> bool:
        """Look at all tables, or move some commits of one; return whether there is more to do."""
        failure = "old commits were not moved into the history, the next check tries again"
        return self.guarded(lambda: self._step(settings, releases), failure)

    def after_failure(self) -> bool:
        """Leave the table out until the next check; return whether another table is due."""
        self._tables = self._tables[1:]
        return bool(self._tables)

    def _step(self, settings: Settings, releases: Sequence[Release]) -> bool:
        if not self._tables:
            if self.is_pausing():
                return False
            self.pause(CHECK_EVERY)
            self._tables = [table for table in tables_of(releases) if is_due(table.spec.path, table.version)]
        if not self._tables or not is_free(reading_lock_path(settings, releases[0].dataset.name)):
            self._tables = []
            return False
        path, version = self._tables[0].spec.path, self._tables[0].version
        needed = protected_versions(settings, releases).get(path, ())
        if not (move_range(path, version, needed, self.age) and is_due(path, version)):
            self._tables.pop(0)
        return bool(self._tables)
