"""Expires old batches every few minutes between two runs, as `retention` of the pipeline declares.

Reads / Writes / Guarantee / After a crash: those of `expire_batches.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from include.settings import Settings
from spark_jobs.engine.expire_batches import expire_batches
from spark_jobs.engine.log_lines import log_line
from spark_jobs.engine.obsolete_files import FIRST_LOOK
from spark_jobs.layers.release_tables import Release
from spark_jobs.storage.delta_table import OwnershipLost

LOOK_EVERY = 600.0
"""Seconds; ages are hours at least."""


@dataclass
class AutomaticExpiry:
    """Looks for batches that are older than declared."""

    clock: Callable[[], float] = time.monotonic
    next_look: float = field(default_factory=lambda: time.monotonic() + FIRST_LOOK)

    def step(self, settings: Settings, releases: Sequence[Release]) -> bool:
        """Expire some batches; return whether there may be more. Raises OwnershipLost."""
        if self.clock() < self.next_look:
            return False
        try:
            done = expire_batches(settings, releases, datetime.now(UTC))
        except OwnershipLost:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is, runs continue)
            log_line("old batches did not expire; the next check tries again, runs continue", error)
            done = []
        for each in done:
            log_line(each.report)
        if not done:
            self.next_look = self.clock() + LOOK_EVERY
        return bool(done)
