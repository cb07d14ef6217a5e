"""The base of the owner's automatic steps: their errors never end the runs, and they pause between attempts.

Reads / Writes / After a crash: nothing of its own.
Guarantee: only what NOT_RETRIED names leaves a guarded step; any other error is a line in the log, runs continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_jobs.stream.back_off import attempt
from spark_jobs.tables.log_lines import log_line

FIRST_CHECK = 60.0
"""Seconds after the driver's start."""
SECONDS_AT_ONCE = 1.0
"""The time that a run waits for a step, in seconds."""
PAUSE_AFTER_FAILURE = 60.0
"""Seconds, unless the step has a pause of its own."""


@dataclass(kw_only=True)
class AutomaticStep:
    """Work that the owner does by itself between two runs. The next check is not before `next_check`, by `clock`."""

    clock: Callable[[], float] = time.monotonic
    next_check: float = field(default_factory=lambda: time.monotonic() + FIRST_CHECK)

    def is_pausing(self) -> bool:
        """Return whether the next check is not due yet."""
        return self.clock() < self.next_check

    def pause(self, seconds: float) -> None:
        """Check again after `seconds`."""
        self.next_check = self.clock() + seconds

    def guarded(self, work: Callable[[], bool], failure: str, *ending: type[Exception]) -> bool:
        """Return what `work` returns: whether there is more to do. Raises NOT_RETRIED and what `ending` names.

        After any other error, log `failure` and return what `after_failure` returns.
        """

        def log_failure(error: Exception) -> bool:
            log_line(f"{failure}; runs continue", error)
            return self.after_failure()

        return attempt(work, log_failure, *ending)

    def after_failure(self) -> bool:
        """Pause; return whether there is more to do at once."""
        self.pause(PAUSE_AFTER_FAILURE)
        return False
