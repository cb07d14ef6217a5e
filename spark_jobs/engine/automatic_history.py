"""Moves old commits of the active releases' tables into their compact history, between runs (storage/adr-0003).

Reads / Writes: Delta logs and histories. Guarantee: that of `log_history`; a run waits for one range of commits.
After a crash: the next look continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from include.paths import reading_lock_path
from include.settings import Settings
from include.state.file_locks import is_free
from spark_jobs.engine.log_lines import log_line
from spark_jobs.engine.obsolete_files import FIRST_LOOK, protected_versions
from spark_jobs.layers.release_tables import Release, tables_of
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.log_history import KEPT_COMMITS, move_range

LOOK_EVERY = 3600.0


@dataclass
class AutomaticHistory:
    """Looks at each long log once an hour, and moves one range of its commits at a time."""

    clock: Callable[[], float] = time.monotonic
    next_look: float = field(default_factory=lambda: time.monotonic() + FIRST_LOOK)
    _tables: list[Table] = field(default_factory=list)

    def step(self, settings: Settings, releases: Sequence[Release]) -> bool:
        """Look at one table, or move some of its commits; return whether there is more to do."""
        try:
            return self._step(settings, releases)
        except Exception as error:  # noqa: BLE001  (whatever it is, runs go on)
            log_line("old commits were not moved into the history; the next look tries again, runs continue", error)
            self._tables = self._tables[1:]
            return bool(self._tables)

    def _step(self, settings: Settings, releases: Sequence[Release]) -> bool:
        if not self._tables:
            if self.clock() < self.next_look:
                return False
            self.next_look = self.clock() + LOOK_EVERY
            self._tables = [table for table in tables_of(releases) if table.version > KEPT_COMMITS]
        if not self._tables or not is_free(reading_lock_path(settings, releases[0].dataset.name)):
            self._tables = []
            return False
        table, retention = self._tables[0], releases[0].dataset.pipeline.retention.versions
        needed = protected_versions(settings, releases).get(table.spec.path, ())
        if not move_range(table.spec.path, table.version, needed, retention):
            self._tables.pop(0)
        return bool(self._tables)
