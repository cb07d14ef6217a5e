"""Expires old batches every few minutes between two runs, as `retention` of the pipeline declares.

Reads / Writes / Guarantee / After a crash: those of `expire_batches.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from include.ground.settings import Settings
from spark_jobs.layers.release import Release
from spark_jobs.stream.automatic_step import AutomaticStep
from spark_jobs.stream.expire_batches import expire_batches
from spark_jobs.tables.log_lines import log_line

CHECK_EVERY = 600.0
"""Seconds; ages are hours at least."""


@dataclass
class AutomaticExpiry(AutomaticStep):
    """Looks for batches that are older than declared."""

    def step(self, settings: Settings, releases: Sequence[Release]) -> bool:
        """Expire some batches; return whether there may be more. Raises OwnershipLost."""
        if self.is_pausing():
            return False
        return self.guarded(
            lambda: self._expire(settings, releases), "old batches did not expire, the next check tries again"
        )

    def after_failure(self) -> bool:
        """Pause as after any check."""
        self.pause(CHECK_EVERY)
        return False

    def _expire(self, settings: Settings, releases: Sequence[Release]) -> bool:
        done = expire_batches(settings, releases, datetime.now(UTC))
        for each in done:
            log_line(each.report)
        if not done:
            self.pause(CHECK_EVERY)
        return bool(done)
