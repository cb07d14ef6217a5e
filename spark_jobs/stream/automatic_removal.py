"""Removes what ended plans left, as `retention.releases` and `retention.plans` of the pipeline declare.

Reads / Writes: what `include/observe/ended_plans.py` says. Guarantee: its. A run waits for at most about a second.
After a crash: the next check finishes the removal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from include.ground.settings import Settings
from include.observe.ended_plans import delete_moved, move_ended, pass_over
from include.plans.plan_lookup import advance_index, plan_ids_of_data
from include.read.publication import NothingPublished
from spark_jobs.stream.automatic_step import SECONDS_AT_ONCE, AutomaticStep
from spark_jobs.tables.log_lines import log_line

CHECK_EVERY = 3600.0
"""Seconds; retentions are days."""


@dataclass
class AutomaticRemoval(AutomaticStep):
    """Looks for ended plans every hour, moves their data away at once, and deletes it for a second between two runs."""

    _is_deleting: bool = False
    _unread: list[str] = field(default_factory=list)

    def step(self, settings: Settings, dataset: str) -> bool:
        """Look for data of ended plans, or delete some of it; return whether there is more to do."""
        failure = "data of ended plans was not removed, the next check tries again"
        return self.guarded(lambda: self._step(settings, dataset), failure)

    def after_failure(self) -> bool:
        """Start over at the next check."""
        self._is_deleting, self._unread = False, []
        self.pause(CHECK_EVERY)
        return False

    def _step(self, settings: Settings, dataset: str) -> bool:
        try:
            return self._remove(settings, dataset)
        except NothingPublished:
            self._unread = []
            self.pause(CHECK_EVERY)
            return False

    def _remove(self, settings: Settings, dataset: str) -> bool:
        end = time.monotonic() + SECONDS_AT_ONCE
        if not self._is_deleting:
            if self.is_pausing():
                return False
            if not self._unread and not advance_index(settings, end):
                return True
            now = datetime.now(UTC)
            self._unread = self._unread or plan_ids_of_data(settings, dataset)
            pass_over(settings, dataset, self._unread, now, end)
            if self._unread:
                return True
            self.pause(CHECK_EVERY)
            # The plans that this reads were just read, so it takes little time.
            for each in move_ended(settings, dataset, now, within=0):
                why = f"ended {each.ended:%Y-%m-%d %H:%M} UTC, retention.{each.policy}"
                log_line(f"removed {each.path}: {each.bytes:,} bytes, {why}")
        self._is_deleting = not delete_moved(settings, dataset, end)
        return self._is_deleting
